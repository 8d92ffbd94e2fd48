"""Obstacles to passing the gate at any speed: broken rows, loads, trainings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from accel_bench_ci.gate import FLAT, render_gate
from accel_bench_ci.verdict import GateReport, judge_gate
from analysis_factory import FAST, LORA, STEADY, UPDATE, make_experiment, make_rounds, scaled
from serving_factory import serving

from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.analysis.checks.training_verdict import TrainingComparison
from accel_bench.analysis.metrics.offered_load import OTHER_LOAD
from accel_bench.machine.state import CPUState, MachineState
from accel_bench.result import Result, TensorUpdate, WeightUpdate
from accel_bench.scenario.uses import Use

WHY = "token_counts: step 1: 110 processed, 200 real, 99 supervised tokens"


def judged(base: Sequence[Result], stack: Sequence[Result]) -> GateReport:
    """Judge the runs of a stack beside those of the other one."""
    of_stack, of_base = (runs[0].experiment for runs in (stack, base))
    plans = [PlannedSummary(experiment=one) for one in (of_base, of_stack)]
    return judge_gate(of_stack.stack.name, of_base.stack.name, 0.01, plans, [*base, *stack])


def changed(result: Result, **changes: Any) -> Result:
    """The same run with another rank 0."""
    rank = result.ranks[0].model_copy(update=changes)
    return result.model_copy(update={"ranks": (rank,)})


def doubled(result: Result) -> Result:
    """The same run with twice as many tokens."""
    window = result.ranks[0].window
    assert window is not None
    samples = tuple(one.model_copy(update={"real_tokens": 200}) for one in window.samples)
    return changed(result, window=window.model_copy(update={"samples": samples}))


@pytest.mark.parametrize("name", ["fast", "lora"])
def test_what_failed_its_self_audit_fails(name: str) -> None:
    base, fast = make_rounds(LORA, STEADY), make_rounds(FAST, STEADY)
    report = judged(
        [*map(doubled, base)] if name == "lora" else base,
        [*map(doubled, fast)] if name == "fast" else fast,
    )
    (point,) = report.points
    assert (report.outcome, report.exit_code) == ("failed", 1)
    why = f"{name} failed its self-audit ({WHY})"
    assert point.reason == f"{why}; `accel-bench results check` names the runs"
    assert (point.ratio, point.slower_by, point.loss_verdict) == (None, None, "not tested")


def test_a_server_that_is_asked_for_fewer_requests_fails() -> None:
    for base, reason in ((4.0, "requests arrive at 4 and at 1 a second"), (None, OTHER_LOAD)):
        report = judged(
            serving("base", 100, rate=base), serving("calm", 50, rate=1.0, declares=True)
        )
        assert (report.outcome, report.points[0].reason) == ("failed", reason)


def update(size: float = 1.0, turned: float = 0.0) -> WeightUpdate:
    """An update of the given size, at the given angle to the first one."""
    zeros = (0.0,) * (len(UPDATE.weights) - 2)
    sketch = (10 * size * math.cos(turned), 10 * size * math.sin(turned), *zeros)
    tensors = {"head": TensorUpdate(elements=100, sketch=sketch)}
    return UPDATE.model_copy(update={"tensors": tensors, "steps": 3})


def trained(update_of_stack: WeightUpdate | None, **declared: Any) -> GateReport:
    """Judge a stack that is twice as fast, with the given update."""
    half = make_experiment("half", [Use(use="half-backward")])
    base = [changed(one, update=update()) for one in make_rounds(LORA, STEADY)]
    runs = make_rounds(half, scaled(0.5), **declared)
    return judged(base, [changed(one, update=update_of_stack) for one in runs])


def test_another_training_does_not_pass_and_an_unknown_one_fails() -> None:
    assert trained(update()).exit_code == 0
    still = trained(update(0.0))
    assert (still.exit_code, "the training of half is different" in still.points[0].reason) == (
        4,
        True,
    )
    unknown = trained(None)
    assert (unknown.exit_code, "nothing shows how half" in unknown.points[0].reason) == (1, True)


def test_what_a_declaration_allows_passes_in_its_words() -> None:
    report = trained(update(turned=0.25), update_tolerances={"half-backward": 0.3})
    word = "update within what half-backward declares"
    assert (report.exit_code, word in report.points[0].reason) == (0, True)


def test_the_load_of_the_machine_stands_in_every_form_of_the_report() -> None:
    def cpu(total: float, busy: float, own: float) -> CPUState:
        return CPUState(
            total_seconds=total,
            busy_seconds=busy,
            stolen_seconds=0.0,
            own_seconds=own,
            memory_available_bytes=1,
            swap_used_bytes=0,
        )

    before = MachineState(monotonic_seconds=0.0, cpu=cpu(1000.0, 500.0, 3.0))
    after = MachineState(monotonic_seconds=50.0, cpu=cpu(1100.0, 595.0, 23.0))
    busy = {"state_before": before, "state_after": after}
    runs = ([one.model_copy(update=busy) for one in make_rounds(e, STEADY)] for e in (LORA, FAST))
    report = judged(*runs)
    told = "other programs used 75 % of the CPUs during these runs: close them, or read ratios only"
    for form in ("table", "json", "markdown", "junit"):
        assert told in " ".join(render_gate(report, form).split())


def test_the_csv_has_every_field_of_a_comparison_of_trainings_once() -> None:
    keys = [column.key for column in FLAT]
    assert all(keys.count(field) == 1 for field in TrainingComparison.model_fields)
