"""The version of a database: refuse a later one, migrate an earlier one without loss."""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

from sqlalchemy import Connection, Engine, func, insert, inspect, select, update
from sqlalchemy.exc import DBAPIError

from accel_bench._version import __version__
from accel_bench.errors import StoreError
from accel_bench.store import sqlite
from accel_bench.store.schema import META, METADATA, SHOWN_LETTERS, STORE_VERSION

OLDEST_VERSION = 2
"""The earliest version from which there is a migration."""

LOCK = 0xACCE1
"""Number of the lock under which tables are made in PostgreSQL."""


class Version(NamedTuple):
    """What a database says of itself."""

    schema_version: int
    written_by: str


def has_tables(engine: Engine, place: str) -> bool:
    """Return whether there are tables; refuse those of other programs and of later versions."""
    with engine.connect() as connection:
        return _version(connection, place) is not None


def is_outdated(engine: Engine) -> bool:
    """Return whether a database that has tables must be migrated."""
    with engine.connect() as connection:
        return connection.scalar(select(META.c.schema_version)) != STORE_VERSION


def make_tables(writing: Engine, place: str) -> None:
    """Make missing tables under the write lock: processes that start together do it once.

    Taking the lock also finds a read-only or full disk before anything is measured. Tables of an
    earlier version are migrated.
    """
    with writing.begin() as connection:
        if connection.dialect.name == "postgresql":  # SQLite has taken its lock
            connection.execute(select(func.pg_advisory_xact_lock(LOCK)))
        found = _version(connection, place)
        if found is None:
            METADATA.create_all(connection)
            connection.execute(
                insert(META), {"schema_version": STORE_VERSION, "written_by": __version__}
            )
        elif found.schema_version != STORE_VERSION:
            _migrate(connection, found.schema_version, place)
        if connection.dialect.name == "sqlite":
            sqlite.refuse_triggers(connection, place)


def migrate(writing: Engine, place: str) -> None:
    """Migrate a database of an earlier version in one transaction: it is all of one or the other.

    Raises StoreError.
    """
    with writing.begin() as connection:
        found = _version(connection, place)
        if found is not None and found.schema_version != STORE_VERSION:
            _migrate(connection, found.schema_version, place)


def _migrate(connection: Connection, version: int, place: str) -> None:
    """Take all steps from a version. Raises StoreError where damage stops one."""
    # Alembic takes a tenth of a second to import, and is seldom needed.
    from alembic.migration import MigrationContext
    from alembic.operations import Operations
    from alembic.script import ScriptDirectory

    folder = resources.files("accel_bench.store") / "migrations"
    scripts = ScriptDirectory(str(folder))
    steps = [*scripts.iterate_revisions("head", str(version))]
    try:
        with Operations.context(MigrationContext.configure(connection)):
            for step in reversed(steps):
                step.module.upgrade()
    except DBAPIError as error:
        if not sqlite.is_broken(error):
            raise
        # Most of it can be read, so it is not set aside as a broken one is.
        raise StoreError(
            f"{place} is damaged and cannot be migrated: {error.orig}; nothing was changed. Copy "
            "what can be read with `sqlite3 FILE .recover`"
        ) from error
    connection.execute(update(META).values(schema_version=STORE_VERSION, written_by=__version__))


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
    if not OLDEST_VERSION <= found.schema_version <= STORE_VERSION:
        raise StoreError(_refused(place, found))
    return found


def _refused(place: str, found: Version) -> str:
    later = found.schema_version > STORE_VERSION
    do = (
        f"Upgrade to {found.written_by} or newer"
        if later
        else "Choose another place with --results, or read this one with the accel-bench that "
        "wrote it"
    )
    return (
        f"{place} has schema version {found.schema_version} and was written by accel-bench "
        f"{found.written_by}; this is accel-bench {__version__}, which reads versions "
        f"{OLDEST_VERSION} to {STORE_VERSION}. {do}; nothing was changed"
    )
