"""What plugins show at the end of a run, brought together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.program import write_nulls

from accel_bench import Metric, Options, Plugin, Run, Window, hookimpl
from accel_bench.errors import HookError
from accel_bench.plugins.active import ActivePlugin, ActivePlugins
from accel_bench.testing import run_scenario
from accel_bench.worker.record import RankRecord, collect_metrics

MakeRun = Callable[..., Run]

ENERGY = Metric(name="energy", value=1, unit="J", scope="rank", plugin="memory")


class Meter(Plugin[Options]):
    """Measures one thing by its hook and another one by a call, and says that a plugin did."""

    called: Any = ENERGY

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        run.on_metrics(lambda window: [self.called])

    @hookimpl
    def finish_metrics(self) -> list[Metric]:
        return [ENERGY]


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
