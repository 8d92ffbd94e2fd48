"""Flat rows have units in their names; identities are compared key by key."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from accel_bench_stored_runs.view import listing_report, results_report
from analysis_factory import LORA, UPDATE, make_rank
from analysis_factory import make_result as make_run
from sqlalchemy import update
from store.store_factory import make_experiment, make_result, make_session

from accel_bench.analysis.tables.listing import differing_keys
from accel_bench.job import Job
from accel_bench.report.formats import render_report
from accel_bench.result import TensorUpdate
from accel_bench.store.database import open_store
from accel_bench.store.listing import list_runs
from accel_bench.store.schema import RUNS
from accel_bench.store.sqlite import FILE_NAME


def make_job(folder: Path, run_id: str, **fields: Any) -> Job:
    """The job of an attempt."""
    places = {"folder": str(folder), "cache_folder": str(folder)}
    return Job(run_id=run_id, experiment=make_experiment(), **places, **fields)


def test_attempts_without_a_result_are_listed_once_as_unfinished(tmp_path: Path) -> None:
    attempts = tmp_path / "runs" / "monday"
    for name, text in (
        ("stored", make_job(attempts, "run-1").model_dump_json()),
        ("cut", make_job(attempts, "run-2", round=3).model_dump_json()),
        ("torn", '{"run_id": "run-3", '),
    ):
        (attempts / name).mkdir(parents=True)
        (attempts / name / "job.json").write_text(text, encoding="utf8")
    with open_store(tmp_path, write=True) as store:
        store.add_session(make_session())
        store.add(make_result("run-1"))
        rows = list_runs(store, sorted(attempts.iterdir()))[0]
    shown = [[row[key] for key in ("run_id", "stack", "round", "status")] for row in rows]
    assert shown[1:] == [
        ["run-2", "lora", 3, "unfinished"],
        ["torn", None, None, "unfinished"],
    ]
    assert "unfinished" in render_report(listing_report(rows), "table")


def test_a_table_shows_the_first_corrupt_runs_and_counts_the_others(tmp_path: Path) -> None:
    """A person reads no 300,000 of them, which took a third of the seconds; programs get all."""
    with open_store(tmp_path, write=True) as store:
        store.add_session(make_session())
        for number in range(5):
            store.add(make_result(f"run-{number}", started_at=f"2026-01-01T00:00:0{number}Z"))
        with store.changing() as connection:
            damaged = RUNS.c.run_id != "run-3"
            connection.execute(update(RUNS).where(damaged).values(stack="other"))
        cut_off = tmp_path / "run-4"  # Its row is left out, and it is stored all the same.
        cut_off.mkdir()
        rows, left_out = list_runs(store, [cut_off], most_corrupt=2)
        whole, none = list_runs(store, [cut_off])
    assert [row["run_id"] for row in rows] == ["run-0", "run-1", "run-3"]
    assert [row["status"] for row in rows] == ["corrupt", "corrupt", "ok"]
    assert (left_out, none, len(whole)) == (2, 0, 5)
    shown = render_report(listing_report(rows, left_out), "table").splitlines()
    assert shown[-1] == "2 more runs are corrupt; `--format json` or `csv` lists all"
    assert "more runs" not in render_report(listing_report(whole), "table")


def test_bytes_that_are_no_text_stop_no_listing_and_no_row_comes_twice(tmp_path: Path) -> None:
    """Rows are fetched a few at once, so that some are listed before the damaged one is read."""
    ids = [f"run-{number}" for number in range(10)]
    with open_store(tmp_path, write=True) as store:
        store.add_session(make_session())
        for run_id in ids:
            store.add(make_result(run_id, started_at=f"2026-01-01T00:00:0{run_id[-1]}Z"))
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as database, database:
        database.execute("UPDATE runs SET stack = CAST(X'61ff62' AS TEXT) WHERE run_id = 'run-6'")
        database.execute("UPDATE runs SET run_id = CAST(X'ff' AS TEXT) WHERE run_id = 'run-8'")
    with open_store(tmp_path, write=False) as store:
        for _ in range(2):  # The second time on a connection that keeps such bytes already.
            rows, _ = list_runs(store)
            assert [row["run_id"] for row in rows] == [*ids[:8], "?", ids[9]]
            assert [row["run_id"] for row in rows if row["status"] == "corrupt"] == ["run-6", "?"]
            assert len(store.results()) == 8
    assert rows[6]["stack"] == "a?b"


def test_differences_are_dotted_keys_with_both_values() -> None:
    left = {"work": {"seed": 0, "dtype": "float32"}, "uses": [1], "same": {"a": 1}}
    right = {"work": {"seed": 1, "dtype": "float32"}, "uses": [1, 2], "same": {"a": 1}, "new": 1}
    assert differing_keys(left, right) == [
        ("work.seed", 0, 1),
        ("uses", [1], [1, 2]),
        ("new", None, 1),
    ]


def test_a_number_and_a_truth_value_differ() -> None:
    assert differing_keys({"a": 1}, {"a": True}) == [("a", 1, True)]


def test_seconds_and_bytes_of_the_update_stand_with_each_run(tmp_path: Path) -> None:
    tensor = TensorUpdate(elements=100, sketch=(1.0,) * 31, norm=5.0)
    changes = {"tensors": {"head": tensor}, "kept_bytes": 400, "steps": 3}
    rank = make_rank().model_copy(update={"update": UPDATE.model_copy(update=changes)})
    report = results_report([make_run(LORA, ranks=[rank])], tmp_path, whole=True)
    shown = "".join(section.text or "" for section in report.sections)
    assert "seconds: 0.01\n    kept_bytes: 400" in shown
