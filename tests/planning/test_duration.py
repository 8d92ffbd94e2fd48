"""How long a plan takes: from stored runs, else from FLOPs and a rate that is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from analysis_factory import make_rank, make_result
from faults.program import null_scenario, write_scenario
from store.store_factory import make_session

from accel_bench.flops.workload import Matmul, Workload
from accel_bench.machine.info import GPU, Machine, read_machine
from accel_bench.planning.duration import TimeEstimate, estimate_time
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.result import Result, Status, Window
from accel_bench.scenario.draft import read_draft
from accel_bench.store.database import Store, open_store

MACHINE = read_machine().model_copy(update={"cores": 2, "gpus": ()})
H100 = GPU(
    index=0,
    name="NVIDIA H100 80GB HBM3",
    uuid="a",
    memory_bytes=80 * 2**30,
    compute_capability=(9, 0),
)
FIXED = "measure: {warmup: 2, steps: 10, phase_steps: 0, rounds: 3}\n"


@pytest.fixture
def plan_of(tmp_path: Path) -> Callable[..., Plan]:
    """Plan one stack of a real model on a machine."""

    def make(machine: Machine = MACHINE, **changes: Any) -> Plan:
        path = tmp_path / "scenario.yaml"
        path.write_text(f"name: times\nresources: {{device: cpu}}\nstacks: {{alone: []}}\n{FIXED}")
        draft = read_draft(path)
        for key, value in changes.items():
            draft.set(key.replace("__", "."), value, key)
        return make_plan(draft, machine, PlanRequest(force=True))

    return make


@pytest.fixture
def estimate(tmp_path: Path) -> Callable[..., TimeEstimate]:
    """Estimate a plan's time beside stored results."""

    def make(plan: Plan, *results: Result, machine: Machine = MACHINE) -> TimeEstimate:
        if not results:
            return estimate_time(plan, machine, None)
        with open_store(tmp_path / "results", write=True) as store:
            fill(store, results)
            return estimate_time(plan, machine, store)

    return make


def fill(store: Store, results: tuple[Result, ...]) -> None:
    session = make_session()
    store.add_session(session)
    for number, result in enumerate(results):
        names = {"session": session.id, "run_id": f"run-{number}"}
        store.add(result.model_copy(update=names))


def run_at(plan: Plan, flops_per_second: float, machine: Machine = MACHINE) -> Result:
    """A stored run of other work with the plan's resources, which reached that many FLOP/s."""
    rank = make_rank(step_seconds=(0.5, 0.5))
    assert rank.window is not None
    tokens = sum(sample.real_tokens for sample in rank.window.samples)
    rows = round(flops_per_second / tokens / 6 / 10)
    workload = Workload(matmuls=(Matmul(name="m", rows=rows, columns=10),))
    window = Window(started=0.0, ended=1.0, samples=rank.window.samples)
    experiment = plan.planned[0].experiment.model_copy(update={"id": "0" * 12})
    result = make_result(
        experiment, ranks=[rank.model_copy(update={"workload": workload, "window": window})]
    )
    return result.model_copy(update={"machine": machine})


def test_a_large_model_takes_hours_where_nothing_was_timed(plan_of: Any, estimate: Any) -> None:
    """12.9e9 active parameters x 6 x 512 tokens x 14 steps x 3 rounds at 20 GFLOP/s: a day."""
    found = estimate(plan_of(model__id="mixtral-8x7b"))
    assert found.seconds / 3600 == pytest.approx(23.1, rel=0.05)
    assert found.basis == (
        "at 20.0 GFLOP/s a device, a cautious guess: the steps have not been timed here"
    )


def test_a_frozen_base_takes_two_thirds_and_checkpointing_a_third_more(
    plan_of: Any, estimate: Any
) -> None:
    changes: dict[str, Any] = {"model__id": "llama-2-7b"}
    full = estimate(plan_of(**changes)).seconds
    frozen = estimate(plan_of(**changes, adapter__use="lora")).seconds
    again = estimate(plan_of(**changes, train__gradient_checkpointing=True)).seconds
    assert frozen / full == pytest.approx(2 / 3, rel=0.05)
    assert again / full == pytest.approx(4 / 3, rel=0.05)


def test_a_known_gpu_counts_by_its_peak_in_the_dtype(plan_of: Any, estimate: Any) -> None:
    machine = MACHINE.model_copy(
        update={"gpus": (H100,), "versions": {**MACHINE.versions, "torch": "2.13.0"}}
    )
    changes = {"model__id": "llama-2-7b", "resources__device": "cuda", "model__dtype": "bfloat16"}
    found = estimate(plan_of(machine, **changes), machine=machine)
    assert found.basis.startswith("at 297 TFLOP/s a device, a cautious guess")


def test_a_rate_that_this_machine_reached_comes_before_a_guess(plan_of: Any, estimate: Any) -> None:
    plan = plan_of(model__id="mixtral-8x7b")
    guessed = estimate(plan)
    measured = estimate(plan, run_at(plan, 40e9), run_at(plan, 10e9))
    assert measured.basis == "at 40.0 GFLOP/s a device, the most that recent runs here reached"
    assert measured.seconds == pytest.approx(guessed.seconds / 2, rel=0.1)


@pytest.mark.parametrize(("rate", "counts"), [(1e9, False), (1e11, True)])
def test_a_small_step_s_rate_is_no_less_than_a_guess(
    plan_of: Any, estimate: Any, rate: float, counts: bool
) -> None:
    small, large = plan_of(data__sequence_length=8), plan_of(data__sequence_length=256)
    found, guessed = estimate(large, run_at(small, rate)), estimate(large)
    assert (found.seconds < guessed.seconds) is counts
    assert ("the most that recent runs here reached" in found.basis) is counts


def test_another_machine_s_rate_does_not_count(plan_of: Any, estimate: Any) -> None:
    plan = plan_of(model__id="mixtral-8x7b")
    elsewhere = run_at(plan, 40e9, MACHINE.model_copy(update={"host": "elsewhere"}))
    assert "a cautious guess" in estimate(plan, elsewhere).basis


def test_stored_runs_of_the_same_experiment_come_first(plan_of: Any, estimate: Any) -> None:
    plan = plan_of(model__id="mixtral-8x7b")
    experiment = plan.planned[0].experiment
    stored = make_result(experiment).model_copy(update={"seconds": 100.0})
    failed = make_result(experiment, round=1, status=Status.FAILED)
    found = estimate(plan, stored, failed, failed)
    assert found.describe() == "about 5 min 0 s (from earlier runs here)"


def test_a_run_beyond_its_time_limit_is_noticed(plan_of: Any, estimate: Any) -> None:
    (notice,) = estimate(plan_of(model__id="mixtral-8x7b")).notices
    assert notice.startswith("alone: a run may take ")
    assert notice.endswith(" and is ended after 30 min 0 s; --timeout sets another limit")
    assert estimate(plan_of()).notices == ()


def test_work_without_known_flops_takes_at_least_its_start(tmp_path: Path, estimate: Any) -> None:
    path = write_scenario(tmp_path / "scenario.yaml", null_scenario({"baseline": []}))
    found = estimate(make_plan(read_draft(path), MACHINE, PlanRequest()))
    assert found.basis == "at least: the steps have not been timed here"
    assert found.seconds >= 10
