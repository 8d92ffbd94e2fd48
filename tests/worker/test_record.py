"""What plugins show at the end of a run, brought together."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from cli.program import write_nulls

from accel_bench import Metric, Options, Plugin, hookimpl
from accel_bench.plugins.active import ActivePlugin, ActivePlugins
from accel_bench.testing import run_scenario
from accel_bench.worker.record import RankRecord, collect_metrics


class Meter(Plugin[Options]):
    """Measures one thing, and says that another plugin did."""

    @hookimpl
    def finish_metrics(self) -> list[Metric]:
        return [Metric(name="energy", value=1, unit="J", scope="rank", plugin="memory")]


def test_a_metric_is_attributed_to_the_plugin_that_measured_it() -> None:
    record, run = RankRecord(), cast(Any, None)
    collect_metrics(ActivePlugins([ActivePlugin(Meter(Options()), "m", None, "t")]), run, record)
    assert [metric.plugin for metric in record.metrics] == ["m"]


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
