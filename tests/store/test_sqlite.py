"""Faults of the file, the disk and other processes: refused with the reason, nothing lost."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event
from store.store_factory import make_result, make_session

from accel_bench.errors import StoreError, StoreUnavailableError
from accel_bench.store.database import open_store

CHILD = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
NOBODY = 65534


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A results folder with ten runs."""
    folder = tmp_path / "results"
    fill(folder)
    return folder


def fill(folder: Path) -> None:
    with open_store(folder, write=True) as store:
        store.add_session(make_session())
        for number in range(10):
            store.add(make_result(f"run-{number}", round=number))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_ten_runs(folder: Path) -> None:
    with open_store(folder, write=False) as store:
        assert [result.run_id for result in store.results()] == [f"run-{n}" for n in range(10)]


BREAKAGES = {
    "no database": lambda content: b"these are notes, not a database\n" * 200,
    "garbage header": lambda content: b"\xff" * 16 + content[16:],
    "half": lambda content: content[: len(content) // 2],
    "a page less": lambda content: content[:-4096],
    "a few bytes": lambda content: content[:50],
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_broken_file_is_left_alone_by_readers_with_the_reason(
    folder: Path, breakage: str
) -> None:
    database = folder / "results.sqlite"
    broken = BREAKAGES[breakage](database.read_bytes())
    database.write_bytes(broken)
    with pytest.raises(StoreError, match=r"cannot be read as a results database.*left as it is"):
        with open_store(folder, write=False):
            pass
    assert database.read_bytes() == broken
    assert names(folder) == ["results.sqlite"]


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_broken_file_is_set_aside_by_a_writer_and_the_next_run_starts_anew(
    folder: Path, breakage: str
) -> None:
    database = folder / "results.sqlite"
    broken = BREAKAGES[breakage](database.read_bytes())
    database.write_bytes(broken)
    with pytest.raises(StoreError, match="run again to start a new one") as caught:
        with open_store(folder, write=True):
            pass
    (kept,) = folder.iterdir()
    assert kept.name.startswith("results.sqlite.broken-2")
    assert kept.name in str(caught.value)
    assert kept.read_bytes() == broken
    fill(folder)
    assert_ten_runs(folder)


def test_each_broken_file_is_kept_under_its_own_name_with_its_log(folder: Path) -> None:
    for number in range(3):
        (folder / "results.sqlite").write_bytes(b"broken %d" % number * 100)
        (folder / "results.sqlite-wal").write_bytes(b"log %d" % number)
        with pytest.raises(StoreError, match="run again"):
            with open_store(folder, write=True):
                pass
    kept = [path for path in folder.iterdir() if ".broken-" in path.name]
    databases = {path.read_bytes() for path in kept if not path.name.endswith(("-wal", "-shm"))}
    assert databases == {b"broken %d" % number * 100 for number in range(3)}
    assert len([path for path in kept if path.name.endswith("-wal")]) == 3


def test_an_emptied_database_beside_its_log_is_not_taken_for_a_new_one(folder: Path) -> None:
    (folder / "results.sqlite").write_bytes(b"")
    (folder / "results.sqlite-wal").write_bytes(b"committed rows")
    with pytest.raises(StoreError, match="is empty, but its write-ahead log is not"):
        with open_store(folder, write=True):
            pass
    assert {path.read_bytes() for path in folder.iterdir()} == {b"", b"committed rows"}


def test_an_empty_file_is_a_store_that_was_not_begun(folder: Path) -> None:
    (folder / "results.sqlite").write_bytes(b"")
    with pytest.raises(StoreError, match="accel-bench run"):
        with open_store(folder, write=False):
            pass
    fill(folder)
    assert_ten_runs(folder)


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize(
    ("version", "way_out"), [(99, "Upgrade to 7.5.0"), (2, "bench results import")]
)
def test_another_schema_is_refused_untouched_with_the_way_out(
    folder: Path, write: bool, version: int, way_out: str
) -> None:
    database = folder / "results.sqlite"
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(f"UPDATE meta SET schema_version = {version}, written_by = '7.5.0'")
    before = database.read_bytes()
    with pytest.raises(StoreError, match=rf"schema version {version}.*7\.5\.0") as caught:
        with open_store(folder, write=write):
            pass
    assert "nothing was changed" in str(caught.value)
    assert way_out in str(caught.value)
    assert database.read_bytes() == before
    assert names(folder) == ["results.sqlite"]


@pytest.mark.parametrize("write", [False, True])
def test_a_database_of_another_program_is_refused_untouched(tmp_path: Path, write: bool) -> None:
    database = tmp_path / "results.sqlite"
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    before = database.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        with open_store(tmp_path, write=write):
            pass
    assert database.read_bytes() == before


def test_another_writer_is_waited_for_and_then_named(folder: Path) -> None:
    with open_store(folder, write=True, timeout_seconds=0.1) as store:
        with contextlib.closing(
            sqlite3.connect(folder / "results.sqlite", isolation_level=None)
        ) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailableError, match="locked by another process") as caught:
                store.add(make_result("late"))
            assert_ten_runs(folder)
            with pytest.raises(StoreUnavailableError, match="locked by another process"):
                with open_store(folder, write=True, timeout_seconds=0.1):
                    pass
        store.add(make_result("late"))
        assert caught.value.exit_code == 1
        assert store.find("late")[0].run_id == "late"


@contextlib.contextmanager
def no_more_pages() -> Iterator[None]:
    """Let SQLite find the disk full: databases that are opened meanwhile cannot grow."""

    def limit(connection: Any, record: Any) -> None:
        connection.execute("PRAGMA max_page_count=1").close()

    event.listen(Engine, "connect", limit)
    yield
    event.remove(Engine, "connect", limit)


def test_a_full_disk_is_said_and_committed_rows_stay(folder: Path) -> None:
    with no_more_pages(), open_store(folder, write=True) as store:
        with pytest.raises(StoreUnavailableError, match="disk is full") as caught:
            store.add(make_result("too-much", log_tail="x" * 100_000))
        assert caught.value.exit_code == 1
    assert_ten_runs(folder)


def run_child(script: str, folder: Path) -> str:
    """Run a script after imports that need no rights; return what it printed."""
    imports = (
        "import os, resource, sys\n"
        "from pathlib import Path\n"
        "from accel_bench.store.database import open_store\n"
        "from store.store_factory import make_result, make_session\n"
        "folder = Path(sys.argv[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", imports + script, str(folder)],
        env=CHILD,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_file_size_limit_of_the_system_is_said_and_committed_rows_stay(folder: Path) -> None:
    printed = run_child(
        "with open_store(folder, write=True) as store:\n"
        "    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))\n"
        "    try:\n"
        "        store.add(make_result('too-much', log_tail='x' * 100_000))\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__, error.exit_code, error)\n",
        folder,
    )
    assert printed.startswith("StoreUnavailableError 1")
    assert "results.sqlite cannot be used" in printed
    assert_ten_runs(folder)


@pytest.fixture
def read_only_folder() -> Iterator[Path]:
    """A filled results folder that nobody but root may change, in places that all may enter."""
    with tempfile.TemporaryDirectory() as outside:
        os.chmod(outside, 0o755)
        folder = Path(outside, "results")
        fill(folder)
        (folder / "results.sqlite").chmod(0o444)
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)


def test_a_read_only_folder_can_be_read_and_refuses_writers(read_only_folder: Path) -> None:
    printed = run_child(
        "with open_store(folder, write=False):\n"
        "    pass\n"
        f"os.geteuid() or os.setuid({NOBODY})\n"
        "with open_store(folder, write=False) as store:\n"
        "    print(len(store.results()))\n"
        "try:\n"
        "    with open_store(folder, write=True):\n"
        "        pass\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error.exit_code, error)\n",
        read_only_folder,
    )
    count, refusal = printed.splitlines()
    assert count == "10"
    assert refusal.startswith("StoreUnavailableError 1")
    assert "readonly" in refusal
    assert_ten_runs(read_only_folder)
