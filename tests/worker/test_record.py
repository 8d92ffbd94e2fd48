"""What plugins show at the end of a run, brought together."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.program import write_nulls
from store.store_factory import make_result

from accel_bench import Metric, Options, Plugin, Run, Sample, Status, Window, hookimpl
from accel_bench.errors import HookError
from accel_bench.plugins.active import ActivePlugin, ActivePlugins
from accel_bench.store.records import parse_result
from accel_bench.testing import run_scenario
from accel_bench.worker.record import (
    RankRecord,
    collect_evidence,
    collect_metrics,
    rank_result,
)

MakeRun = Callable[..., Run]

ENERGY = Metric(name="energy", value=1, unit="J", scope="rank", plugin="memory")


class Meter(Plugin[Options]):
    """Measures one thing by its hook and another one by a call, and says that a plugin did."""

    called: Any = ENERGY
    shown: Any = None

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        run.on_metrics(lambda window: [self.called])

    @hookimpl
    def finish_metrics(self) -> list[Metric]:
        return [ENERGY]

    @hookimpl
    def report_evidence(self) -> Any:
        return self.shown


def measured(run: Run, meter: Meter) -> list[Metric]:
    """What is collected of the plugin `m`."""
    record, active = RankRecord(), ActivePlugins([ActivePlugin(meter, "m", None, "t")])
    list(active.call_all("prepare_process", run=run))
    collect_metrics(active, run, record, Window(started=0.0, ended=1.0))
    return record.metrics


def test_a_metric_is_attributed_to_the_plugin_that_measured_it(make_run: MakeRun) -> None:
    assert [metric.plugin for metric in measured(make_run(), Meter(Options()))] == ["m", "m"]


def test_what_is_no_metric_names_the_plugin_that_registered_the_call(make_run: MakeRun) -> None:
    meter = Meter(Options())
    meter.called = "fast"
    with pytest.raises(HookError, match=r"m.*on_metrics.*Metric objects"):
        measured(make_run(), meter)


DEEP: Any = functools.reduce(lambda inner, _: [inner], range(150), 1)

UNREADABLE = [
    (1e150, r"is 1e\+150, beyond what can be computed with"),
    (-(10**40), "is an integer of more than 40 digits"),
    ("half \ud83d", r"holds half a character: 'half \\ud83d'"),
    (DEEP, "is nested deeper than 100 levels"),
]
"""Values that JSON can write and no reader of results takes, and what is said of them."""


@pytest.mark.parametrize("value, problem", UNREADABLE, ids=["size", "digits", "half", "depth"])
def test_evidence_that_could_not_be_read_back_names_its_plugin(
    make_run: MakeRun, value: Any, problem: str
) -> None:
    meter, record = Meter(Options()), RankRecord()
    meter.shown = {"kernels": [1, value]}
    active = ActivePlugins([ActivePlugin(meter, "m", None, "t")])
    with pytest.raises(HookError, match=rf"'m'.*report_evidence.*kernels\.1.*{problem}"):
        collect_evidence(active, make_run(), record)
    assert not record.evidence


def test_evidence_up_to_the_limits_is_read_back(make_run: MakeRun) -> None:
    meter, record = Meter(Options()), RankRecord()
    meter.shown = {"a": [9e99, 10**40 - 1, 1 - 10**40, "\U0001f600"]}
    collect_evidence(ActivePlugins([ActivePlugin(meter, "m", None, "t")]), make_run(), record)
    stored = rank_result(make_run(), record, None, "")
    assert parse_result(make_result(ranks=(stored,)).model_dump_json()).ranks == (stored,)
    assert stored.evidence["m"] == meter.shown


@pytest.mark.parametrize("changed", [{"value": 1e150}, {"kind": "half \udfff"}])
def test_a_metric_that_could_not_be_read_back_names_its_plugin(
    make_run: MakeRun, changed: Any
) -> None:
    meter = Meter(Options())
    meter.called = ENERGY.model_copy(update=changed)
    with pytest.raises(HookError, match=r"'m'.*on_metrics.*energy\.(value|kind)"):
        measured(make_run(), meter)


def test_a_loss_that_could_not_be_read_back_makes_the_run_invalid(make_run: MakeRun) -> None:
    counts = dict.fromkeys(("sequences", "processed_tokens", "real_tokens", "supervised_tokens"), 1)
    sample = Sample(step=0, seconds=0.1, loss=-2e120, **counts)
    record = RankRecord(window=Window(started=0.0, ended=1.0, samples=(sample,)))
    found = rank_result(make_run(), record, None, "")
    assert (found.status, found.window) == (Status.INVALID, None)
    assert "window.samples.0.loss is -2e+120" in found.reasons[0]


def test_half_a_character_in_an_error_is_written_as_an_escape(make_run: MakeRun) -> None:
    error = HookError("m", "t", "load_model", "no file half \ud83d")
    found = rank_result(make_run(), RankRecord(), error, "load_model")
    assert found.status is Status.PLUGIN_ERROR
    assert found.reasons == (r"plugin 'm' (t) failed in load_model: no file half \ud83d",)
    assert r"half \ud83d" in found.model_dump_json().replace("\\\\", "\\")


def test_a_stack_that_uses_its_slot_s_plugin_keeps_what_that_shows(tmp_path: Path) -> None:
    """Of two of one name, that of the slot answers nothing and has nothing to show."""
    stacks = "{baseline: [], early: [{use: adamw, optimizer_in_backward: true}]}"
    path = write_nulls(
        tmp_path,
        stacks=stacks,
        model="{id: tiny-llama-cpu, overrides: {num_hidden_layers: 1}}",
        data="{use: synthetic, sequence_length: 16}",
        optimizer="adamw",
        engine="torch",
        resources="{device: cpu}",
        measure="{warmup: 1, steps: 2, rounds: 1, phase_steps: 0}",
    )
    found = run_scenario(path)
    evidence = {stack: result.ranks[0].evidence["adamw"] for stack, result in found.items()}
    assert evidence["early"]["optimizer_in_backward"] is True
    assert "optimizer_in_backward" not in evidence["baseline"]
