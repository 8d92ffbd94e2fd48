"""Support of SQLite: connections, locks, and errors of the file."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from accel_bench.documents.files import naming_the_file
from accel_bench.errors import StoreError, StoreUnavailableError

FILE_NAME = "results.sqlite"
"""Name of the database in a results folder."""

_HEADER = b"SQLite format 3\0"
_BROKEN = (
    "not a database",
    "malformed",
    "file is encrypted",
    "unsupported file format",
    "no such table",
    "no such column",
)
_LOCKED = ("locked", "busy")

KEEPING_ODD_BYTES = partial(str, encoding="utf8", errors="surrogateescape")
"""Decoding of texts that accepts invalid UTF-8: a damaged row must fail its checksum."""


class BrokenDatabaseError(StoreError):
    """Error for an existing file that cannot be read as a database."""


def connect(path: Path, *, write: bool, timeout_seconds: float) -> Engine:
    """Return an engine, not yet open; without `write` it neither creates nor changes files."""
    uri = f"{path.as_uri()}?mode={'rwc' if write else 'rw'}"
    if not write and not os.access(path.parent, os.W_OK) and not _has_log(path):
        # Readers of a WAL database must create its shared memory, unless no process writes.
        uri += "&immutable=1"

    def open_file() -> sqlite3.Connection:
        # Without an isolation level, only `_begin` begins a transaction.
        opened = sqlite3.connect(
            uri, uri=True, timeout=timeout_seconds, isolation_level=None, check_same_thread=False
        )
        opened.text_factory = KEEPING_ODD_BYTES
        return opened

    def configure(opened: sqlite3.Connection, record: object) -> None:
        opened.execute("PRAGMA foreign_keys=ON").close()
        opened.execute("PRAGMA trusted_schema=OFF").close()  # The file may be another person's.
        # FULL: in WAL mode the default would lose acknowledged rows when the machine loses power.
        opened.execute("PRAGMA synchronous=FULL").close()
        if not write:
            # Readers open the file like writers, or they would leave the log's index behind.
            opened.execute("PRAGMA query_only=ON").close()

    engine = create_engine("sqlite://", creator=open_file, poolclass=QueuePool)
    event.listen(engine, "connect", configure)
    event.listen(engine, "begin", _begin)
    return engine


def writing(engine: Engine) -> Engine:
    """Return an engine whose transactions take the write lock at their start.

    SQLite refuses the lock without waiting if the transaction has already read.
    """
    return engine.execution_options(immediate=True)


def enable_wal(engine: Engine, timeout_seconds: float) -> None:
    """Enable WAL mode, in which others read while one process writes; the file stores the mode.

    SQLite does not wait for the lock that this change needs, so it is retried until the time limit.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            with contextlib.closing(engine.raw_connection()) as connection:
                connection.cursor().execute("PRAGMA journal_mode=WAL").close()
            return
        except sqlite3.OperationalError as error:
            if not _is(error, _LOCKED) or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


@contextlib.contextmanager
def named_faults(path: Path) -> Iterator[None]:
    """Turn database and disk errors in the block into StoreError with the file and the reason."""
    try:
        with naming_the_file(path):
            yield
    except (DBAPIError, sqlite3.Error) as error:
        reason = error.orig if isinstance(error, DBAPIError) else error
        raise _named(path, reason or error) from error


def check_file(path: Path) -> None:
    """Raise StoreError for a link, a folder, another file format, or an empty file with a log."""
    if path.is_symlink():
        raise StoreError(f"{path} is a symbolic link; results are only kept inside their folder")
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is not a file; move it away or choose another results folder")
    # The log is looked at first: SQLite gives the database its first page before it makes the log.
    has_log = _has_log(path)
    if not path.exists():
        return
    with path.open("rb") as handle:
        header = handle.read(len(_HEADER))
    if has_log and not header:
        raise BrokenDatabaseError(f"{path} is empty, but its write-ahead log is not")
    if header and header != _HEADER:
        raise BrokenDatabaseError(
            f"{path} cannot be read as a results database: file is not a database"
        )


def refuse_triggers(connection: Connection, place: str) -> None:
    """Raise StoreError for a database with triggers: they may delete or change what is stored."""
    triggers = connection.execute(
        text("SELECT name, tbl_name FROM sqlite_master WHERE type = 'trigger' ORDER BY name")
    ).all()
    if triggers:
        listed = ", ".join(f"{name!r} on {table}" for name, table in triggers)
        raise StoreError(
            f"{place} has triggers that accel-bench has not made ({listed}), which may delete or "
            "change what is stored; remove them with DROP TRIGGER, or choose another results "
            "folder. Nothing was changed, and it can be read as it is"
        )


def set_aside(path: Path) -> Path:
    """Rename a broken database and its log, overwriting no file; return the new path."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S%fZ")
    target = path.with_name(f"{path.name}.broken-{stamp}-{secrets.token_hex(4)}")
    for ending in ("", "-wal", "-shm"):
        if _beside(path, ending).exists():
            _beside(path, ending).rename(_beside(target, ending))
    return target


def _begin(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("immediate", False)
    connection.execute(text("BEGIN IMMEDIATE" if immediate else "BEGIN"))


def _named(path: Path, reason: BaseException) -> StoreError:
    """Return the StoreError for an SQLite error, with the file, the error's text and a remedy."""
    problem = str(reason)
    if _is(reason, _BROKEN):
        return BrokenDatabaseError(f"{path} cannot be read as a results database: {problem}")
    if isinstance(reason, sqlite3.IntegrityError):
        return StoreError(
            f"{path} refused a row ({problem}), and nothing of it is stored: the database has a "
            "trigger or a constraint that accel-bench has not made, which its schema shows; remove "
            "it, or choose another results folder"
        )
    if _is(reason, _LOCKED):
        return StoreUnavailableError(
            f"{path} is locked by another process ({problem}); wait until it has finished, or "
            "choose another results folder"
        )
    return StoreUnavailableError(
        f"{path} cannot be used: {problem}; check free space and permissions of the folder. What "
        "was stored before is kept"
    )


def _is(reason: BaseException, words: tuple[str, ...]) -> bool:
    # Error codes have names only since Python 3.11.
    return any(word in str(reason) for word in words)


def _has_log(path: Path) -> bool:
    log = _beside(path, "-wal")
    return log.exists() and log.stat().st_size > 0


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)
