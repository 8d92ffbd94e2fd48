"""Fields of `nvml`: their names, their units, and how the progress line shows them."""

from __future__ import annotations

import inspect
from pathlib import Path

import pynvml
import pytest
from accel_bench_metrics import nvml_fields
from accel_bench_metrics.nvml_fields import FIELDS, field_of, metric_name, shown
from accel_bench_metrics.nvml_sampler import Readings
from cli.program import call, write_nulls


@pytest.mark.parametrize(
    ("name", "near"),
    [("utilisation.gpu", "utilization.gpu"), ("NVML_FI_DEV_MEMORY_TMP", "NVML_FI_DEV_MEMORY_TEMP")],
)
def test_an_unknown_field_is_refused_before_anything_starts(
    name: str, near: str, tmp_path: Path
) -> None:
    scenario = write_nulls(tmp_path, metrics=f"[{{use: nvml, fields: [memory.used, {name}]}}]")
    done = call("run", str(scenario), "--dry-run")
    assert done.code == 2
    assert f"NVML has no field {name!r}; did you mean {near!r}?" in done.err
    assert "fields" in done.err


def test_every_field_is_a_question_that_the_bindings_have() -> None:
    for name, field in FIELDS.items():
        question = getattr(pynvml, f"nvmlDevice{field.question}")
        taken = [one for one in inspect.signature(question).parameters.values()]
        required = [one for one in taken if one.default is one.empty]
        given = 1 if field.question == "GetFieldValues" else len(field.arguments)
        assert len(required) - 1 <= given <= len(taken) - 1, name


def test_fields_by_number_are_those_of_the_bindings() -> None:
    numbers = {
        "temperature.memory": pynvml.NVML_FI_DEV_MEMORY_TEMP,
        "power.draw.average": pynvml.NVML_FI_DEV_POWER_AVERAGE,
        "power.draw.instant": pynvml.NVML_FI_DEV_POWER_INSTANT,
    }
    assert {name: field_of(name).arguments for name in numbers} == {
        name: (number,) for name, number in numbers.items()
    }
    clocks = {"gr": pynvml.NVML_CLOCK_GRAPHICS, "sm": pynvml.NVML_CLOCK_SM}
    clocks |= {"mem": pynvml.NVML_CLOCK_MEM, "video": pynvml.NVML_CLOCK_VIDEO}
    assert {name: FIELDS[f"clocks.{name}"].arguments[0] for name in clocks} == clocks
    assert pynvml.NVML_PCIE_UTIL_TX_BYTES == FIELDS["pcie.tx"].arguments[0]


def test_names_have_units_and_devices_are_shown_by_their_ends() -> None:
    assert metric_name("power.draw") == "nvml_power_draw_watts"
    assert metric_name("pstate") == "nvml_pstate"
    assert shown("power.draw", [311.6]) == "power.draw 312 W"
    assert shown("utilization.gpu", [97.0, 9.0, 50.0]) == "utilization.gpu 9-97 %"
    assert shown("memory.used", [2**30, 2**30]) == "memory.used 1.0 GiB"
    assert nvml_fields.checked(["pstate", "pstate"]) == ("pstate",)


def test_a_change_counts_until_the_next_one() -> None:
    series = Readings()
    for at, value in enumerate([10, 10, 30, 30, 30]):
        series.add_change(value, float(at))
    assert list(series.times) == [0, 2]
    assert series.mean(1.0, 3.0) == pytest.approx(20)
    assert series.mean(2.5, 4.0) == 30
    assert series.mean(1.0, 4.5) is None
    stored = series.stored()
    assert stored is not None
    assert (stored.times, stored.values) == ((0, 2, 4), (10, 30, 30))
