"""A database of the version before is migrated without loss, and one of a later version refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine
from store.store_factory import make_experiment, make_rank, make_result, make_session

from accel_bench.documents.canonical import canonical_json, digest
from accel_bench.errors import StoreError
from accel_bench.result import Result, Status
from accel_bench.store import records
from accel_bench.store.audit import audit_store
from accel_bench.store.database import open_store
from accel_bench.store.listing import list_runs
from accel_bench.store.schema import METADATA
from accel_bench.store.sessions import session_columns

OLD_TABLES = """
CREATE TABLE meta (schema_version INTEGER NOT NULL, written_by TEXT NOT NULL);
CREATE TABLE sessions (
    id TEXT NOT NULL PRIMARY KEY, started_at TEXT NOT NULL, scenario TEXT NOT NULL,
    command TEXT NOT NULL, document TEXT NOT NULL, checksum TEXT NOT NULL
);
CREATE TABLE runs (
    run_id TEXT NOT NULL PRIMARY KEY, session TEXT NOT NULL REFERENCES sessions (id),
    experiment_id TEXT NOT NULL, scenario TEXT NOT NULL, stack TEXT NOT NULL, sweep TEXT NOT NULL,
    round INTEGER NOT NULL, position INTEGER NOT NULL, attempt INTEGER NOT NULL,
    status TEXT NOT NULL, started_at TEXT NOT NULL, payload TEXT NOT NULL,
    schema_version INTEGER NOT NULL, checksum TEXT NOT NULL
);
INSERT INTO meta VALUES (2, '0.1.0');
"""

RESULTS = [
    make_result("run-0", experiment=make_experiment("nf4", {"train.seed": 3}, train={"seed": 3})),
    make_result("run-1", round=1, ranks=(make_rank(0), make_rank(1)), log_tail="a\0b smörgås"),
    make_result("run-2", round=2, status=Status.OOM, ranks=(), reasons=("2 GiB",)),
    make_result("corrupt", round=3),
    make_result("lost-session", round=4),
    make_result("unreadable", round=5),
]


def old_row(result: Result) -> dict[str, Any]:
    """A row of version 2, some of them damaged by their names."""
    row = {
        "run_id": result.run_id,
        "session": result.session,
        "experiment_id": result.experiment.id,
        "scenario": result.experiment.scenario.name,
        "stack": result.experiment.stack.name,
        "sweep": canonical_json(result.experiment.sweep),
        "round": result.round,
        "position": result.position,
        "attempt": result.attempt,
        "status": result.status.value,
        "started_at": result.started_at,
        "payload": canonical_json(result.model_dump(mode="json")),
        "schema_version": 2,
    }
    if result.run_id == "unreadable":
        row["payload"] = '{"of":"another version"}'
    row["checksum"] = digest(row, 64)
    changes = {"corrupt": {"stack": "changed"}, "lost-session": {"session": "gone"}}
    return row | changes.get(result.run_id, {})


def insert(connection: sqlite3.Connection, table: str, row: dict[str, Any]) -> None:
    names, places = ", ".join(row), ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", list(row.values()))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A results folder as the version before left it."""
    with closing(sqlite3.connect(tmp_path / "results.sqlite")) as connection, connection:
        connection.executescript(OLD_TABLES)
        session = session_columns(make_session())
        content = {name: value for name, value in session.items() if name != "checksum"}
        insert(connection, "sessions", {**content, "checksum": digest(content, 64)})
        for result in RESULTS:
            insert(connection, "runs", old_row(result))
        connection.execute("PRAGMA journal_mode=WAL")
    yield tmp_path


def assert_all_there(folder: Path, write: bool) -> None:
    with open_store(folder, write=write) as store:
        assert store.results() == RESULTS[:3]
        assert store.sessions() == [make_session()]
        listed = {row["run_id"]: row for row in list_runs(store)}
        corrupt = [name for name, row in listed.items() if row["status"] == "corrupt"]
        assert (set(listed), corrupt) == (
            {result.run_id for result in RESULTS},
            ["corrupt", "lost-session"],
        )
        assert listed["run-1"]["tokens_per_second"] == 400.0
        assert set(store.unreadable()) == {"corrupt", "lost-session", "unreadable"}
        report = audit_store(store)
        assert (report.rows, report.audited) == (6, 2)


def test_a_reader_sees_all_runs_and_changes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (folder / "results.sqlite").read_bytes()
    assert_all_there(folder, write=False)
    assert "results migrate" in capsys.readouterr().err
    assert (folder / "results.sqlite").read_bytes() == before
    assert [path.name for path in folder.iterdir()] == ["results.sqlite"]


def test_a_writer_migrates_once_and_nothing_is_lost(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_all_there(folder, write=True)
    assert_all_there(folder, write=False)
    assert capsys.readouterr().err == ""
    with closing(sqlite3.connect(folder / "results.sqlite")) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        kept = connection.execute("SELECT count(*) FROM documents").fetchone()
    assert "runs_2" not in tables
    assert kept == (len(RESULTS),)


def test_a_migration_that_fails_leaves_the_database_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(records, "insert_run", None)
        with pytest.raises(TypeError), open_store(folder, write=True):
            pass
    assert_all_there(folder, write=True)


def damage_page(path: Path, text: bytes) -> None:
    """Overwrite the header of the page that holds a text."""
    raw = bytearray(path.read_bytes())
    assert raw.count(text) == 1
    page = raw.index(text) // 4096 * 4096
    raw[page : page + 8] = b"\xff" * 8
    path.write_bytes(raw)


def test_a_damaged_page_takes_its_own_runs_and_no_other(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(folder / "results.sqlite")) as connection, connection:
        for number in range(60):
            insert(connection, "runs", old_row(make_result(f"more-{number:02}")))
    damage_page(folder / "results.sqlite", b"more-30monday")
    for write in (False, True):
        with open_store(folder, write=write) as store:
            corrupt = {row.run_id for row in store.rows() if row.corrupt}
            assert len(store.rows()) == len(RESULTS) + 60
            assert "more-30" in corrupt
            assert len(store.results()) > 50
            assert RESULTS[0] in store.results()
        assert f"{len(corrupt) - 2} of 66 runs cannot be read" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["results.sqlite"]
    with closing(sqlite3.connect(folder / "results.sqlite")) as connection:
        query = "SELECT name FROM sqlite_master WHERE name = 'runs_2'"
        assert connection.execute(query).fetchall() == [("runs_2",)]


def test_damage_that_stops_a_migration_sets_no_database_aside(folder: Path) -> None:
    path = folder / "results.sqlite"
    damage_page(path, b"monday2026")  # the sessions
    refused = pytest.raises(StoreError, match=r"cannot be migrated.*nothing was changed")
    with refused, open_store(folder, write=True):
        pass
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (len(RESULTS),)
    assert [path.name for path in folder.iterdir()] == ["results.sqlite"]


@pytest.mark.parametrize("column", ["run_id", "session", "stack"])
@pytest.mark.parametrize("value", ["CAST(X'62E173' AS TEXT)", "NULL", "X'00FF'"])
def test_a_damaged_value_makes_a_corrupt_row(tmp_path: Path, column: str, value: str) -> None:
    with closing(sqlite3.connect(tmp_path / "results.sqlite")) as connection, connection:
        connection.executescript(OLD_TABLES.replace(f"{column} TEXT NOT NULL", f"{column} TEXT"))
        for name in ("a", "b"):
            insert(connection, "runs", old_row(make_result(name)))
        connection.execute(f"UPDATE runs SET {column} = {value} WHERE run_id = 'b'")
    with open_store(tmp_path, write=True) as store:
        assert [row.corrupt for row in store.rows()] in ([False, True], [True, False])
        assert [result.run_id for result in store.results()] == ["a"]


def test_a_migrated_database_has_the_tables_of_a_new_one(folder: Path) -> None:
    with open_store(folder, write=True):
        pass
    engine = create_engine(f"sqlite:///{folder / 'results.sqlite'}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []
    engine.dispose()
