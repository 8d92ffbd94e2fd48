"""Conclusion from the comparison of a stack with itself."""

from __future__ import annotations

from typing import Any

import pytest
from accel_bench_doctor.noise_floor import AGAIN, SCENARIO, noise_of

from accel_bench.analysis.checks.convergence import compare_losses
from accel_bench.analysis.schema import ExperimentSummary, StepSeconds
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.documents.presets import preset_path
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import PlanRequest, make_plan
from accel_bench.result import Status
from accel_bench.scenario.find import read_draft
from accel_bench.testing import run_scenario


def row(stack: str, **changes: Any) -> ExperimentSummary:
    """A row of the table."""
    ratio = Interval(median=1.002, low=0.99, high=1.014)
    seconds = StepSeconds(p50=0.1, p90=0.1, p95=0.1, p99=0.1, spread=0.02)
    values = {"ratio": ratio, "verdict": "same", "rounds": 5, "minimum_detectable_effect": 0.021}
    empty = dict.fromkeys(
        (
            "tokens_per_second",
            "peak_memory_bytes",
            "loss",
            "tokens_per_second_per_device",
            "peak_memory_kind",
            "devices_used",
        )
    )
    return ExperimentSummary(
        **{
            **empty,
            "experiment_id": "0123456789ab",
            "stack": stack,
            "sweep": {},
            "status": Status.OK,
            "reasons": (),
            "runs": 5,
            "step_seconds": seconds,
            "loss_verdict": "equivalent",
            "differs": "",
            "plugins": (),
            "evidence": {},
            "effective": {},
            **values,
            **changes,
        }
    )


def test_it_says_what_can_be_seen_and_with_how_many_rounds() -> None:
    found = noise_of(row("baseline"), row(AGAIN), ())
    assert found.words == (
        "The same work, measured twice in 5 rounds, came out 1.002 times as fast as itself "
        "(95 % interval 0.990 to 1.014). So with 5 rounds a difference of 2.1 % or more between "
        "two stacks can be seen on this machine; more rounds (--rounds) show smaller ones."
    )
    assert found.spread == 0.02
    assert found.problems == ()


def test_a_machine_that_is_too_noisy_is_called_so() -> None:
    found = noise_of(row("baseline"), row(AGAIN, minimum_detectable_effect=7.07), ())
    assert "too noisy here just now" in found.words
    assert "8.1 times as fast" in found.words


@pytest.mark.parametrize(("verdict", "word"), [("better", "faster"), ("worse", "slower")])
def test_identical_code_that_is_told_apart_is_a_warning(verdict: str, word: str) -> None:
    found = noise_of(row("baseline"), row(AGAIN, verdict=verdict), ())
    assert f"Identical code was even called {word}" in found.words


def test_where_a_run_failed_the_reason_stands_there() -> None:
    failed = row(
        AGAIN,
        ratio=None,
        minimum_detectable_effect=None,
        rounds=0,
        step_seconds=None,
        status=Status.FAILED,
        reasons=("it broke",),
        verdict="not tested",
        verdict_reason="no completed run",
    )
    found = noise_of(row("baseline"), failed, ("other work took 40 % of the CPUs",))
    assert found.words == "not measured: no completed run"
    assert found.problems == ("again: it broke",)
    assert found.load == ("other work took 40 % of the CPUs",)
    assert found.ratio is None


def test_both_stacks_of_its_scenario_are_the_same_experiment() -> None:
    plan_request = PlanRequest(overrides=((f"stacks.{AGAIN}", []),))
    plan = make_plan(read_draft(preset_path("scenarios", SCENARIO)), read_machine(), plan_request)
    assert [one.experiment.stack.name for one in plan.runnable] == ["baseline", AGAIN]
    assert len({one.experiment.id for one in plan.runnable}) == 1


def test_its_scenario_trains_and_is_compared() -> None:
    path = preset_path("scenarios", SCENARIO)
    settings = {f"stacks.{AGAIN}": [], "measure.steps": 2, "measure.warmup": 1}
    found = run_scenario(path, settings=settings)
    assert {stack: result.status.completed for stack, result in found.items()} == {
        "baseline": True,
        AGAIN: True,
    }
    runs = {stack: {("", 0): result} for stack, result in found.items()}
    # Three steps are too few to tell stacks apart; these two are the same.
    compared = compare_losses(runs["baseline"], runs[AGAIN])
    assert compared.loss_verdict in ("equivalent", "inconclusive")
    assert compared.loss_difference == pytest.approx(0.0, abs=1e-5)
