"""Support of PostgreSQL: addresses, connections, and errors of the server."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import URL, Connection, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, OperationalError

from accel_bench.documents.program import DEFAULT_RESULTS
from accel_bench.documents.redaction import looks_secret
from accel_bench.errors import StoreError, StoreUnavailableError

DRIVER = "postgresql+psycopg"
"""Name of the only supported driver, also for `postgresql://`."""

RETRY_SECONDS = 0.5
"""Seconds between two attempts to reach a lost server."""


class ConnectionLostError(StoreUnavailableError):
    """Error for a connection lost in a transaction, which may or may not be committed."""


class Address(NamedTuple):
    """Address of a database, with the folder for the files of its runs."""

    url: URL
    folder: Path

    @property
    def shown(self) -> str:
        """Address for messages, without its password."""
        secrets = [name for name in self.url.query if looks_secret(name)]
        return self.url.difference_update_query(secrets).render_as_string(hide_password=True)


def is_address(place: str) -> bool:
    """Return whether the text `place` is a server's address rather than the path of a folder."""
    return "://" in place


def parse_address(place: str) -> Address:
    """Return the parts of `postgresql+psycopg://user@host/database?folder=DIR`. Raises StoreError
    for another form, without repeating text that may hold a password."""
    scheme = place.partition("://")[0]
    if scheme not in (DRIVER, "postgresql"):
        raise StoreError(
            f"--results {scheme}://... is no kind of database that is known; give a folder, or "
            f"{DRIVER}://USER@HOST/DATABASE"
        )
    try:
        url = make_url(place).set(drivername=DRIVER)
    except (ArgumentError, ValueError) as error:
        raise StoreError(
            f"--results {scheme}://... cannot be read; expected {DRIVER}://USER@HOST/DATABASE"
        ) from error
    folder = url.query.get("folder", DEFAULT_RESULTS)
    if not isinstance(folder, str):
        raise StoreError("--results names several folders for the files of its runs")
    return Address(url.difference_update_query(["folder"]), Path(folder))


def connect(address: Address, *, write: bool, timeout_seconds: float) -> Engine:
    """Return an SQLAlchemy engine, not yet connected; without `write` it only reads. `options` in
    the address are further settings of the server. Raises StoreError if the driver is missing."""
    query = {"connect_timeout": str(max(2, int(timeout_seconds))), **address.url.query}
    given = query.get("options", ())
    # Of a setting that is given twice the last one holds.
    settings = [f"-c lock_timeout={int(timeout_seconds * 1000)}"]
    settings += [given] if isinstance(given, str) else given
    settings += [] if write else ["-c default_transaction_read_only=on"]
    url = address.url.update_query_dict({**query, "options": " ".join(settings)})
    try:
        return create_engine(url, pool_size=1, max_overflow=1, pool_pre_ping=True)
    except ModuleNotFoundError as error:
        raise StoreError(
            f"{address.shown} needs psycopg: pip install 'accel-bench[postgresql]'"
        ) from error


def connect_again(engine: Engine, seconds: float) -> Connection:
    """Return a connection; retry for `seconds` if the server cannot be reached, then raise."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return engine.connect()
        except OperationalError:
            if time.monotonic() > deadline:
                raise
        time.sleep(RETRY_SECONDS)


@contextlib.contextmanager
def named_faults(place: str) -> Iterator[None]:
    """Turn errors of server or driver in the block into StoreError with address and reason."""
    try:
        yield
    except IntegrityError as error:
        raise StoreError(
            f"{place} refused a row, and nothing is overwritten: {error.orig}"
        ) from error
    except DBAPIError as error:
        problem = " ".join(str(error.orig).split())
        kind = ConnectionLostError if error.connection_invalidated else StoreUnavailableError
        raise kind(
            f"{place} cannot be used: {problem}; check that the server runs and lets you in. What "
            "was stored before is kept"
        ) from error
