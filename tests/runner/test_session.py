"""Rounds: interleaved, resumed as a whole, tried again, given up.

With real workers where a process is killed, or watched; the others are forked.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fault_plugins.active import faulty_installed
from faults.program import null_scenario, write_scenario
from runner.places import Divided, OnePlace
from several_ranks.scenarios import forking

from accel_bench.errors import AccelBenchError, ScenarioError, StoreUnavailableError
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import Plan, Planned, PlanRequest, make_plan
from accel_bench.result import Result, Status
from accel_bench.runner.heartbeats import Progress
from accel_bench.runner.interrupted import open_results
from accel_bench.runner.session import Session
from accel_bench.runner.williams_design import williams_rounds
from accel_bench.scenario.find import read_draft
from accel_bench.store import records
from accel_bench.store.database import open_store

MACHINE = read_machine()

FORKED = {"launcher": "forking"}
"""Ranks that import nothing anew."""


class Notes:
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.runs = 0
        self.starts: list[tuple[str, str]] = []
        self.progress: list[Progress] = []
        self.results: list[Result] = []
        self.drops: list[tuple[str, str]] = []

    def on_plan(self, plan: Plan, runs: int, seconds: float | None) -> None:
        self.runs = runs

    def on_start(self, planned: Planned, what: str) -> None:
        self.starts.append((planned.experiment.stack.name, what))

    def on_progress(self, planned: Planned, what: str, progress: Progress) -> None:
        self.progress.append(progress)

    def on_result(self, planned: Planned, what: str, result: Result) -> None:
        self.results.append(result)

    def on_drop(self, planned: Planned, reason: str) -> None:
        self.drops.append((planned.experiment.stack.name, reason))


@pytest.fixture(scope="module", autouse=True)
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    """The faulty plugins are installed, here and in workers, and a launcher that forks."""
    site = tmp_path_factory.mktemp("site")
    with faulty_installed(site) as patch, forking(site, trains=False):
        yield patch


def run_session(
    folder: Path, scenario: dict[str, Any], notes: Notes | None = None, **session: Any
) -> Notes:
    """One session on the results folder."""
    path = write_scenario(folder / "scenario.yaml", scenario)
    plan = make_plan(read_draft(path), MACHINE, PlanRequest())
    notes = notes or Notes()
    with open_store(folder / "results", write=True) as store:
        Session(store, MACHINE, notes, **session).run_plan(plan)
    return notes


def stored(folder: Path) -> list[Result]:
    """All rows."""
    with open_store(folder / "results", write=False) as store:
        return store.results()


def warmups(rows: list[Result]) -> list[int]:
    """Warm-up steps of each run."""
    windows = [row.ranks[0].window for row in rows]
    return [len(window.warmup) for window in windows if window is not None]


def test_rounds_are_interleaved_in_an_order_that_is_stored_and_resuming_fills_a_gap(
    tmp_path: Path,
) -> None:
    measure = {"warmup": 1, "steps": 2, "rounds": 3, "seed": 5}
    scenario = null_scenario({"baseline": [], "a": [], "b": []}, measure=measure, **FORKED)
    notes = run_session(tmp_path, scenario)
    wanted = williams_rounds(["baseline", "a", "b"], 3, 5)
    rows = stored(tmp_path)
    effective = [(row.round, row.position, row.experiment.stack.name) for row in rows]
    assert effective == [(r, p, name) for r in range(3) for p, name in enumerate(wanted[r])]
    with open_store(tmp_path / "results", write=False) as store:
        (session,) = store.sessions()
    assert session.document["order"] == {"{}": wanted}
    assert notes.runs == 9
    assert notes.results == rows
    assert {row.status for row in rows} == {Status.OK}

    # A round that was lost in the middle is run again as itself, with its own order of stacks.
    lost = next(r for r in rows if (r.round, r.experiment.stack.name) == (1, "a"))
    database = sqlite3.connect(tmp_path / "results" / "results.sqlite")
    with database:
        database.execute("DELETE FROM runs WHERE run_id = ?", (lost.run_id,))
    database.close()
    resumed = run_session(tmp_path, scenario, resume=True)
    assert [r.round for r in resumed.results] == [1, 1, 1]
    assert [r.experiment.stack.name for r in resumed.results] == wanted[1]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("ACCEL_BENCH_GRACE_SECONDS", "long"), ("ACCEL_BENCH_CACHE", "/dev/null/cache")],
)
def test_a_wrong_variable_is_refused_before_anything_is_stored_or_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(AccelBenchError, match=variable):
        run_session(tmp_path, null_scenario({"baseline": []}))
    with open_store(tmp_path / "results", write=False) as store:
        assert store.sessions() == []


def test_the_warm_up_that_round_1_finds_is_frozen_for_all(tmp_path: Path) -> None:
    measure = {"warmup": "auto", "steps": 2, "rounds": 2}
    scenario = null_scenario({"baseline": [], "other": []}, measure=measure, **FORKED)
    run_session(tmp_path, scenario)
    found = warmups(stored(tmp_path))
    assert min(found[:2]) >= 10
    assert found[2:] == [max(found[:2])] * 2
    longer = {**scenario, "measure": {**measure, "rounds": 3}}
    run_session(tmp_path, longer, resume=True)
    assert warmups(stored(tmp_path))[4:] == [max(found)] * 2


def test_resuming_runs_unfinished_rounds_again_with_their_baseline(
    tmp_path: Path, faulty: pytest.MonkeyPatch
) -> None:
    faulty.setenv("FAULTY_COUNTER", str(tmp_path / "counter"))
    faulty.setenv("FAULTY_SHARE", "0.3")
    stacks = {"baseline": [], "shaky": [{"use": "faulty", "fault": "sometimes"}]}
    measure = {"warmup": 1, "steps": 4, "rounds": 3}
    scenario = null_scenario(stacks, measure=measure, **FORKED)
    run_session(tmp_path, scenario)
    first = stored(tmp_path)
    ended = [row.status.value for row in first if row.experiment.stack.name == "shaky"]
    assert ended == ["crashed", "ok", "crashed"]

    faulty.setenv("FAULTY_SHARE", "0")
    notes = run_session(tmp_path, scenario, resume=True)
    assert notes.runs == 4
    again = [(row.round, row.experiment.stack.name) for row in stored(tmp_path)[len(first) :]]
    assert sorted(again) == [(0, "baseline"), (0, "shaky"), (2, "baseline"), (2, "shaky")]
    assert run_session(tmp_path, scenario, resume=True).runs == 0
    assert len(stored(tmp_path)) == len(first) + 4


def test_a_stack_that_would_end_so_again_is_given_up_and_not_tried_again(tmp_path: Path) -> None:
    stacks = {"baseline": [], "hopeless": [{"use": "faulty", "fault": "oom"}]}
    measure = {"warmup": 1, "steps": 4, "rounds": 3}
    notes = run_session(tmp_path, null_scenario(stacks, measure=measure, **FORKED), retries=2)
    names = [row.experiment.stack.name for row in notes.results]
    assert (names.count("hopeless"), names.count("baseline")) == (1, 3)


@pytest.mark.parametrize("prune", [True, False])
def test_points_above_one_that_ran_out_of_memory_are_left_out(tmp_path: Path, prune: bool) -> None:
    stacks = {"baseline": [], "hopeless": [{"use": "faulty", "fault": "oom"}]}
    measure = {"warmup": 1, "steps": 4, "rounds": 1, "prune": prune}
    scenario = null_scenario(stacks, measure=measure, **FORKED)
    scenario["sweep"] = {"train.micro_batch_size": [2, 1, 4], "train.seed": [0, 1]}
    notes = run_session(tmp_path, scenario)
    sweeps = [
        row.experiment.sweep for row in notes.results if row.experiment.stack.name != "baseline"
    ]
    ran = [tuple(sweep.values()) for sweep in sweeps]
    # Of what is smaller nothing is known, and another seed is another axis.
    assert ran == ([(2, 0), (2, 1), (1, 0), (1, 1)] + ([] if prune else [(4, 0), (4, 1)]))
    reason = "train.micro_batch_size=2 ran out of memory, and this needs more"
    assert [drop[0] for drop in notes.drops] == ["hopeless"] * (2 if prune else 0)
    assert all(drop[1].startswith(reason) for drop in notes.drops)
    plan = make_plan(read_draft(tmp_path / "scenario.yaml"), MACHINE, PlanRequest())
    rows = plan.summarize(stored(tmp_path)).experiments
    left_out = [row for row in rows if row.status is Status.SKIPPED]
    assert len(left_out) == (2 if prune else 0)
    assert all(row.reasons[0].startswith(reason) for row in left_out)


def test_a_lost_run_is_tried_again_as_often_as_asked(tmp_path: Path) -> None:
    stacks = {"lost": [{"use": "faulty", "fault": "kill"}]}
    notes = run_session(tmp_path, null_scenario(stacks), retries=2)
    assert [(row.attempt, row.status) for row in notes.results] == [
        (attempt, Status.KILLED) for attempt in range(3)
    ]
    assert [what for _, what in notes.starts] == [
        "round 1 of 1",
        "round 1 of 1, attempt 2",
        "round 1 of 1, attempt 3",
    ]


def test_a_round_whose_place_is_lost_is_run_again_whole_on_another_one(tmp_path: Path) -> None:
    scenario = null_scenario({"baseline": [], "other": []})
    scenario["sweep"] = {"train.micro_batch_size": [1, 2]}
    places = Divided([OnePlace("a", True, False), OnePlace("b")])
    notes = run_session(tmp_path, scenario, allocation=places)
    attempts: dict[str, list[int]] = {}
    for row in notes.results:
        attempts.setdefault(row.experiment.point, []).append(row.attempt)
    assert sorted(attempts.values()) == [[0, 0], [0, 1, 0]]
    assert len(stored(tmp_path)) == 5


class Moving(OnePlace):
    """A place whose node is replaced before the third run."""

    def is_ready(self) -> bool:
        self.name += "+"
        return True

    def node_names(self) -> list[str]:
        return ["new" if len(self.name) > len("place++") else "old"]


def test_a_round_whose_node_is_replaced_is_prepared_and_run_again_whole(tmp_path: Path) -> None:
    stacks = {"baseline": [], "prepared": ["faulty-preparation"]}
    measure = {"warmup": 1, "steps": 2, "rounds": 1}
    scenario = null_scenario(stacks, measure=measure, **FORKED)
    notes = run_session(tmp_path, scenario, allocation=Divided([Moving("place")]))
    first, second = notes.starts[1][0], notes.starts[4][0]
    assert notes.starts == [
        ("prepared", "prepare"),
        (first, "round 1 of 1"),
        ("prepared", "prepare"),
        (first, "round 1 of 1, attempt 2"),
        (second, "round 1 of 1"),
    ]
    assert [row.attempt for row in stored(tmp_path)] == [0, 1, 0]


def test_a_preparation_comes_once_before_all_rounds_and_is_not_stored(tmp_path: Path) -> None:
    stacks = {"baseline": [], "prepared": ["faulty-preparation"]}
    measure = {"warmup": 1, "steps": 2, "rounds": 2}
    notes = run_session(tmp_path, null_scenario(stacks, measure=measure, **FORKED))
    assert notes.starts[0] == ("prepared", "prepare")
    assert [what for _, what in notes.starts].count("prepare") == 1
    assert len(stored(tmp_path)) == 4


def test_a_run_too_large_for_a_row_is_stored_without_its_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAXIMUM_PAYLOAD_BYTES", 40_000)
    measure = {"warmup": 1, "steps": 400, "rounds": 1}
    scenario = null_scenario({"baseline": []}, measure=measure, **FORKED)
    run_session(tmp_path, scenario, retries=1)
    (row,) = stored(tmp_path)
    assert (row.status, row.ranks) == (Status.INVALID, ())
    assert f"stays in their files in {row.folder}" in row.reasons[-1]
    assert (tmp_path / "results" / row.folder / "rank0.json").stat().st_size > 40_000


def test_a_result_that_the_database_did_not_take_in_time_is_stored_by_the_next_one(
    tmp_path: Path,
) -> None:
    place = tmp_path / "results"
    scenario = null_scenario({"baseline": [], "other": []}, **FORKED)
    plan = make_plan(
        read_draft(write_scenario(tmp_path / "s.yaml", scenario)), MACHINE, PlanRequest()
    )
    with closing(sqlite3.connect(place.with_name("unused"), isolation_level=None)) as other:

        class Locking(Notes):
            def on_start(self, planned: Planned, what: str) -> None:
                super().on_start(planned, what)
                other.execute("ATTACH ? AS results", (str(place / "results.sqlite"),))
                other.execute("BEGIN IMMEDIATE")
                other.execute("DELETE FROM results.labels")

        notes = Locking()
        with open_store(place, write=True, timeout_seconds=0) as store:
            with pytest.raises(StoreUnavailableError, match=r"locked.* is kept in .*/kept\.json"):
                Session(store, MACHINE, notes).run_plan(plan)
        other.execute("ROLLBACK")
    assert len(notes.starts) == 1
    assert stored(tmp_path) == []
    with open_results(place) as store:  # reading changes nothing
        assert store.count() == 0
    for _ in range(2):
        with open_results(place, write=True) as store:
            (row,) = store.results()
    assert row.status.completed
    folder = place / row.folder
    assert (folder / "result.json").exists()
    assert not (folder / "kept.json").exists()


def test_the_parent_hears_of_steps_while_they_are_taken(tmp_path: Path) -> None:
    engine = {"use": "null", "step_seconds": 0.05}
    measure = {"warmup": 2, "steps": 20, "rounds": 1}
    notes = run_session(tmp_path, null_scenario({"baseline": []}, engine=engine, measure=measure))
    steps = [progress.step for progress in notes.progress]
    assert steps == sorted(steps)
    assert any(0 < step < 22 for step in steps)
    assert "window" in {progress.phase for progress in notes.progress}


def test_a_folder_removed_while_it_runs_costs_that_run_alone(tmp_path: Path) -> None:
    class Removing(Notes):
        def on_progress(self, planned: Planned, what: str, progress: Progress) -> None:
            for folder in (tmp_path / "results" / "runs").glob("*/01-1-*"):
                shutil.rmtree(folder)

    measure = {"warmup": 1, "steps": 40, "rounds": 1}
    engine = {"use": "null", "step_seconds": 0.02}
    scenario = null_scenario({"baseline": [], "other": []}, measure=measure, engine=engine)
    run_session(tmp_path, scenario, notes=Removing())
    lost, sound = stored(tmp_path)
    assert lost.status is Status.INFRA_ERROR
    assert lost.reasons[0].startswith(f"{tmp_path / 'results' / lost.folder} was removed while it")
    assert sound.status.completed, sound.reasons  # A busy machine degrades a run.


def time_runs(folder: Path, slow: tuple[int, str] | None = None) -> None:
    """Store all runs with steps of 10 ms, whatever the machine took; those of `slow` take 300."""
    runs = stored(folder)
    database = sqlite3.connect(folder / "results" / "results.sqlite")
    with database:
        for table in ("runs", "documents", "samples"):
            database.execute(f"DELETE FROM {table}")
    database.close()
    with open_store(folder / "results", write=True) as store:
        for run in runs:
            step_seconds = 0.3 if (run.round, run.experiment.stack.name) == slow else 0.01
            store.add(timed(run, step_seconds))


def timed(run: Result, step_seconds: float) -> Result:
    """Return a run whose steps took this long."""
    (rank,) = run.ranks
    assert rank.window is not None
    steps = [s.model_copy(update={"seconds": step_seconds}) for s in rank.window.samples]
    ended = rank.window.started + step_seconds * len(steps)
    window = rank.window.model_copy(update={"samples": tuple(steps), "ended": ended})
    return run.model_copy(update={"ranks": (rank.model_copy(update={"window": window}),)})


def test_a_round_that_a_slow_run_spoils_is_measured_again_by_all_stacks_and_once(
    tmp_path: Path,
) -> None:
    engine = {"use": "null", "step_seconds": 0.01}
    measure = {"warmup": 1, "steps": 4, "rounds": 5}
    stacks = {"baseline": [], "other": []}
    scenario = null_scenario(stacks, measure=measure, engine=engine, **FORKED)
    run_session(tmp_path, scenario)
    time_runs(tmp_path, slow=(2, "other"))
    first = stored(tmp_path)
    with pytest.raises(ScenarioError, match=r"--repeat-round 4: .* one does: \[3\]"):
        run_session(tmp_path, scenario, resume=True, repeat_round=3)
    notes = run_session(tmp_path, scenario, resume=True, repeat_round=2)
    again = [(r.round, r.replaces) for r in notes.results]
    assert again == [(2, first[0].session)] * 2
    assert {r.experiment.stack.name for r in notes.results} == {"baseline", "other"}
    assert len(stored(tmp_path)) == len(first) + 2
    time_runs(tmp_path)
    with pytest.raises(ScenarioError, match="and once; no round has one"):
        run_session(tmp_path, scenario, resume=True, repeat_round=2)
    assert run_session(tmp_path, scenario, resume=True).runs == 0
