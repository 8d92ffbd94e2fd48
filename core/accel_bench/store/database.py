"""Store of results: results are added and read, and never overwritten or lost."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    Column,
    ColumnElement,
    Connection,
    Select,
    and_,
    func,
    insert,
    or_,
    select,
)

from accel_bench.errors import StoreError, did_you_mean
from accel_bench.result import Result
from accel_bench.store import sqlite
from accel_bench.store.opening import OpenDatabase, opened_database
from accel_bench.store.postgresql import ConnectionLostError
from accel_bench.store.records import (
    RunRecord,
    insert_run,
    label_columns,
    readable,
    redact_result,
    run_record,
    unreadable,
)
from accel_bench.store.rows import (
    Columns,
    ListedRun,
    chronological_key,
    problem_of,
    text_of,
    to_row,
)
from accel_bench.store.schema import (
    CHRONOLOGICAL,
    EXPERIMENTS,
    IDS,
    LABELS,
    RUN_NUMBER,
    RUNS,
    SESSIONS,
    SHOWN_LETTERS,
    reading,
    within_limits,
)
from accel_bench.store.sessions import SessionRecord, session_columns, to_session

__all__ = ["ListedRun", "SessionRecord", "Store", "open_store"]

TIMEOUT_SECONDS = 30.0
"""Time limit of waiting for another writer, in seconds."""

ROWS_AT_ONCE = 4
"""Number of rows with documents, which are large, in one fetch."""

ROWS_OF_COLUMNS = 500
"""Number of rows without documents in one fetch."""


MOST_DIGITS = 18
"""Number of digits of the largest run number."""

IDS_AT_ONCE = 500
"""Number of ids in one query."""


class Store:
    """Open store of results, a folder or a PostgreSQL database; its methods raise StoreError."""

    def __init__(self, opened: OpenDatabase) -> None:
        self.folder = opened.folder
        """Path of the results folder, in which runs leave their files."""
        self.place = opened.place
        """Name of the database in messages."""
        self._faults, self._connect = opened.faults, opened.connect
        self._engine = opened.engine
        self._writing = sqlite.writing(opened.engine)
        self.on_sqlite = opened.engine.dialect.name == "sqlite"
        self._reading = reading(self.on_sqlite)

    @property
    def url(self) -> URL:
        """Address of the database with its password, for a library that stores tables in it."""
        if self.on_sqlite:
            return URL.create("sqlite", database=str(self.folder / sqlite.FILE_NAME))
        return self._engine.url

    def add_session(self, session: SessionRecord) -> None:
        """Store a session, so that its runs can be added."""
        columns = session_columns(session)
        self._write(
            lambda connection: self._add_session(connection, session.id, columns),
            SESSIONS.c.id,
            columns,
        )

    def add(self, result: Result) -> Result:
        """Store one result in one transaction: when this returns, the row is on the disk.

        Returns the stored result, without secrets. Raises StoreError for an existing run id and for
        an unknown session.
        """
        stored = redact_result(result)
        record = run_record(stored)
        self._write(lambda connection: self._add(connection, record), RUNS.c.run_id, record.columns)
        return stored

    def _write(
        self, write: Callable[[Connection], None], key: Column[str], columns: Columns
    ) -> None:
        """Run `write` in one transaction; run it once more if a lost connection prevented the
        commit. `key` is the column that identifies the written row, `columns` the row's values."""
        same = key == columns[key.name], key.table.c.checksum == columns["checksum"]
        try:
            with self.changing() as connection:
                write(connection)
        except ConnectionLostError:
            with self.changing() as connection:
                if connection.scalar(select(key).where(*same)) is None:
                    write(connection)

    def add_together(self, records: Iterable[SessionRecord | Result], tag: str = "") -> None:
        """Store sessions and results in one transaction: all records, or none.

        An existing session is left unchanged. `tag` is a label that all these results get.
        """
        with self.changing() as connection:
            for record in records:
                if isinstance(record, Result):
                    self._add(connection, run_record(redact_result(record)))
                    if tag:
                        connection.execute(insert(LABELS), label_columns(record.run_id, "tag", tag))
                elif not self._has_session(connection, record.id):
                    self._add_session(connection, record.id, session_columns(record))

    def _has_session(self, connection: Connection, session: str) -> bool:
        same = select(SESSIONS.c.id).where(SESSIONS.c.id == session)
        return connection.scalar(same) is not None

    def _add_session(self, connection: Connection, session: str, columns: Columns) -> None:
        if self._has_session(connection, session):
            raise StoreError(f"the session {session!r} is already in {self.place}")
        connection.execute(insert(SESSIONS), columns)

    def _add(self, connection: Connection, record: RunRecord) -> None:
        run_id, session = record.columns["run_id"], record.columns["session"]
        if connection.scalar(select(RUNS.c.run_id).where(RUNS.c.run_id == run_id)) is not None:
            raise StoreError(
                f"run {run_id!r} is already in {self.place}, and nothing is overwritten"
            )
        if not self._has_session(connection, session):
            raise StoreError(
                f"run {run_id!r} belongs to the session {session!r}, which is not in {self.place}; "
                "add the session first"
            )
        insert_run(connection, record)

    def present(self, run_ids: Sequence[str]) -> Iterator[str]:
        """Yield the given run ids that the store has."""
        for part in in_parts(run_ids):
            condition = RUNS.c.run_id.in_(part)
            yield from (row["run_id"] for row in self.fetch(select(RUNS.c.run_id).where(condition)))

    def results(
        self,
        *conditions: ColumnElement[bool],
        session: str | None = None,
        experiment_ids: Collection[str] | None = None,
        scenario: str | None = None,
    ) -> list[Result]:
        """Return intact results, sorted by start time, round, position and attempt. All arguments
        limit the runs; `conditions` are on columns of `schema.RUNS`."""
        chosen = [*conditions]
        if session is not None:
            chosen.append(RUNS.c.session == session)
        if experiment_ids is not None:
            chosen.append(RUNS.c.experiment_id.in_(list(experiment_ids)))
        if scenario is not None:
            chosen.append(RUNS.c.scenario == scenario)
        return [result for _, result in self.each(*chosen) if result is not None]

    def with_ids(self, run_ids: Sequence[str]) -> list[Result]:
        """Return the intact results of these run ids; each 500 ids are sorted as by `results`."""
        parts = (self.results(RUNS.c.run_id.in_(part)) for part in in_parts(run_ids))
        return [result for part in parts for result in part]

    def each(self, *conditions: ColumnElement[bool]) -> Iterator[tuple[str, Result | None]]:
        """Yield each run's id and result, sorted as by `results`; None for an unreadable result."""
        for columns in self._runs(*conditions):
            yield str(columns["run_id"]), readable(columns)

    def by_experiment(self, *conditions: ColumnElement[bool]) -> Iterator[list[Mapping[str, Any]]]:
        """Yield a list of rows, corrupt ones too, for each experiment and stack. A list is sorted
        as by `results`. Only one list is in memory at a time."""
        names = [column.name for column in EXPERIMENTS]
        runs = self._runs(*conditions, order=(*EXPERIMENTS, *CHRONOLOGICAL))
        return (list(group) for _, group in groupby(runs, key=itemgetter(*names)))

    def rows(self, *conditions: ColumnElement[bool]) -> list[ListedRun]:
        """Return a list entry for each run, corrupt ones included."""
        return self.list_rows(*conditions)[0]

    def list_rows(
        self,
        *conditions: ColumnElement[bool],
        newest: int | None = None,
        most_corrupt: float = math.inf,
    ) -> tuple[list[ListedRun], int]:
        """Return a list entry for each run, and the number of corrupt runs left out.

        At most `most_corrupt` entries are of corrupt runs. `conditions` on columns of
        `schema.RUNS` filter the runs; `newest` limits their number.
        """
        if newest is None:
            runs: Iterable[Mapping[str, Any]] = self._runs(*conditions)
        else:
            last = [column.desc() for column in CHRONOLOGICAL]
            query = self._reading.where(*conditions).order_by(*last).limit(newest)
            runs = [*self.fetch(query, ROWS_AT_ONCE)][::-1]
        rows, corrupt, left_out = [], 0, 0
        for columns in runs:
            problem = problem_of(columns)
            corrupt += bool(problem)
            if problem and corrupt > most_corrupt:
                left_out += 1
            else:
                rows.append(to_row(columns, problem))
        return rows, left_out

    def count(self) -> int:
        """Return the number of stored runs."""
        (row,) = self.fetch(select(func.count().label("runs")).select_from(RUNS))
        return int(row["runs"])

    def named_by(self, word: str) -> list[ColumnElement[bool]]:
        """Return SQL conditions for the runs that a word names; the first that finds a run counts.

        The word is an id, the beginning of an id, or a run's number, as in `#12` or `12`. Raises
        StoreError for `#12` if runs have no numbers.
        """
        begins = [or_(*(begins_with(name, word) for name in IDS))] if word else []
        digits = word.removeprefix("#")
        numbered = digits.isdecimal() and len(digits) <= MOST_DIGITS
        if numbered and word != digits and not self.on_sqlite:
            raise StoreError(f"{word!r}: runs on a server have no numbers; name it by its id")
        number = [RUN_NUMBER == int(digits)] if numbered and self.on_sqlite else []
        return [or_(*(name == word for name in IDS)), *begins, *number]

    def numbers(self) -> dict[str, int]:
        """Return the short number of each run in a folder, by run id; empty for PostgreSQL."""
        if not self.on_sqlite:
            return {}
        query = select(RUNS.c.run_id, RUN_NUMBER.label("number"))
        return {row["run_id"]: row["number"] for row in self.fetch(query)}

    def find(self, prefix: str) -> list[Result]:
        """Return the results of the run, experiment or session whose id begins with `prefix`.
        Raises StoreError for an unknown id, or if no result can be read."""
        runs = next(filter(None, (list(self._runs(test)) for test in self.named_by(prefix))), [])
        if not runs:
            raise self.unknown(prefix)
        sound = [result for columns in runs if (result := readable(columns)) is not None]
        if not sound:
            raise StoreError("; ".join(map(unreadable, runs)))
        return sound

    def run_ids(self, prefix: str) -> list[str]:
        """Return the ids of the runs that `find` would return, and also ids of unreadable runs."""
        for condition in self.named_by(prefix):
            query = select(RUNS.c.run_id).where(condition).order_by(*CHRONOLOGICAL)
            if ids := [row["run_id"] for row in self.fetch(query)]:
                return ids
        raise self.unknown(prefix)

    def sessions(self, ids: Collection[str] | None = None) -> list[SessionRecord]:
        """Return intact sessions in order of their start: all, or the sessions of the given ids."""
        columns = within_limits(SESSIONS, self.on_sqlite, "document")
        query = select(*columns).order_by(SESSIONS.c.started_at, SESSIONS.c.id)
        query = query if ids is None else query.where(SESSIONS.c.id.in_(list(ids)))
        records = (to_session(columns) for columns in self.fetch(query))
        return [session for session in records if session is not None]

    @contextmanager
    def changing(self) -> Iterator[Connection]:
        """Open a transaction that writes, for the `with` block, and yield its connection."""
        with self._faults(), self._connect(self._writing) as connection, connection.begin():
            yield connection

    def _runs(
        self, *conditions: ColumnElement[bool], order: Sequence[Column[Any]] = CHRONOLOGICAL
    ) -> Iterator[Mapping[str, Any]]:
        try:
            query = self._reading.where(*conditions).order_by(*order)
            yield from self.fetch(query, ROWS_AT_ONCE)
        except sqlite.BrokenDatabaseError:
            # Sorting reads every row before it gives the first, so none was given yet.
            rows = sorted(self._salvage(*conditions), key=chronological_key)
            first = [column.name for column in order if column not in CHRONOLOGICAL]
            yield from sorted(rows, key=lambda columns: [text_of(columns[name]) for name in first])

    def _salvage(self, *conditions: ColumnElement[bool]) -> Iterator[Mapping[str, Any]]:
        """Yield the rows of runs, read one by one after a damaged page has stopped a query. A row
        that cannot be read is empty except for its id, which is read from an index."""
        ids = dict.fromkeys(row["run_id"] for row in self.fetch(select(RUNS.c.run_id)))
        for run_id in ids:
            query = self._reading.where(RUNS.c.run_id == run_id, *conditions)
            try:
                yield from list(self.fetch(query))
            except sqlite.BrokenDatabaseError:
                yield {**dict.fromkeys(RUNS.columns.keys(), ""), "run_id": run_id}

    def fetch(
        self, query: Select[Any], at_once: int = ROWS_OF_COLUMNS
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the rows of a query on tables of `schema`, fetched in groups of `at_once` rows."""
        with self._faults(), self._connect(self._engine) as connection:
            reading = connection.execution_options(yield_per=at_once)
            rows: Iterable[Any] = reading.execute(query).mappings()
            yield from rows

    def unknown(self, prefix: str) -> StoreError:
        """Return the error for an unknown id, which states the nearest ids or the newest ids."""
        short = (func.substr(name, 1, SHOWN_LETTERS).label(name.name) for name in IDS)
        query = select(*short).order_by(RUNS.c.started_at.desc()).limit(1000)
        rows = [tuple(map(str, row.values())) for row in self.fetch(query)]
        near = did_you_mean(prefix, {name for row in rows for name in row})
        if "did you mean" not in near:
            newest = list(dict.fromkeys(name for row in rows for name in row))[:6]
            near = f"; the newest are {', '.join(newest)}" if newest else "; there are none yet"
        return StoreError(
            f"no run, experiment or session in {self.folder} begins with {prefix!r}{near} "
            "(`accel-bench results list` shows all)"
        )


def in_parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the ids in groups of at most `IDS_AT_ONCE`, each small enough for one query."""
    return (ids[start : start + IDS_AT_ONCE] for start in range(0, len(ids), IDS_AT_ONCE))


def begins_with(column: ColumnElement[str], prefix: str) -> ColumnElement[bool]:
    """Return the condition that an id begins with a prefix, in a form that uses an index."""
    return and_(column >= prefix, column < prefix + chr(sys.maxunicode))


@contextmanager
def open_store(
    place: Path | str, *, write: bool, timeout_seconds: float = TIMEOUT_SECONDS
) -> Iterator[Store]:
    """Open a results folder for the `with` block; with `write` it is created if missing.

    `place` may also be the address of a PostgreSQL database: `postgresql+psycopg://user@host/name`.
    `?folder=DIR` names the folder for files of its runs, by default `accel_bench_results`, and
    `?options=` sets settings of the server. For up to `timeout_seconds`, a failed connection is
    retried and the end of another writer is awaited.

    Raises StoreError if there are no results, if the database is locked, unreadable, read-only or
    of another version, or if the disk is full. With `write`, an unreadable database file is
    renamed, never deleted.
    """
    with opened_database(place, write, timeout_seconds) as opened:
        yield Store(opened)
