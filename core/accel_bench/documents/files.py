"""Read text within a limit, write files whole (the old content or the new), and name them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from accel_bench.errors import AccelBenchError, StoreUnavailableError

MAXIMUM_NAME = 100
"""Characters of a file's name that fit every file system, with room for an ending."""


def read_text(path: Path, maximum_bytes: int, error: type[AccelBenchError], beyond: str) -> str:
    """Return the UTF-8 text of a file; `beyond` ends the message about a larger one.

    Raises `error` with the file and the reason.
    """
    return as_text(path, read_bytes(path, maximum_bytes, error, beyond), error)


def read_bytes(path: Path, maximum_bytes: int, error: type[AccelBenchError], beyond: str) -> bytes:
    """Return the bytes of a file, as `read_text` does the text."""
    try:
        with path.open("rb") as handle:
            raw = handle.read(maximum_bytes + 1)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise error(f"{str(path)!r} cannot be read: {reason}") from problem
    if len(raw) > maximum_bytes:
        raise error(f"{path}: larger than {maximum_bytes} bytes{beyond}")
    return raw


def as_text(path: Path, raw: bytes, error: type[AccelBenchError]) -> str:
    """Return the UTF-8 text of a file's bytes. Raises `error`."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise error(f"{path}: not UTF-8 text (byte {problem.start}); save it as UTF-8") from problem


def write_atomically(path: Path, text: str | bytes | Iterable[str]) -> None:
    """Write a file aside, force it to the disk and rename it; names that are no UTF-8 stay bytes.

    The text may come in pieces. Raises StoreUnavailableError with the reason, such as a full disk;
    the old file is then still there.
    """
    aside = path.with_name(f".{path.name[:MAXIMUM_NAME]}.{secrets.token_hex(8)}")
    binary = isinstance(text, bytes)
    how = {} if binary else {"encoding": "utf8", "errors": "surrogateescape", "newline": ""}
    with naming_the_file(path):
        try:
            opened: IO[Any] = open(aside, "xb" if binary else "x", **how)  # type: ignore[call-overload]
            with opened as handle:
                handle.writelines([text] if isinstance(text, str | bytes) else text)
                handle.flush()
                os.fsync(handle.fileno())
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        # A rename is on the disk when the folder's own entry is.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file for the block, which is made with its folder; others wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def naming_the_file(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a StoreUnavailableError with the file and the reason."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailableError(f"{path}: {error.strerror or error}") from error


def slug(text: str) -> str:
    """Make a file name of any text: letters, digits, `.`, `_`, `+` and `-`, at most 100 characters.

    A text that is such a name stays as it is. Any other gets a short hash at its end, so that
    different texts stay different.
    """
    plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", text)
    plain = re.sub(r"\.{2,}", ".", plain).strip(".-")
    if plain == text and 0 < len(plain) <= MAXIMUM_NAME:
        return plain
    mark = hashlib.sha256(text.encode("utf8", "surrogatepass")).hexdigest()[:8]
    return f"{plain[: MAXIMUM_NAME - len(mark) - 1] or 'unnamed'}-{mark}"
