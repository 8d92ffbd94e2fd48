"""How long a plan takes: what its experiments took before, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from analysis_factory import make_result
from faults.program import null_scenario, write_scenario
from store.store_factory import make_session

from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.result import Result, Status
from accel_bench.scenario.find import read_draft
from accel_bench.store.database import open_store


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    scenario = null_scenario({"baseline": [], "other": {"set": {"train.learning_rate": 0.1}}})
    path = write_scenario(tmp_path / "scenario.yaml", scenario)
    return make_plan(
        read_draft(path), read_machine(), PlanRequest(overrides=(("measure.rounds", 3),))
    )


def seconds_beside(folder: Path, plan: Plan, *results: Result) -> float | None:
    session = make_session()
    with open_store(folder / "results", write=True) as store:
        store.add_session(session)
        for number, result in enumerate(results):
            names = {"session": session.id, "run_id": f"run-{number}"}
            store.add(result.model_copy(update=names))
        return plan.seconds(store)


def stored(plan: Plan, number: int, seconds: float, status: Status = Status.OK) -> Result:
    """A run of one of the plan's experiments."""
    result = make_result(plan.planned[number].experiment, status=status)
    return result.model_copy(update={"seconds": seconds})


def test_every_round_takes_the_median_of_stored_runs(tmp_path: Path, plan: Plan) -> None:
    first = [stored(plan, 0, seconds) for seconds in (10.0, 20.0, 90.0)]
    assert seconds_beside(tmp_path, plan, *first, stored(plan, 1, 5.0)) == 3 * (20.0 + 5.0)


def test_it_is_not_known_where_an_experiment_has_not_run(tmp_path: Path, plan: Plan) -> None:
    failed = stored(plan, 1, 5.0, Status.FAILED)
    assert seconds_beside(tmp_path, plan, stored(plan, 0, 10.0), failed) is None
    assert plan.seconds(None) is None
