"""The tables, in terms that every SQL database has."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Integer, MetaData, Table, Text

from accel_bench.scenario.experiment import SCHEMA_VERSION

STORE_VERSION = SCHEMA_VERSION
"""Version of the tables and of the results in them; what is newer is refused and left untouched."""

METADATA = MetaData()

META = Table(
    "meta",
    METADATA,
    Column("schema_version", Integer, nullable=False),
    Column("written_by", Text, nullable=False),
)
"""One row: the version of the tables, and of the accel-bench that made them."""

SESSIONS = Table(
    "sessions",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("started_at", Text, nullable=False),
    Column("scenario", Text, nullable=False),
    Column("command", Text, nullable=False),
    Column("document", Text, nullable=False),
    Column("checksum", Text, nullable=False),
)
"""One row for each `accel-bench run`; `command` and `document` are JSON."""

RUNS = Table(
    "runs",
    METADATA,
    Column("run_id", Text, primary_key=True),
    Column("session", Text, ForeignKey("sessions.id"), nullable=False),
    Column("experiment_id", Text, nullable=False),
    Column("scenario", Text, nullable=False),
    Column("stack", Text, nullable=False),
    Column("sweep", Text, nullable=False),
    Column("round", Integer, nullable=False),
    Column("position", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("status", Text, nullable=False),
    Column("started_at", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("checksum", Text, nullable=False),
)
"""One row for each attempt; `payload` is the `Result` as JSON, the others repeat parts of it.

It has no index but that of its key: a damaged index would hide rows, and no folder holds so many.
"""

CHRONOLOGICAL = (RUNS.c.started_at, RUNS.c.round, RUNS.c.position, RUNS.c.attempt, RUNS.c.run_id)
"""Order in which runs are read."""
