"""The same store on a real PostgreSQL server: nothing lost, the same answers, named faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, func, make_url, select, text
from store.postgresql_server import running_server
from store.store_factory import make_result, make_session
from store.test_queries import CONDITIONS, RESULTS, fill
from typer.testing import CliRunner

from accel_bench.cli.main import app
from accel_bench.errors import StoreError, StoreUnavailableError
from accel_bench.result import Status
from accel_bench.store import database, postgresql, schema
from accel_bench.store.database import open_store
from accel_bench.store.listing import list_runs
from accel_bench.store.queries import condition_of, group_runs
from accel_bench.store.records import RunRecord, insert_run
from accel_bench.store.selection import select_pairs

CHILD = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of an empty database."""
    with running_server() as address:
        yield address


@pytest.fixture
def address(server: str, tmp_path: Path) -> Iterator[str]:
    """The address of an empty database, whose runs have a folder of their own."""
    yield f"{server}&folder={tmp_path}"
    engine = create_engine(server)
    with engine.begin() as connection:
        schema.METADATA.drop_all(connection)
    engine.dispose()


def test_eight_processes_that_start_and_write_together_lose_no_row(address: str) -> None:
    rows = 10
    script = (
        "import os, sys\n"
        "from accel_bench.store.database import open_store\n"
        "from store.store_factory import make_result, make_session\n"
        "def write(writer):\n"
        "    with open_store(sys.argv[1], write=True) as store:\n"
        "        store.add_session(make_session(writer))\n"
        "        for row in range(int(sys.argv[2])):\n"
        "            store.add(make_result(f'{writer}-{row}', session=writer))\n"
        "for number in range(8):\n"
        "    if not os.fork():\n"  # what takes long, the imports, is done once
        "        write(f'writer-{number}')\n"
        "        os._exit(0)\n"
        "sys.exit(any(os.wait()[1] for number in range(8)))\n"
    )
    subprocess.run([sys.executable, "-c", script, address, str(rows)], env=CHILD, check=True)
    with open_store(address, write=False) as store:
        listed = store.rows()
        assert len(store.results()) == 8 * rows
    names = {f"writer-{writer}-{row}" for writer in range(8) for row in range(rows)}
    assert {row.run_id for row in listed if not row.corrupt} == names


def test_a_number_names_no_run_of_a_server(address: str) -> None:
    with open_store(address, write=True) as store:
        fill(store)
        assert store.numbers() == {}
        with pytest.raises(StoreError, match="'#1': runs on a server have no numbers"):
            store.find("#1")


def test_it_answers_as_sqlite_does(address: str, tmp_path: Path) -> None:
    hostile = make_result("hostile", status=Status.FAILED, phase="a\0b", log_tail="\0")
    answers = []
    for place in (address, tmp_path):
        with open_store(place, write=True) as store:
            fill(store)
            store.add(hostile)
            chosen = [
                [row.run_id for row in store.rows(condition_of(store, condition))]
                for condition in CONDITIONS
                if not condition.startswith("STATUS")
            ]
            groups = [group_runs(store, [name]) for name in ("stack", "adapter.r", "status")]
            pairs = select_pairs("a", "c", store)
            # A server does not count rows, so its runs have no numbers.
            listed = [
                [{key: one for key, one in row.items() if key != "number"} for row in rows]
                for rows in (list_runs(store)[0], list_runs(store, newest=2)[0])
            ]
            audited = [(row.run_id, row.broken, row.problem) for row in store.rows()]
            documents = [*listed, store.sessions(), pairs, audited]
            answers.append([chosen, groups, *documents, store.results()])
    assert answers[0] == answers[1]
    assert len(answers[0][-1]) == len(RESULTS) + 1


def test_a_row_is_stored_once_and_a_reader_writes_nothing(address: str) -> None:
    with pytest.raises(StoreError, match="there are no results in postgresql"):
        with open_store(address, write=False):
            pass
    with open_store(address, write=True) as store:
        store.add_session(make_session())
        store.add(make_result("same"))
        with pytest.raises(StoreError, match="'same' is already in postgresql"):
            store.add(make_result("same"))
        with pytest.raises(StoreError, match=r"'friday'.*add the session first"):
            store.add(make_result(session="friday"))
        with pytest.raises(StoreError, match="did you mean 'same'"):
            store.find("some")
    with open_store(address, write=False) as store:
        with pytest.raises(StoreUnavailableError, match="read-only transaction"):
            store.add(make_result("late"))


def test_a_damaged_row_is_corrupt_and_a_newer_version_is_refused(address: str, server: str) -> None:
    with open_store(address, write=True) as store:
        fill(store)
    engine = create_engine(server)
    with engine.begin() as connection:
        connection.execute(text("UPDATE runs SET tokens_per_second = 1e9 WHERE run_id = 'a'"))
        connection.execute(text("UPDATE samples SET content = '\\x00' WHERE run_id = 'b'"))
    with open_store(address, write=False) as store:
        assert {row.run_id for row in store.rows() if row.corrupt} == {"a", "b"}
    with engine.begin() as connection:
        connection.execute(text("UPDATE meta SET schema_version = 99, written_by = '7.5.0'"))
    engine.dispose()
    for write in (False, True):
        with pytest.raises(StoreError, match=r"schema version 99.*Upgrade to 7\.5\.0"):
            with open_store(address, write=write):
                pass


def test_a_run_whose_json_is_damaged_does_not_stop_a_question_about_options(
    address: str, server: str
) -> None:
    with open_store(address, write=True) as store:
        fill(store)
    engine = create_engine(server)
    with engine.begin() as connection:
        connection.execute(text("UPDATE runs SET options = '{\"adapter.r\": 4' WHERE run_id = 'a'"))
    engine.dispose()
    with open_store(address, write=False) as store:
        chosen = store.rows(condition_of(store, "adapter.r >= 16"))
        assert sorted(row.run_id for row in chosen) == ["b", "c", "d", "e"]
        groups = group_runs(store, ["adapter.r"])
        assert [(row["adapter.r"], row["runs"]) for row in groups] == [(None, 1), (16, 2), (32, 2)]


def test_a_server_that_is_not_there_is_named_without_the_password(tmp_path: Path) -> None:
    address = f"postgresql://me:canary@/name?host={tmp_path}&password=canary&sslpassword=canary"
    with pytest.raises(StoreUnavailableError, match="check that the server runs") as caught:
        with open_store(address, write=False):
            pass
    assert "canary" not in str(caught.value)
    for place, message in (
        ("mysql://me:canary@host/name", "mysql://... is no kind of database that is known"),
        ("postgresql://me:canary@host:port/name", "cannot be read"),
    ):
        with pytest.raises(StoreError, match=message) as refused:
            with open_store(place, write=False):
                pass
        assert "canary" not in str(refused.value)


@pytest.fixture
def other_database(server: str) -> Iterator[Connection]:
    """A connection to another database of the server, from which the first one is governed."""
    engine = create_engine(make_url(server).set(database="template1"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
        allow(connection, True)
    engine.dispose()


def allow(connection: Connection, may_connect: bool) -> None:
    """Let programs connect to the first database, or to none of it any more."""
    connection.execute(text(f"ALTER DATABASE postgres ALLOW_CONNECTIONS {may_connect}"))
    if not may_connect:
        lose_all(connection)


def lose_all(connection: Connection) -> None:
    """End all connections to the first database, as a server does that is started anew."""
    connection.execute(
        text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'postgres'")
    )


def test_a_connection_that_was_lost_is_made_again_until_the_server_is_back(
    address: str, other_database: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        allow(other_database, len(waits) == 2)

    monkeypatch.setattr(postgresql.time, "sleep", wait)
    with open_store(address, write=True) as store:
        store.add_session(make_session())
        lose_all(other_database)
        store.add(make_result("first"))
        assert waits == []
        allow(other_database, False)
        store.add(make_result("second"))
        assert len(waits) == 2
        assert [*store.present(["first", "second"])] == ["first", "second"]


def test_a_server_that_stays_away_is_named_after_the_time_of_a_lock(
    address: str, other_database: Connection
) -> None:
    with open_store(address, write=True, timeout_seconds=0) as store:
        store.add_session(make_session())
        allow(other_database, False)
        with pytest.raises(StoreUnavailableError, match="not currently accepting connections"):
            store.add(make_result("first"))


@pytest.mark.parametrize("committed", [False, True], ids=["before", "after"])
def test_a_row_is_there_once_whenever_in_its_transaction_the_server_is_lost(
    address: str, other_database: Connection, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    written: list[str] = []

    def insert_and_lose(connection: Connection, record: RunRecord) -> None:
        insert_run(connection, record)
        written.append(record.columns["run_id"])
        if len(written) == 1:
            if committed:  # and what says so never arrives
                connection.exec_driver_sql("COMMIT")
            lose_all(other_database)

    monkeypatch.setattr(database, "insert_run", insert_and_lose)
    with open_store(address, write=True) as store:
        store.add_session(make_session())
        store.add(make_result("row"))
        assert written == (["row"] if committed else ["row", "row"])
        assert store.count() == 1
        with pytest.raises(StoreError, match="'row' is already in postgresql"):
            store.add(make_result("row"))


def test_settings_of_the_address_hold_beside_those_of_the_store(address: str) -> None:
    chosen = "-c lock_timeout=7s -c default_transaction_read_only=off -c work_mem=5MB"
    url = make_url(address).update_query_dict({"options": chosen})
    names = ("lock_timeout", "default_transaction_read_only", "work_mem")
    query = select(*(func.current_setting(name).label(name) for name in names))
    found = []
    for write in (True, False):
        with open_store(url.render_as_string(hide_password=False), write=write) as store:
            found += [tuple(row.values()) for row in store.fetch(query)]
    assert found == [("7s", "off", "5MB"), ("7s", "on", "5MB")]  # a reader never writes


def test_commands_take_the_address(address: str) -> None:
    with open_store(address, write=True) as store:
        fill(store)
    arguments = ["results", "list", "--results", address, "--where", "status = ok"]
    done = CliRunner().invoke(app, [*arguments, "--format", "json"], catch_exceptions=False)
    assert [row["run_id"] for row in json.loads(done.stdout)] == ["a", "b", "c"]
