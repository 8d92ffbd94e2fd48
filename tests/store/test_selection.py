"""Which runs words mean: ids, stacks of the newest command, stacks of a session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.program import call
from sqlalchemy import select
from store.store_factory import make_experiment, make_result, make_session

from accel_bench.analysis import aggregate
from accel_bench.analysis.aggregate import collect_experiments
from accel_bench.analysis.checks.audit import Broken, audit
from accel_bench.errors import StoreError
from accel_bench.result import Result
from accel_bench.scenario.experiment import Experiment
from accel_bench.store import fields, records, rows
from accel_bench.store.database import Store, open_store
from accel_bench.store.listing import list_runs
from accel_bench.store.schema import RUNS
from accel_bench.store.selection import select_experiments, select_pairs

LORA, NF4, LONG = (
    make_experiment("lora"),
    make_experiment("nf4", train={"seed": 1}),
    make_experiment("lora", train={"seed": 2}),
)


def fill(folder: Path, *rows: tuple[str, Experiment, str]) -> Path:
    """A results folder with a run for each session, experiment and minute."""
    with open_store(folder, write=True) as store:
        for session in dict.fromkeys(session for session, _, _ in rows):
            store.add_session(make_session(session))
        for number, (session, experiment, minute) in enumerate(rows):
            started = f"2026-01-05T08:{minute}:00Z"
            run_id = f"run-{number}"
            store.add(make_result(run_id, session, experiment=experiment, started_at=started))
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Monday with both stacks in two looks, and tuesday with one of them alone."""
    folder = fill(
        tmp_path / "results",
        ("sunday", LORA, "01"),
        ("monday", LORA, "02"),
        ("monday", NF4, "03"),
        ("monday.2", LORA, "04"),
        ("monday.2", NF4, "05"),
        ("tuesday", LORA, "06"),
    )
    with open_store(folder, write=False) as store:
        yield store


def test_experiments_are_read_one_after_another_and_each_is_validated_once(store: Store) -> None:
    """A store of 10,000 runs took 700 MB, and all it does for a second look at each object."""
    groups = [[row["run_id"] for row in one] for one in store.by_experiment()]
    assert sorted(groups) == [["run-0", "run-1", "run-3", "run-5"], ["run-2", "run-4"]]
    records._shared_experiment.cache_clear()
    found, baselines = select_experiments(store)
    assert records._shared_experiment.cache_info().misses == 2
    assert set(baselines) == {"sunday", "monday", "monday.2", "tuesday"}
    whole = collect_experiments(store.results())
    assert [(row.name, row.speeds, row.ending) for row in found] == [
        (row.name, row.speeds, row.ending) for row in whole
    ]
    assert [list(row.counted) for row in found] == [list(row.counted) for row in whole]
    runs = [run for row in found for run in row.counted.values()]
    assert len({id(run.experiment) for run in runs}) == 2
    windows = [window for run in runs if (window := run.ranks[0].window) is not None]
    assert [len(window.samples) > 0 for window in windows] == [True] * 4  # `middle` and `last`
    (chosen,), _ = select_experiments(store, RUNS.c.session == "tuesday")
    assert [*chosen.counted] == [("tuesday", 0)]


def test_runs_that_have_passed_the_self_audit_are_not_audited_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    audited = []

    def noted(run: Result) -> list[Broken]:
        audited.append(run.run_id)
        return audit(run)

    monkeypatch.setattr(aggregate, "audit", noted)
    select_experiments(store)
    assert audited == []
    monkeypatch.setattr(rows, "FIGURES_VERSION", rows.FIGURES_VERSION + 1)
    select_experiments(store)  # what another version found does not count
    assert sorted(audited) == [f"run-{number}" for number in range(6)]


def test_speeds_that_are_too_long_for_a_column_are_read_from_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fields, "MAXIMUM_COLUMN_BYTES", 100)
    with open_store(fill(tmp_path, ("sunday", LORA, "01")), write=False) as store:
        assert [row["throughput"] for row in store.fetch(select(RUNS.c.throughput))] == [None]
        (row,), _ = select_experiments(store)
        assert row.speeds == collect_experiments(store.results())[0].speeds != {}


def ids(store: Store, a: str, b: str, other: Store | None = None) -> tuple[list[str], list[str]]:
    """Run ids of the only pair."""
    ((left, right),) = select_pairs(a, b, store, other)
    return [run.run_id for run in left], [run.run_id for run in right]


def test_bare_names_mean_the_rounds_too_that_the_newest_command_has_resumed(tmp_path: Path) -> None:
    folder = fill(tmp_path, ("monday", LORA, "01"), ("monday", NF4, "02"), ("monday", LONG, "03"))
    with open_store(folder, write=True) as store:
        command = {"command": ("accel-bench", "run", "--resume")}
        store.add_session(make_session("resumed").model_copy(update=command))
        for name, experiment, minute in (("a", LORA, "04"), ("b", NF4, "05")):
            started = f"2026-01-05T08:{minute}:00Z"
            store.add(make_result(name, "resumed", experiment=experiment, started_at=started))
        assert ids(store, "lora", "nf4") == (["run-0", "a"], ["run-1", "b"])
        assert ids(store, "a", "b") == (["a"], ["b"])


def test_bare_names_mean_the_newest_command_that_ran_both_with_all_its_looks(store: Store) -> None:
    assert ids(store, "lora", "nf4") == (["run-1", "run-3"], ["run-2", "run-4"])


def test_a_name_within_a_session_means_that_session(store: Store) -> None:
    assert ids(store, "sunday/lora", "monday.2/nf4") == (["run-0"], ["run-4"])
    assert ids(store, "/lora", "nf4")[0] == ["run-0", "run-1", "run-3", "run-5"]


def test_an_id_means_all_runs_of_the_experiment_and_a_run_s_id_that_run(store: Store) -> None:
    assert ids(store, LORA.id[:8], "run-2") == (["run-0", "run-1", "run-3", "run-5"], ["run-2"])


def test_b_may_lie_in_another_folder(store: Store, tmp_path: Path) -> None:
    other = fill(tmp_path / "other", ("friday", LORA, "01"), ("friday", LORA, "02"))
    with open_store(other, write=False) as second:
        assert ids(store, "lora", "lora", second) == (["run-5"], ["run-0", "run-1"])


def test_what_means_several_experiments_is_refused_with_the_ids(tmp_path: Path) -> None:
    folder = fill(tmp_path / "several", ("monday", LORA, "01"), ("monday", LONG, "02"))
    with open_store(folder, write=False) as store:
        with pytest.raises(StoreError, match=r"means several experiments: .*give an id") as raised:
            select_pairs("lora", LORA.id, store)
        assert LORA.id in str(raised.value)
        assert LONG.id in str(raised.value)
        assert ids(store, LORA.id, LONG.id) == (["run-0"], ["run-1"])


def test_sweep_points_that_both_have_are_pairs_of_their_own(tmp_path: Path) -> None:
    points = [
        (stack, make_experiment(stack, {"train.seed": seed}, train={"seed": seed}))
        for seed in (1, 2)
        for stack in ("lora", "nf4")
    ]
    rows = [("monday", experiment, f"0{n}") for n, (_, experiment) in enumerate(points)]
    with open_store(fill(tmp_path / "swept", *rows), write=False) as store:
        found = select_pairs("lora", "nf4", store)
    assert [(a[0].run_id, b[0].run_id) for a, b in found] == [
        ("run-0", "run-1"),
        ("run-2", "run-3"),
    ]


def test_unknown_words_are_refused_with_what_is_there(store: Store) -> None:
    with pytest.raises(StoreError, match="begins with 'nf5'"):
        select_pairs("lora", "nf5", store)
    with pytest.raises(StoreError, match=r"no stack is called 'nf5'; did you mean 'nf4'\?"):
        select_pairs("lora", "nf5", store)
    with pytest.raises(StoreError, match=r"no stack is called 'quantized'; there are .*lora.*nf4"):
        select_pairs("lora", "quantized", store)
    with pytest.raises(StoreError, match="begins with 'sunday' and has a stack called 'nf4'"):
        select_pairs("lora", "sunday/nf4", store)


def test_a_run_has_a_number_that_stays_whatever_is_stored_later(tmp_path: Path) -> None:
    folder = fill(tmp_path / "numbered", ("monday", LORA, "05"), ("monday", NF4, "06"))
    with open_store(folder, write=True) as store:
        before = store.numbers()
        early = "2020-01-01T00:00:00Z"
        store.add(make_result("an-import", "monday", experiment=LORA, started_at=early))
        assert before == {"run-0": 1, "run-1": 2}
        assert store.numbers() == {**before, "an-import": 3}
        assert [run["number"] for run in list_runs(store)[0]] == [3, 1, 2]  # by their start
        assert store.run_ids("#2") == store.run_ids("2") == ["run-1"]
        assert ids(store, "#3", "#2") == (["an-import"], ["run-1"])
        for word in ("#0", "#4", "#99999999999999999999", "#", "#x"):
            with pytest.raises(StoreError, match="the newest are"):
                store.run_ids(word)


def test_what_an_id_begins_with_is_no_number(tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    with open_store(folder, write=True) as store:
        store.add_session(make_session("monday"))
        for run_id in ("first", "1st"):
            store.add(make_result(run_id, "monday", experiment=LORA))
        assert store.run_ids("1") == ["1st"]
        assert store.run_ids("#1") == ["first"]


@pytest.mark.box
def test_results_are_shown_exported_and_compared_by_their_numbers(tmp_path: Path) -> None:
    folder = str(fill(tmp_path / "named", ("monday", LORA, "05"), ("monday", NF4, "06")))
    listed = call("results", "list", "--results", folder).out
    assert [line.split()[:2] for line in listed.splitlines()[2:]] == [
        ["#1", "run-0"],
        ["#2", "run-1"],
    ]
    assert "run_id: run-1" in call("results", "show", "#2", "--results", folder).out
    (exported,) = json.loads(call("results", "export", "2", "--results", folder).out)
    assert exported["run_id"] == "run-1"
    assert call("compare", "#1", "2", "--results", folder).code == 0
