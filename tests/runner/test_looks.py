"""Rounds that are `auto`: more of them for stacks whose verdict is open, while there is time."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from fault_plugins.active import faulty_installed
from faults.program import null_scenario, write_scenario
from several_ranks.scenarios import forking

from accel_bench.analysis.schema import Summary
from accel_bench.errors import ScenarioError
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.result import Status
from accel_bench.runner.benchmark import Benchmark, Measured, run_plans
from accel_bench.runner.session import Reporter
from accel_bench.scenario.find import read_draft
from accel_bench.store.database import open_store

MACHINE = read_machine()

STACKS = {
    "baseline": [],
    "slower": {"set": {"engine.step_seconds": 0.06}},
    "noisy": [{"use": "faulty", "fault": "uneven"}],
}


@pytest.fixture(scope="module", autouse=True)
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    """The faulty plugins are installed, here and in workers, and a launcher that forks."""
    site = tmp_path_factory.mktemp("site")
    with faulty_installed(site) as patch, forking(site, trains=False):
        patch.setenv("FAULTY_COUNTER", str(site / "counter"))
        yield patch


def plan_of(folder: Path, stacks: dict[str, Any], **measure: Any) -> Plan:
    """A plan with rounds that are `auto`."""
    chosen = {"warmup": 1, "steps": 4, "rounds": "auto", **measure}
    # In between what `noisy` takes: 0.01 s in one round and 0.02 s in the next.
    engine = {"use": "null", "step_seconds": 0.0141}
    scenario = null_scenario(stacks, measure=chosen, engine=engine, launcher="forking")
    return make_plan(
        read_draft(write_scenario(folder / "s.yaml", scenario)), MACHINE, PlanRequest()
    )


def benchmark(folder: Path, **settings: Any) -> Benchmark:
    """What runs plans on a results folder, and shows nothing."""
    quiet = {"progress": lambda: nullcontext(Reporter()), **settings}
    return Benchmark(results=str(folder / "results"), machine=MACHINE, **quiet)


def measured(folder: Path, plan: Plan, **settings: Any) -> tuple[Summary, dict[str, int], int]:
    """The comparison, how many runs each stack has, and the number of sessions."""
    ended: list[Measured] = []
    run_plans([plan], benchmark(folder, **settings), ended.append)
    with open_store(folder / "results", write=False) as store:
        runs = Counter(run.experiment.stack.name for run in store.results())
        return ended[0].summaries[0], dict(runs), len(store.sessions())


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary]:
    """Results of a job whose open stack ran 12 rounds, and their comparison."""
    folder = tmp_path_factory.mktemp("looked")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCEL_BENCH_JOB", "nightly")
        summary, runs, sessions = measured(folder, plan_of(folder, STACKS))
    assert runs == {"baseline": 12, "slower": 5, "noisy": 12}
    assert sessions == 3
    return folder, summary


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results without time for more rounds."""
    folder = tmp_path_factory.mktemp("short")
    _, runs, sessions = measured(folder, plan_of(folder, STACKS), within=0.1)
    assert runs == dict.fromkeys(STACKS, 5)
    assert sessions == 1
    return folder


def copied(folder: Path, to: Path) -> Path:
    """The same results in another folder."""
    return Path(shutil.copytree(folder, to / "copy"))


def test_open_stacks_alone_run_more_rounds_beside_the_baseline(
    looked: tuple[Path, Summary], tmp_path: Path
) -> None:
    folder, summary = looked
    _, slower, noisy = summary.experiments
    assert (slower.verdict, slower.rounds, slower.looks) == ("worse", 5, 1)
    assert (noisy.verdict, noisy.rounds, noisy.looks) == ("inconclusive", 12, 3)
    assert {row.status for row in summary.experiments} == {Status.OK}

    # Resumed, nothing is left to run but the answer stays.
    here = copied(folder, tmp_path)
    plan = plan_of(here, STACKS)
    assert (plan.rounds, plan.runs) == (5, 15)
    again, runs, sessions = measured(here, plan, resume=True)
    assert runs == {"baseline": 12, "slower": 5, "noisy": 12}
    assert sessions == 4
    assert [row.verdict for row in again.experiments] == ["not tested", "worse", "inconclusive"]


def test_a_stack_that_the_rounds_of_others_reopen_runs_none_more(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, STACKS)

    def after(rounds: dict[str, int]) -> Summary:
        """The comparison with these stacks open after so many rounds."""
        found = plan.summarize([])
        rows = [
            row.model_copy(update={"verdict": "inconclusive", "rounds": rounds[row.stack]})
            if row.stack in rounds
            else row
            for row in found.experiments
        ]
        return found.model_copy(update={"experiments": tuple(rows)})

    second = plan.of_open(after({"noisy": 5}), 10, plan)
    third = plan.of_open(after({"noisy": 10, "slower": 5}), 12, second)
    for more, rounds in ((second, 10), (third, 12)):
        names = [one.experiment.stack.name for one in more.planned]
        assert (names, more.rounds) == (["baseline", "noisy"], rounds)


def test_a_job_that_runs_again_keeps_the_looks_that_are_stored(
    looked: tuple[Path, Summary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCEL_BENCH_JOB", "nightly")
    here = copied(looked[0], tmp_path)
    summary, runs, sessions = measured(here, plan_of(here, STACKS), within=0.01)
    assert runs == {"baseline": 12, "slower": 5, "noisy": 12}
    assert sessions == 4
    assert [row.rounds for row in summary.experiments[1:]] == [5, 12]
    assert summary.experiments[2].looks == 3


def test_a_round_that_is_measured_again_is_so_once(short: Path, tmp_path: Path) -> None:
    here = copied(short, tmp_path)
    again = {"resume": True, "session": {"repeat_round": 2}}
    with pytest.raises(ScenarioError, match="only a round with a run that took far"):
        measured(here, plan_of(here, STACKS), **again)


def test_what_is_stored_says_how_long_further_rounds_take(
    short: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here = copied(short, tmp_path)
    _, runs, _ = measured(here, plan_of(here, STACKS), within=0.1, resume=True)
    assert runs == dict.fromkeys(STACKS, 5)
    assert "verdicts stay open: --within 0 s has no time for 10 rounds" in caplog.text


def test_a_scenario_that_cannot_run_here_does_not_end_the_others(
    short: Path, tmp_path: Path
) -> None:
    here = copied(short, tmp_path)
    skipped = [{"use": "faulty", "hook": "check_scenario", "fault": "return", "value": ["no"]}]
    nothing = plan_of(tmp_path, {"baseline": skipped})
    assert not nothing.runnable
    ended: list[Measured] = []
    settings = benchmark(here, within=0.1, resume=True)
    run_plans([nothing, plan_of(here, STACKS)], settings, ended.append)
    assert [one.experiments[0].status for one in ended[0].summaries] == [Status.SKIPPED, Status.OK]


def test_a_number_of_rounds_is_that_number(short: Path, tmp_path: Path) -> None:
    here = copied(short, tmp_path)
    _, runs, _ = measured(here, plan_of(here, STACKS, rounds=6), resume=True)
    assert runs == dict.fromkeys(STACKS, 6)
