"""Store results, and read them back; none is ever overwritten or lost."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Engine,
    Select,
    func,
    insert,
    inspect,
    or_,
    select,
)

from accel_bench._version import __version__
from accel_bench.errors import (
    ResultTooLargeError,
    StoreError,
    StoreUnavailableError,
    did_you_mean,
)
from accel_bench.result import Result
from accel_bench.scenario.experiment import SCHEMA_VERSION
from accel_bench.store import sqlite
from accel_bench.store.records import (
    Columns,
    Row,
    SessionRecord,
    chronological_key,
    readable,
    redact_result,
    run_columns,
    session_columns,
    to_row,
    to_session,
)
from accel_bench.store.schema import (
    CHRONOLOGICAL,
    IDS,
    MAXIMUM_PAYLOAD_BYTES,
    META,
    METADATA,
    READING,
    RUNS,
    SESSIONS,
    SHOWN_LETTERS,
    within_limits,
)

__all__ = ["Row", "SessionRecord", "Store", "open_store"]

TIMEOUT_SECONDS = 30.0
"""How long another writer is waited for."""

ROWS_AT_ONCE = 4
"""Rows fetched together: payloads are large, and a listing needs none of them twice."""


class Store:
    """An open results folder, from `open_store`. Methods raise StoreError."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self.folder = folder
        """The resolved results folder."""
        self._path = folder / sqlite.FILE_NAME
        self._engine = engine
        self._writing = sqlite.writing(engine)

    def add_session(self, session: SessionRecord) -> None:
        """Store a session; its runs can be added from now on."""
        columns = session_columns(session)
        with sqlite.named_faults(self._path), self._writing.begin() as connection:
            same = select(SESSIONS.c.id).where(SESSIONS.c.id == session.id)
            if connection.scalar(same) is not None:
                raise StoreError(f"the session {session.id!r} is already in {self._path}")
            connection.execute(insert(SESSIONS), columns)

    def add(self, result: Result) -> Result:
        """Store one result in one transaction: when this returns, the row is on the disk.

        Returns the result as it is stored, without secrets. A run id that is already there and a
        session that is not are errors; nothing is ever overwritten.
        """
        stored = redact_result(result)
        columns = run_columns(stored)
        if len(columns["payload"]) > MAXIMUM_PAYLOAD_BYTES:
            raise ResultTooLargeError(
                f"run {result.run_id!r} is larger than {MAXIMUM_PAYLOAD_BYTES} bytes, the limit of "
                "a stored run; measure fewer steps, or let plugins report less evidence"
            )
        with sqlite.named_faults(self._path), self._writing.begin() as connection:
            same = select(RUNS.c.run_id).where(RUNS.c.run_id == columns["run_id"])
            if connection.scalar(same) is not None:
                raise StoreError(
                    f"run {result.run_id!r} is already in {self._path}, and nothing is overwritten"
                )
            its_session = select(SESSIONS.c.id).where(SESSIONS.c.id == columns["session"])
            if connection.scalar(its_session) is None:
                raise StoreError(
                    f"run {result.run_id!r} belongs to the session {result.session!r}, which is "
                    f"not in {self._path}; add the session first"
                )
            connection.execute(insert(RUNS), columns)
        return stored

    def results(
        self,
        *,
        session: str | None = None,
        experiment_ids: Collection[str] | None = None,
        scenario: str | None = None,
    ) -> list[Result]:
        """Return intact results by start, round, position, attempt; `rows` has the others too."""
        conditions: list[ColumnElement[bool]] = []
        if session is not None:
            conditions.append(RUNS.c.session == session)
        if experiment_ids is not None:
            conditions.append(RUNS.c.experiment_id.in_(list(experiment_ids)))
        if scenario is not None:
            conditions.append(RUNS.c.scenario == scenario)
        found = (readable(columns) for columns in self._runs(*conditions))
        return [result for result in found if result is not None]

    def rows(self) -> list[Row]:
        """Return a listing of all runs in the same order, corrupt ones included and marked."""
        return [to_row(columns) for columns in self._runs()]

    def find(self, prefix: str) -> list[Result]:
        """Return the results whose run, experiment or session id is or begins with `prefix`."""
        found = list(self._runs(or_(*(name == prefix for name in IDS))))
        if not found and prefix:
            begins = (func.substr(name, 1, len(prefix)) == prefix for name in IDS)
            found = list(self._runs(or_(*begins)))
        if not found:
            raise StoreError(self._unknown(prefix))
        sound = [result for columns in found if (result := readable(columns)) is not None]
        if not sound:
            raise StoreError("; ".join(to_row(columns).problem for columns in found))
        return sound

    def sessions(self) -> list[SessionRecord]:
        """Return all intact sessions in order of their start."""
        query = within_limits(SESSIONS, "document").order_by(SESSIONS.c.started_at, SESSIONS.c.id)
        found = (to_session(columns) for columns in self._fetch(query))
        return [session for session in found if session is not None]

    def _runs(self, *conditions: ColumnElement[bool]) -> Iterator[Columns]:
        try:
            yield from self._fetch(READING.where(*conditions).order_by(*CHRONOLOGICAL))
        except sqlite.BrokenDatabaseError:
            # Sorting reads every row before it gives the first, so none was given yet.
            yield from sorted(self._salvage(*conditions), key=chronological_key)

    def _salvage(self, *conditions: ColumnElement[bool]) -> Iterator[Columns]:
        """Read run by run where a damaged page stops a query; what cannot be read is empty.

        The ids come from the primary key's index, which lies on pages of its own.
        """
        ids = dict.fromkeys(found["run_id"] for found in self._fetch(select(RUNS.c.run_id)))
        for run_id in ids:
            this = RUNS.c.run_id == run_id
            try:
                yield from self._fetch(READING.where(this, *conditions))
            except sqlite.BrokenDatabaseError:
                yield {**dict.fromkeys(RUNS.columns.keys(), ""), "run_id": run_id}

    def _fetch(self, query: Select[Any]) -> Iterator[Columns]:
        with sqlite.named_faults(self._path), self._engine.connect() as connection:
            reading = connection.execution_options(yield_per=ROWS_AT_ONCE)
            for row in reading.execute(query).mappings():
                yield dict(row)

    def _unknown(self, prefix: str) -> str:
        """Return the error for an unknown id, with the nearest ids or the newest."""
        short = (func.substr(name, 1, SHOWN_LETTERS).label(name.name) for name in IDS)
        query = select(*short).order_by(RUNS.c.started_at.desc()).limit(1000)
        rows = [tuple(map(str, row.values())) for row in self._fetch(query)]
        near = did_you_mean(prefix, {name for row in rows for name in row})
        if "did you mean" not in near:
            newest = list(dict.fromkeys(name for row in rows for name in row))[:6]
            near = f"; the newest are {', '.join(newest)}" if newest else "; there are none yet"
        return (
            f"no run, experiment or session in {self.folder} begins with {prefix!r}{near} "
            "(`accel-bench results list` shows all)"
        )


@contextmanager
def open_store(
    folder: Path, *, write: bool, timeout_seconds: float = TIMEOUT_SECONDS
) -> Iterator[Store]:
    """Open a results folder for the block; with `write` it is made when it is not there.

    Raises StoreError: no results, not a database, newer schema, locked, disk full, read-only. With
    `write`, a file that is no readable database is set aside under another name, never deleted.
    """
    try:  # links are followed once, so that everything later stays inside what they lead to
        root = folder.resolve()
        str(root).encode()
    except UnicodeEncodeError as error:
        raise StoreError(
            f"{str(folder)!r} cannot be a results folder: its name is not UTF-8, as a database and "
            "reports must write it; choose another folder with --results"
        ) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise StoreError(f"{str(folder)!r} cannot be a results folder: {error}") from error
    path = root / sqlite.FILE_NAME
    if write:
        _make_folder(root)
    with sqlite.named_faults(path):
        if not write and not path.exists():
            raise StoreError(_no_results(root))
    try:
        engine = _open(path, write, timeout_seconds)
    except sqlite.BrokenDatabaseError as error:
        if not write:
            do = "It is left as it is; `accel-bench run` sets it aside and starts a new one"
            raise StoreError(f"{error}. {do}") from error
        with sqlite.named_faults(path):
            kept = sqlite.set_aside(path)
        do = f"It is kept as {kept.name}; run again to start a new one"
        raise StoreError(f"{error}. {do}") from error
    try:
        yield Store(root, engine)
    finally:
        engine.dispose()


def _make_folder(root: Path) -> None:
    """Make the results folder. Raises StoreError with the reason."""
    try:
        root.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise StoreError(
            f"{root} cannot be a results folder, since a file is in its place; "
            "choose another folder with --results"
        ) from error
    except OSError as error:
        raise StoreUnavailableError(
            f"{root} cannot be made: {error.strerror}; choose another folder with --results"
        ) from error


def _open(path: Path, write: bool, timeout_seconds: float) -> Engine:
    """Open a database after all checks."""
    engine = sqlite.connect(path, write=write, timeout_seconds=timeout_seconds)
    try:
        with sqlite.named_faults(path):
            sqlite.check_file(path)
            if not _has_tables(engine, path) and not write:
                raise StoreError(_no_results(path.parent))
            if write:
                sqlite.enable_wal(engine, timeout_seconds)
                _make_tables(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _has_tables(engine: Engine, path: Path) -> bool:
    """Return whether there are tables; refuse those of other programs and versions."""
    with engine.connect() as connection:
        tables = inspect(connection).get_table_names()
        for view in {*METADATA.tables}.intersection(inspect(connection).get_view_names()):
            # A view computes what it returns: without end, if who made it wants that.
            raise sqlite.BrokenDatabaseError(f"{path} has a view in the place of its table {view}")
        if not tables:
            return False
        if META.name not in tables:
            raise StoreError(
                f"{path} is a database of another program; choose another results folder"
            )
        written_by = func.substr(META.c.written_by, 1, SHOWN_LETTERS).label("written_by")
        versions = select(META.c.schema_version, written_by).distinct().limit(2)
        rows = connection.execute(versions).all()
    if len(rows) > 1:
        raise sqlite.BrokenDatabaseError(f"{path} names several schema versions")
    found = rows[0] if rows else None
    if found is None or not isinstance(found.schema_version, int):
        raise sqlite.BrokenDatabaseError(f"{path} does not name its schema version")
    if found.schema_version != SCHEMA_VERSION:
        reads, do = (
            (f"up to version {SCHEMA_VERSION}", f"Upgrade to {found.written_by} or newer")
            if found.schema_version > SCHEMA_VERSION
            else (
                f"version {SCHEMA_VERSION} alone",
                "Choose another results folder with --results, or read this one with the "
                "accel-bench that wrote it",
            )
        )
        raise StoreError(
            f"{path} has schema version {found.schema_version} and was written by accel-bench "
            f"{found.written_by}; this is accel-bench {__version__}, which reads {reads}. {do}; "
            "nothing was changed"
        )
    return True


def _make_tables(engine: Engine) -> None:
    """Make missing tables under the write lock: processes that start together do it once.

    Taking the lock also finds a read-only or full disk before anything is measured.
    """
    with sqlite.writing(engine).begin() as connection:
        METADATA.create_all(connection)
        if connection.execute(select(META)).first() is None:
            connection.execute(
                insert(META), {"schema_version": SCHEMA_VERSION, "written_by": __version__}
            )


def _no_results(root: Path) -> str:
    return (
        f"there are no results in {root}; `accel-bench run SCENARIO --results {root}` makes some, "
        "and --results DIR names another folder"
    )
