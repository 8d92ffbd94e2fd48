"""Damage of a stored row is found by its checksum, shown, and spoils no other row."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from store.store_factory import change_payload, make_result, make_session

from accel_bench.errors import StoreError
from accel_bench.result import Result
from accel_bench.store.database import open_store
from accel_bench.store.records import readable
from accel_bench.store.selection import select_experiments

PAGE = 4096
"""Bytes of a page of SQLite's files."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A results folder with three runs, each with a marked log."""
    with open_store(tmp_path, write=True) as store:
        store.add_session(make_session())
        for number in range(3):
            store.add(run(number))
    return tmp_path


def run(number: int) -> Result:
    return make_result(f"run-{number}", round=number, log_tail=f"marked log {number}")


def assert_only_the_second_is_corrupt(folder: Path) -> None:
    with open_store(folder, write=False) as store:
        rows = store.rows()
        assert [row.corrupt for row in rows if row.run_id != "run-1"] == [False, False]
        assert [row.status for row in rows if row.corrupt] == ["corrupt"]
        assert store.results() == [run(0), run(2)]
        (row,), _ = select_experiments(store)  # which parses few of the samples
        assert [one.run_id for one in row.counted.values()] == ["run-0", "run-2"]
        with pytest.raises(StoreError, match=r"run-1: corrupt.*checksum"):
            store.find("run-1")


@pytest.mark.parametrize("table", ["documents", "samples"])
@pytest.mark.parametrize("bit", range(8))
def test_a_bit_flipped_in_the_file_makes_that_row_corrupt(
    folder: Path, bit: int, table: str
) -> None:
    with closing(sqlite3.connect(folder / "results.sqlite")) as connection:
        found = connection.execute(f"SELECT content FROM {table} WHERE run_id = 'run-1'")
        stored = b"run-1" + found.fetchone()[0]
    content = bytearray((folder / "results.sqlite").read_bytes())
    assert content.count(stored) == 1
    content[content.index(stored) + 30] ^= 1 << bit
    (folder / "results.sqlite").write_bytes(content)
    assert_only_the_second_is_corrupt(folder)


@pytest.mark.parametrize(
    "change",
    [
        "status = 'degraded'",
        "round = 7",
        "round = 'one'",
        "round = 1e999",
        "sweep = '{\"seed\":1}'",
        "sweep = x'ff00'",
        "stack = NULLIF(x'00', 1)",
        "started_at = '2026-01-05T08:00:02Z'",
        "checksum = ''",
        "schema_version = 0",
        "tokens_per_second = 1e9",
        "train_micro_batch_size = NULL",
        "resources_threads = 3",
        'broken = \'[["clock","wrong"]]\'',
        "content_checksum = ''",
    ],
)
def test_a_change_of_any_column_makes_that_row_corrupt(folder: Path, change: str) -> None:
    with closing(sqlite3.connect(folder / "results.sqlite")) as connection, connection:
        connection.execute(f"UPDATE runs SET {change} WHERE run_id = 'run-1'")
    assert_only_the_second_is_corrupt(folder)


def test_a_destroyed_page_costs_the_rows_on_it_and_no_others(folder: Path) -> None:
    """A page of zeros stops every common query of the table."""
    with open_store(folder, write=True) as store:
        for number in range(3, 60):
            store.add(run(number))
    content = bytearray((folder / "results.sqlite").read_bytes())
    page = content.index(b"run-30monday") // PAGE
    content[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    (folder / "results.sqlite").write_bytes(content)
    with open_store(folder, write=False) as store:
        rows = store.rows()
        results = store.results()
        read = (readable(columns) for group in store.by_experiment() for columns in group)
        grouped = [result for result in read if result is not None]
    assert grouped == results  # of one experiment
    assert {row.run_id for row in rows} == {f"run-{number}" for number in range(60)}
    corrupt = {row.run_id for row in rows if row.corrupt}
    assert "run-30" in corrupt
    assert [result.round for result in results] == [
        number for number in range(60) if f"run-{number}" not in corrupt
    ]
    assert len(results) > 40


def test_a_last_byte_that_is_gone_costs_no_more_than_a_row(folder: Path) -> None:
    content = (folder / "results.sqlite").read_bytes()
    (folder / "results.sqlite").write_bytes(content[:-1])
    with open_store(folder, write=False) as store:
        assert len(store.rows()) == 3
        assert len(store.results()) + sum(row.corrupt for row in store.rows()) == 3


def test_a_corrupt_row_stays_beside_a_new_attempt(folder: Path) -> None:
    change_payload(folder, "run-1", "marked", "market")
    with open_store(folder, write=True) as store:
        with pytest.raises(StoreError, match="already"):
            store.add(run(1))
        store.add(make_result("run-1b", round=1))
        assert {row.run_id: row.corrupt for row in store.rows()} == {
            "run-0": False,
            "run-1": True,
            "run-1b": False,
            "run-2": False,
        }
