"""The tables, in terms that every SQL database has."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    ForeignKey,
    Integer,
    MetaData,
    Select,
    Table,
    Text,
    case,
    func,
    literal,
    null,
    select,
)

METADATA = MetaData()

MAXIMUM_PAYLOAD_BYTES = 24 * 1024 * 1024
"""Largest result that is stored or read: that of a run of more than 100,000 samples."""

MAXIMUM_OTHER_BYTES = 64 * 1024
"""Most that the columns beside the payload take together."""

SHOWN_LETTERS = 200
"""Letters that are read of a text of a row that is too large."""


def _columns(kind: type[Integer | Text], *names: str) -> list[Column[Any]]:
    return [Column(name, kind, nullable=False) for name in names]


META = Table("meta", METADATA, *_columns(Integer, "schema_version"), *_columns(Text, "written_by"))
"""One row: the version of tables and results, and of the accel-bench that made them."""

SESSIONS = Table(
    "sessions",
    METADATA,
    Column("id", Text, primary_key=True),
    *_columns(Text, "started_at", "scenario", "command", "document", "checksum"),
)
"""One row for each `accel-bench run`; `command` and `document` are JSON."""

RUNS = Table(
    "runs",
    METADATA,
    Column("run_id", Text, primary_key=True),
    Column("session", Text, ForeignKey("sessions.id"), nullable=False),
    *_columns(Text, "experiment_id", "scenario", "stack", "sweep"),
    *_columns(Integer, "round", "position", "attempt"),
    *_columns(Text, "status", "started_at", "payload"),
    *_columns(Integer, "schema_version"),
    *_columns(Text, "checksum"),
)
"""One row for each attempt; `payload` is the `Result` as JSON, the others repeat parts of it.

It has no index but that of its key: a damaged index would hide rows, and no folder holds so many.
"""

CHRONOLOGICAL = (RUNS.c.started_at, RUNS.c.round, RUNS.c.position, RUNS.c.attempt, RUNS.c.run_id)
"""Order in which runs are read."""

IDS = (RUNS.c.run_id, RUNS.c.experiment_id, RUNS.c.session)
"""Ids that name runs."""


def within_limits(table: Table, payload: str) -> Select[Any]:
    """Select a table; of a row that is too large, the texts are cut and the payload is null."""
    size = sum((func.coalesce(func.length(one), 0) for one in table.columns), start=literal(0))
    fits = size <= MAXIMUM_PAYLOAD_BYTES + MAXIMUM_OTHER_BYTES

    def limited(column: Column[Any]) -> ColumnElement[Any]:
        cut = null() if column.name == payload else func.substr(column, 1, SHOWN_LETTERS)
        return case((fits, column), else_=cut).label(column.name)

    return select(*map(limited, table.columns))


READING = within_limits(RUNS, "payload")
"""Query of all runs, to be read row by row."""
