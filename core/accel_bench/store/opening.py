"""Opening of a results database, with checks of its path, file and version."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, Engine, func, insert, inspect, select

from accel_bench.documents.program import __version__
from accel_bench.errors import NoResultsError, StoreError, StoreUnavailableError
from accel_bench.store import postgresql, sqlite
from accel_bench.store.schema import META, METADATA, SHOWN_LETTERS, STORE_VERSION

LOCK = 0xACCE1
"""Number of PostgreSQL's advisory lock under which tables are created."""

Faults = Callable[[], AbstractContextManager[None]]
"""Function that returns a context manager, which turns a database's errors into StoreError."""


class OpenDatabase(NamedTuple):
    """Open database, with the folder for files of its runs."""

    folder: Path
    engine: Engine

    place: str
    """Name of the database in messages."""

    faults: Faults

    connect: Callable[[Engine], Connection]
    """Function that opens a connection, or returns an open one."""


@contextmanager
def opened_database(
    place: Path | str, write: bool, timeout_seconds: float
) -> Iterator[OpenDatabase]:
    """Open the database of a results folder or server for the `with` block. The arguments and
    errors are as for `database.open_store`."""
    on_server = isinstance(place, str) and postgresql.is_address(place)
    opened = _on_server(str(place), write, timeout_seconds) if on_server else None
    with opened or _in_folder(Path(place), write, timeout_seconds) as database:
        yield database


@contextmanager
def _on_server(place: str, write: bool, timeout_seconds: float) -> Iterator[OpenDatabase]:
    """Open a PostgreSQL database for the `with` block; `place` is its address."""
    address = postgresql.parse_address(place)
    root = _results_folder(address.folder, write)
    engine = postgresql.connect(address, write=write, timeout_seconds=timeout_seconds)
    faults = partial(postgresql.named_faults, address.shown)
    try:
        with faults():
            if write:
                make_tables(engine, address.shown)
            elif not has_tables(engine, address.shown):
                raise NoResultsError(
                    f"there are no results in {address.shown}; "
                    "`accel-bench run SCENARIO --results ADDRESS` makes some"
                )
        again = partial(postgresql.connect_again, seconds=timeout_seconds)
        yield OpenDatabase(root, engine, address.shown, partial(_bound, faults), again)
    finally:
        engine.dispose()


@contextmanager
def _in_folder(folder: Path, write: bool, timeout_seconds: float) -> Iterator[OpenDatabase]:
    """Open the SQLite database of a results folder for the `with` block."""
    root = _results_folder(folder, write)
    path = root / sqlite.FILE_NAME
    faults = partial(sqlite.named_faults, path)
    with faults():
        if not write and not path.exists():
            raise NoResultsError(_no_results(root))
    engine = sqlite.connect(path, write=write, timeout_seconds=timeout_seconds)
    try:
        try:
            with faults():
                sqlite.check_file(path)
                if not has_tables(engine, str(path)) and not write:
                    raise NoResultsError(_no_results(root))
                if write:
                    sqlite.enable_wal(engine, timeout_seconds)
                    make_tables(sqlite.writing(engine), str(path))
        except sqlite.BrokenDatabaseError as error:
            engine.dispose()
            raise _left_or_set_aside(path, write, error) from error
        yield OpenDatabase(root, engine, str(path), partial(_bound, faults), Engine.connect)
    finally:
        engine.dispose()


@contextmanager
def _bound(faults: Faults) -> Iterator[None]:
    """Raise StoreError for non-UTF-8 text in the block, and for errors that `faults` converts."""
    try:
        with faults():
            yield
    except UnicodeEncodeError as error:
        raise StoreError(
            f"{error.object!r} is not UTF-8 text, which no stored id, name or text is; "
            "`accel-bench results list` shows what is stored"
        ) from error


def _results_folder(folder: Path, write: bool) -> Path:
    """Return the absolute results folder without symbolic links; with `write` create it. Raises
    StoreError if that fails, or if the name is not UTF-8."""
    another = "choose another folder with --results"
    try:
        root = folder.resolve()
        str(root).encode()
    except UnicodeEncodeError as error:
        raise StoreError(
            f"{str(folder)!r} cannot be a results folder: its name is not UTF-8, as a database and "
            f"reports must write it; {another}"
        ) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise StoreError(f"{str(folder)!r} cannot be a results folder: {error}") from error
    try:
        if write:
            root.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise StoreError(
            f"{root} cannot be a results folder, since a file is in its place; {another}"
        ) from error
    except OSError as error:
        raise StoreUnavailableError(
            f"{root} cannot be made: {error.strerror}; {another}"
        ) from error
    return root


def _left_or_set_aside(path: Path, write: bool, error: StoreError) -> StoreError:
    """Return the error for an unreadable database file; with `write` rename the file first."""
    if not write:
        do = "It is left as it is; `accel-bench run` sets it aside and starts a new one"
        return StoreError(f"{error}. {do}")
    with sqlite.named_faults(path):
        kept = sqlite.set_aside(path)
    return StoreError(f"{error}. It is kept as {kept.name}; run again to start a new one")


def _no_results(root: Path) -> str:
    return (
        f"there are no results in {root}; `accel-bench run SCENARIO --results {root}` makes some, "
        "and --results DIR names another folder"
    )


def has_tables(engine: Engine, place: str) -> bool:
    """Return whether the database has tables; `place` names it in errors. Raises StoreError for
    tables of another program or version."""
    with engine.connect() as connection:
        return _has_tables(connection, place)


def make_tables(writing: Engine, place: str) -> None:
    """Create missing tables under the write lock, so that only one of several processes does it.
    `writing` is an engine whose transactions take the lock, and `place` names the database in
    errors. Taking the lock also detects a read-only or full disk before anything is measured."""
    with writing.begin() as connection:
        if connection.dialect.name == "postgresql":  # SQLite has taken its lock
            connection.execute(select(func.pg_advisory_xact_lock(LOCK)))
        if not _has_tables(connection, place):
            METADATA.create_all(connection)
            connection.execute(
                insert(META), {"schema_version": STORE_VERSION, "written_by": __version__}
            )
        if connection.dialect.name == "sqlite":
            sqlite.refuse_triggers(connection, place)


def _has_tables(connection: Connection, place: str) -> bool:
    tables = inspect(connection).get_table_names()
    for view in {*METADATA.tables}.intersection(inspect(connection).get_view_names()):
        # A view computes what it returns: without end, if who made it wants that.
        raise sqlite.BrokenDatabaseError(f"{place} has a view in the place of its table {view}")
    if not tables:
        return False
    if META.name not in tables:
        raise StoreError(f"{place} is a database of another program; choose another results folder")
    written_by = func.substr(META.c.written_by, 1, SHOWN_LETTERS)
    rows = connection.execute(select(META.c.schema_version, written_by).distinct().limit(2)).all()
    if len(rows) > 1:
        raise sqlite.BrokenDatabaseError(f"{place} names several schema versions")
    version, writer = rows[0] if rows else (None, None)
    if not isinstance(version, int):
        raise sqlite.BrokenDatabaseError(f"{place} does not name its schema version")
    if version != STORE_VERSION:
        raise StoreError(_refused(place, version, str(writer)))
    return True


def _refused(place: str, version: int, writer: str) -> str:
    do = (
        f"Upgrade to {writer} or newer"
        if version > STORE_VERSION
        else "Export it with the accel-bench that wrote it (`accel-bench results export --output "
        "FILE`), and import the file into another results folder with this one (`accel-bench "
        "results import FILE`)"
    )
    return (
        f"{place} has schema version {version} and was written by accel-bench "
        f"{writer}; this is accel-bench {__version__}, which reads version "
        f"{STORE_VERSION}. {do}; nothing was changed"
    )
