"""The benchmarks that hold figures against one another: verdicts, clocks, memory, energy, peaks."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cli.program import call, write_nulls
from fake_nvml.library import Machine, compile_library, compiler_found
from gpu_factory import SECONDS, STEPS, gpu_run

from accel_bench.analysis.statistics.estimators import CONFIDENCE, log_interval
from accel_bench.analysis.statistics.verdict import compare, paired_logs
from accel_bench.result import Result
from accel_bench.store.database import open_store

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "benchmarks" / "published"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """`benchmarks` is no part of the distribution."""
    monkeypatch.syspath_prepend(str(ROOT))


def figures(run: Result) -> dict[str, Any]:
    """Its figures by name, as JSON."""
    from benchmarks.gpu_numbers import run_figures

    return {figure.name: figure.model_dump() for figure in run_figures(run)}


def judged(found: Sequence[Any], device_type: str = "cuda") -> tuple[bool, str]:
    """What the script for a GPU makes of figures."""
    from benchmarks.gpu_judges import judge_numbers

    return judge_numbers({"device_type": device_type, "figures": list(found), "problems": []})


def test_a_run_whose_readings_agree_passes_with_its_samples() -> None:
    found = figures(gpu_run())
    assert {name: one["met"] for name, one in found.items()} == dict.fromkeys(
        (
            *("events_over_wall", "nvml_over_reserved", "reserved_over_allocated"),
            *("energy_over_power_times_time", "mfu", "hfu", "fraction_of_matmul_roofline"),
        ),
        True,
    )
    assert found["events_over_wall"]["value"] == pytest.approx(1)
    assert len(found["events_over_wall"]["samples"]["event_seconds"]) == STEPS
    assert found["nvml_over_reserved"]["samples"] == {"nvml_bytes": (30,), "reserved_bytes": (20,)}
    assert found["fraction_of_matmul_roofline"]["value"] == pytest.approx(0.15 / SECONDS)
    rate = 6 * 1e9 * 8192 / SECONDS
    assert found["mfu"]["samples"]["flops_per_second"] == (pytest.approx(rate),)
    assert found["mfu"]["value"] == pytest.approx(rate / 989.4e12, rel=1e-3)
    assert judged(found.values())[0] is True


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"device_seconds": SECONDS * 1.03}, "events_over_wall"),
        ({"joules": 1700.0}, "energy_over_power_times_time"),
        ({"nvml_bytes": 19}, "nvml_over_reserved"),
        ({"rows": 10**9}, "mfu"),
    ],
)
def test_readings_that_disagree_fail_the_section_by_name(
    changes: dict[str, Any], name: str
) -> None:
    found = figures(gpu_run(**changes))
    assert found[name]["met"] is False
    passed, line = judged(found.values())
    assert passed is False
    assert f"lora (round 1): {name} is" in line


def test_a_reading_that_is_missing_fails_on_a_gpu_with_its_reason_and_not_on_a_cpu() -> None:
    found = figures(gpu_run(joules=None))
    assert found["energy_over_power_times_time"]["value"] is None
    passed, line = judged(found.values())
    assert passed is False
    assert "not measured: energy_over_power_times_time (denied)" in line
    assert judged(found.values(), "cpu")[0] is True


def test_a_product_on_a_cpu_has_samples_and_no_share_of_a_peak_that_nobody_knows() -> None:
    from benchmarks.gpu_product import SMALL, product_figures

    found = {one.name: one for one in product_figures("cpu", "a CPU", "", SMALL)}
    assert found["mfu"].value is None
    assert found["mfu"].reason == "the table of peaks has no a CPU"
    assert len(found["mfu"].samples["flops_per_second"]) == SMALL.batches
    assert all(rate > 0 for rate in found["mfu"].samples["flops_per_second"])
    assert found["events_over_wall"].met is None
    assert found["energy_over_power_times_time"].reason == "no GPU was used"


WATCHED = f"""
import json, os, sys
sys.path.insert(0, {str(ROOT)!r})
from benchmarks.gpu_product import Size, product_figures
size = Size(side=64, batches=5, batch_seconds=0.4, heat_seconds=0.2)
found = []
for more in ("", "1 refuse 4 nvmlDeviceGetTotalEnergyConsumption"):
    with open(os.environ["FAKE_NVML"], "a") as script:
        print(more, file=script)
    figures = product_figures("cpu", "NVIDIA H100 80GB HBM3", "bbbb", size)
    found.append({{one.name: one.model_dump() for one in figures}})
print(json.dumps(found))
"""
"""The same twice in one process; the second time the counter of energy is denied."""


@pytest.mark.skipif(
    not compiler_found() or sys.platform != "linux",
    reason="the stand-in for NVIDIA's library is compiled with cc, for Linux",
)
def test_energy_of_the_products_is_held_against_power_by_the_real_bindings(tmp_path: Path) -> None:
    machine = Machine(tmp_path, compile_library(tmp_path))
    energy, denied = (found["energy_over_power_times_time"] for found in machine.python(WATCHED))
    # On a busy machine a reading and its time may be tens of milliseconds apart.
    assert energy["value"] == pytest.approx(1, rel=0.05)
    assert energy["met"] is True
    assert energy["samples"]["mean_power_watts"] == [pytest.approx(200)]
    assert denied["value"] is None
    assert "NVML is denied" in denied["reason"]


@pytest.mark.release
def test_a_longer_step_is_compared_by_the_program_itself_process_by_process() -> None:
    from benchmarks.entry import Counts
    from benchmarks.identical import measure_slowdown

    entry = measure_slowdown(Counts(process_rounds=2, steps=3), 10)
    assert entry.right_verdicts == ("worse",)
    assert entry.comparison is not None
    assert entry.comparison.verdict == "not tested"
    assert entry.met is None
    sides = ("baseline", "slower_by_10")
    times = [entry.samples[f"{side}_seconds_per_token"] for side in sides]
    assert [len(side) for side in times] == [2, 2]
    assert times[1][0] >= 0.022 / 256
    assert "loss of slower-by-10: equivalent" in entry.notes


def test_a_run_that_fails_ends_the_comparison_with_what_it_said() -> None:
    from benchmarks.identical import run_comparison

    with pytest.raises(RuntimeError, match="no stack is called 'nothing'"):
        run_comparison(("quickstart", "--only", "nothing"))


def test_the_quickstarts_baseline_is_compared_with_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is real; tests/test_readme.py runs the quickstart itself."""
    from benchmarks import identical
    from benchmarks.entry import QUICK

    stored = json.loads(
        call(
            *("run", str(write_nulls(tmp_path, stacks="{baseline: [], baseline-again: []}"))),
            *("--format", "json", "--results", str(tmp_path / "results")),
        ).out
    )
    asked: list[Sequence[str]] = []

    def run_comparison(arguments: Sequence[str]) -> identical.Compared:
        asked.append(arguments)
        with open_store(tmp_path / "results", write=False) as store:
            return identical.Compared(stored, store.results())

    monkeypatch.setattr(identical, "run_comparison", run_comparison)
    entry = identical.measure_identical(QUICK)
    assert entry.comparison is not None
    assert entry.comparison.rounds == 1
    assert entry.met is None
    assert len(entry.samples["baseline_again_seconds_per_token"]) == 1
    assert "loss of baseline-again: inconclusive" in entry.notes

    plan = json.loads(call("run", *asked[0], "--dry-run", "--format", "json").out)
    assert [row["stack"] for row in plan["experiments"]] == ["baseline", "baseline-again"]
    assert len({row["experiment_id"] for row in plan["experiments"]}) == 1


@pytest.mark.parametrize("file", ["cpu-identical.json", "cpu-slowdown.json"])
def test_a_published_verdict_follows_from_the_published_samples_and_is_right(file: str) -> None:
    document = json.loads((PUBLISHED / file).read_text())
    assert document["quick"] is False
    for entry in document["entries"]:
        keys = [key for key in entry["samples"] if key.endswith("_seconds_per_token")]
        (stack,) = (key for key in keys if not key.startswith("baseline_seconds"))
        times = {key: dict(enumerate(entry["samples"][key])) for key in keys}
        pairs = {
            key: {("session", round): value for round, value in runs.items()}
            for key, runs in times.items()
        }
        base = pairs["baseline_seconds_per_token"]
        said = compare(base, pairs[stack])
        confidence = entry["comparison"]["ratio"].get("confidence", CONFIDENCE)
        ratio = log_interval(paired_logs(base, pairs[stack]), confidence)
        assert said.rounds >= 5
        assert ratio is not None
        assert said.verdict == entry["comparison"]["verdict"]
        assert [entry["value"], *entry["interval"]] == pytest.approx(
            [ratio.median, ratio.low, ratio.high]
        )
        assert said.verdict in entry["right_verdicts"]
        assert entry["met"] is True
        assert "load_average" in entry["machine"]
