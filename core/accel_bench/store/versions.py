"""The version of a database: make the tables of this one, refuse those of any other."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, Engine, func, insert, inspect, select

from accel_bench._version import __version__
from accel_bench.errors import StoreError
from accel_bench.store import sqlite
from accel_bench.store.schema import META, METADATA, SHOWN_LETTERS, STORE_VERSION

LOCK = 0xACCE1
"""Number of the lock under which tables are made in PostgreSQL."""


class Version(NamedTuple):
    """What a database says of itself."""

    schema_version: int
    written_by: str


def has_tables(engine: Engine, place: str) -> bool:
    """Return whether there are tables; refuse those of other programs and of other versions."""
    with engine.connect() as connection:
        return _version(connection, place) is not None


def make_tables(writing: Engine, place: str) -> None:
    """Make missing tables under the write lock: processes that start together do it once.

    Taking the lock also finds a read-only or full disk before anything is measured.
    """
    with writing.begin() as connection:
        if connection.dialect.name == "postgresql":  # SQLite has taken its lock
            connection.execute(select(func.pg_advisory_xact_lock(LOCK)))
        if _version(connection, place) is None:
            METADATA.create_all(connection)
            connection.execute(
                insert(META), {"schema_version": STORE_VERSION, "written_by": __version__}
            )
        if connection.dialect.name == "sqlite":
            sqlite.refuse_triggers(connection, place)


def _version(connection: Connection, place: str) -> Version | None:
    """Return what the database says of itself; None for an empty one. Raises StoreError."""
    tables = inspect(connection).get_table_names()
    for view in {*METADATA.tables}.intersection(inspect(connection).get_view_names()):
        # A view computes what it returns: without end, if who made it wants that.
        raise sqlite.BrokenDatabaseError(f"{place} has a view in the place of its table {view}")
    if not tables:
        return None
    if META.name not in tables:
        raise StoreError(f"{place} is a database of another program; choose another results folder")
    written_by = func.substr(META.c.written_by, 1, SHOWN_LETTERS).label("written_by")
    rows = connection.execute(select(META.c.schema_version, written_by).distinct().limit(2)).all()
    if len(rows) > 1:
        raise sqlite.BrokenDatabaseError(f"{place} names several schema versions")
    if not rows or not isinstance(rows[0].schema_version, int):
        raise sqlite.BrokenDatabaseError(f"{place} does not name its schema version")
    found = Version(*rows[0])
    if found.schema_version != STORE_VERSION:
        raise StoreError(_refused(place, found))
    return found


def _refused(place: str, found: Version) -> str:
    do = (
        f"Upgrade to {found.written_by} or newer"
        if found.schema_version > STORE_VERSION
        else "Export it with the accel-bench that wrote it (`accel-bench results export --output "
        "FILE`), and import the file into another results folder with this one (`accel-bench "
        "results import FILE`)"
    )
    return (
        f"{place} has schema version {found.schema_version} and was written by accel-bench "
        f"{found.written_by}; this is accel-bench {__version__}, which reads version "
        f"{STORE_VERSION}. {do}; nothing was changed"
    )
