"""A database from another person is read within limits: the bad row is named, the rest is read."""

from __future__ import annotations

import json
import resource
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Boolean
from store.store_factory import make_rank, make_result, make_session

from accel_bench.analysis.tables.listing import flat_figures
from accel_bench.errors import StoreError, UnreadableResultError
from accel_bench.store import records
from accel_bench.store.database import open_store
from accel_bench.store.listing import list_runs
from accel_bench.store.rows import content_checksum, with_checksum
from accel_bench.store.schema import MAXIMUM_PAYLOAD_BYTES, RUNS

DEEP = "[" * 1000 + "]" * 1000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A results folder with two runs."""
    with open_store(tmp_path, write=True) as store:
        store.add_session(make_session())
        for number in range(2):
            store.add(make_result(f"run-{number}", round=number))
    return tmp_path


@pytest.fixture
def limited() -> Iterator[None]:
    """The process may take 200 MiB more than it has: rows that are read together fail."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + 200 * 2**20, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def execute(folder: Path, *statements: str) -> None:
    """Change the database behind the store's back."""
    with closing(sqlite3.connect(folder / "results.sqlite")) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def forge(folder: Path, payload: str | None = None, **columns: Any) -> None:
    """Replace the document and columns of the first run, and give them their checksums."""
    with closing(sqlite3.connect(folder / "results.sqlite")) as connection, connection:
        connection.row_factory = sqlite3.Row
        (row,) = connection.execute("SELECT * FROM runs WHERE run_id = 'run-0'")
        changed = {**dict(row), **columns}
        if payload is not None:  # with its samples, as other programs may write it
            parts = {"documents": zlib.compress(payload.encode()), "samples": zlib.compress(b"[]")}
            for table, content in parts.items():
                query = f"UPDATE {table} SET content = ? WHERE run_id = 'run-0'"
                connection.execute(query, (content,))
            changed["content_checksum"] = content_checksum(*parts.values())
        del changed["checksum"]
        changed = with_checksum({**changed, **booleans(changed)})
        assignments = ", ".join(f"{name} = ?" for name in changed)
        values = list(changed.values())
        connection.execute(f"UPDATE runs SET {assignments} WHERE run_id = 'run-0'", values)


def booleans(row: dict[str, Any]) -> dict[str, bool]:
    """Columns that SQLite keeps as 0 and 1."""
    names = (one.name for one in RUNS.columns if isinstance(one.type, Boolean))
    return {name: bool(row[name]) for name in names if row[name] is not None}


def payload_with(**changes: str) -> str:
    """The first run's payload, in which the evidence or a number is another JSON text."""
    text = json.dumps(make_result("run-0").model_dump(mode="json"))
    for old, new in changes.items():
        before = {"evidence": '{"modules": 4}', "number": '"processed_tokens": 110'}[old]
        after = {"evidence": f'{{"a": {new}}}', "number": f'"processed_tokens": {new}'}[old]
        assert before in text
        text = text.replace(before, after)
    return text


@pytest.mark.parametrize(
    "payload",
    [
        payload_with(evidence="NaN"),
        payload_with(evidence="-Infinity"),
        payload_with(evidence="1e999"),
        payload_with(evidence="9" * 400),
        payload_with(evidence=f"{'9' * 24}.{'9' * 24}"),
        payload_with(number="9" * 400),
        payload_with(evidence=DEEP),
        "null",
        "",
    ],
    ids=["nan", "infinity", "beyond", "digits", "decimals", "tokens", "deep", "null", "empty"],
)
def test_a_row_that_cannot_be_read_is_named_and_the_other_is_read(
    folder: Path, payload: str
) -> None:
    forge(folder, payload)
    with open_store(folder, write=False) as store:
        assert [row["run_id"] for row in list_runs(store)[0]] == ["run-0", "run-1"]
        (other,) = store.results()
        assert other.run_id == "run-1" and flat_figures(other)["tokens_per_second"]
        assert [name for name, run in store.each() if run is None] == ["run-0"]
        with pytest.raises(StoreError, match="run-0"):
            store.find("run-0")


@pytest.mark.parametrize("column", ["sweep", "round", "status", "started_at"])
def test_a_column_may_hold_anything(folder: Path, column: str) -> None:
    forge(folder, **{column: DEEP})
    with open_store(folder, write=False) as store:
        assert {row.run_id for row in store.rows()} == {"run-0", "run-1"}
        assert len(list_runs(store)[0]) == 2


@pytest.mark.parametrize("place", ["reasons", pytest.param("documents", marks=pytest.mark.release)])
def test_rows_of_30_megabytes_are_named_and_not_loaded(
    folder: Path, place: str, limited: None
) -> None:
    names = ", ".join(RUNS.columns.keys())
    big = "substr(quote(zeroblob(16000000)), 1, 30000000)"
    copied = names.replace("run_id", "'big-' || value", 1)
    if place == "reasons":
        copied = copied.replace(" reasons,", f" {big},")
    document = f"CAST({big} AS BLOB)" if place == "documents" else "content"
    numbers = "(SELECT column1 AS value FROM (VALUES (1),(2),(3),(4),(5),(6),(7),(8)))"
    which = f"{numbers} WHERE run_id = 'run-0'"
    execute(
        folder,
        f"INSERT INTO runs ({names}) SELECT {copied} FROM runs, {which}",
        f"INSERT INTO documents SELECT 'big-' || value, {document} FROM documents, {which}",
        f"INSERT INTO samples SELECT 'big-' || value, content FROM samples, {which}",
    )
    reason = "larger than" if place == "documents" else "does not fit its checksum"
    with open_store(folder, write=False) as store:
        assert {row.run_id for row in store.rows() if not row.corrupt} == {"run-0", "run-1"}
        assert len(store.results()) == 2
        with pytest.raises(StoreError, match=f"big-1: corrupt, .*{reason}"):
            store.find("big-1")


def test_a_small_document_that_grows_without_end_is_not_unpacked(
    folder: Path, limited: None
) -> None:
    forge(folder, " " * (MAXIMUM_PAYLOAD_BYTES + 1))
    with open_store(folder, write=False) as store:
        with pytest.raises(StoreError, match=f"run-0.*larger than {MAXIMUM_PAYLOAD_BYTES}"):
            store.find("run-0")


def test_a_run_that_could_not_be_read_again_is_not_stored(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAXIMUM_PAYLOAD_BYTES", 100)
    with open_store(folder, write=True) as store, pytest.raises(StoreError, match="fewer steps"):
        store.add(make_result("run-2"))


@pytest.mark.parametrize("reason", ["half \ud83d", 1e120, 10**40])
def test_a_value_that_could_not_be_read_again_is_not_stored(folder: Path, reason: Any) -> None:
    rank = make_rank().model_copy(update={"evidence": {"lora": {"shown": reason}}})
    with open_store(folder, write=True) as store:
        with pytest.raises(
            UnreadableResultError, match=r"'run-2'.*ranks\.0\.evidence\.lora\.shown"
        ):
            store.add(make_result("run-2", ranks=(rank,)))
        assert all(run for _, run in store.each())
        assert [*store.present(["run-2"])] == []


def test_the_version_may_stand_twice_and_not_twice_differently(folder: Path) -> None:
    execute(folder, "INSERT INTO meta SELECT * FROM meta")
    with open_store(folder, write=False) as store:
        assert len(store.results()) == 2
    execute(folder, "INSERT INTO meta VALUES (1, 'someone')")
    with (
        pytest.raises(StoreError, match="several schema versions"),
        open_store(folder, write=False),
    ):
        pass


@pytest.mark.parametrize("table", ["meta", "runs", "sessions"])
def test_a_view_in_the_place_of_a_table_is_refused(folder: Path, table: str) -> None:
    execute(
        folder,
        f"ALTER TABLE {table} RENAME TO other",
        f"CREATE VIEW {table} AS SELECT * FROM other",
    )
    with pytest.raises(StoreError, match=f"view in the place of its table {table}"):
        with open_store(folder, write=False):
            pass


DELETING = "CREATE TRIGGER tidy AFTER INSERT ON runs BEGIN DELETE FROM runs; END"


def test_a_trigger_is_named_before_anything_is_measured_and_the_rows_are_read(folder: Path) -> None:
    execute(folder, DELETING)
    with pytest.raises(StoreError, match=r"'tidy' on runs.*DROP TRIGGER.*another results") as said:
        with open_store(folder, write=True):
            pass
    assert "free space" not in str(said.value)
    with open_store(folder, write=False) as store:
        assert len(store.results()) == 2
    execute(folder, "DROP TRIGGER tidy")
    with open_store(folder, write=True) as store:
        store.add(make_result("run-2"))


def test_a_trigger_that_is_made_meanwhile_is_what_refuses_a_row(folder: Path) -> None:
    with open_store(folder, write=True) as store:
        execute(folder, DELETING)
        with pytest.raises(StoreError, match=r"refused a row.*trigger") as said:
            store.add(make_result("run-2"))
    assert "free space" not in str(said.value)


def test_a_session_that_cannot_be_read_is_left_out(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "results.sqlite")) as connection, connection:
        connection.row_factory = sqlite3.Row
        (row,) = connection.execute("SELECT * FROM sessions")
        changed = {**dict(row), "document": DEEP}
        del changed["checksum"]
        changed = with_checksum(changed)
        connection.execute(
            "UPDATE sessions SET document = ?, checksum = ?",
            (changed["document"], changed["checksum"]),
        )
    with open_store(folder, write=False) as store:
        assert store.sessions() == []
