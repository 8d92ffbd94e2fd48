"""Reading of files within a size limit, atomic writing, locks, and safe file names."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

from accel_bench.errors import AccelBenchError, StoreError, StoreUnavailableError

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
"""Names of kinds of files other than regular ones."""

MAXIMUM_NAME = 100
"""Longest file name in characters that every file system takes, with room for an ending."""


def read_text(path: Path, maximum_bytes: int, error: type[AccelBenchError], beyond: str) -> str:
    """Return the UTF-8 text of a file of at most `maximum_bytes`.

    Raises `error` with the file and the reason; `beyond` is added to the message for a larger file.
    """
    return as_text(path, read_bytes(path, maximum_bytes, error, beyond), error)


def read_bytes(path: Path, maximum_bytes: int, error: type[AccelBenchError], beyond: str) -> bytes:
    """Return the bytes of a file; the arguments and the errors are as for `read_text`."""
    with open_regular(path, error) as handle:
        size = os.fstat(handle.fileno()).st_size
        try:
            raw = handle.read(maximum_bytes + 1) if size <= maximum_bytes else b""
        except OSError as problem:
            raise error(f"{str(path)!r} cannot be read: {problem.strerror}") from problem
        if max(size, len(raw)) > maximum_bytes:
            raise error(f"{path}: larger than {maximum_bytes} bytes{beyond}")
        refuse_growth(handle, path, error, len(raw))
    return raw


def open_regular(path: Path, error: type[AccelBenchError]) -> BinaryIO:
    """Open a regular file for reading, without waiting. Raises `error` for other kinds of files.

    Opening a named pipe would wait for a writer, and reading a device would never end.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise error(f"{str(path)!r} cannot be read: {reason}") from problem
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        do = (
            "name a file in it" if stat.S_ISDIR(mode) else "save what comes from it as a file first"
        )
        raise error(f"{str(path)!r} cannot be read: it is {_kind(mode)}; {do}")
    return open(descriptor, "rb")


def refuse_growth(handle: BinaryIO, path: Path, error: type[AccelBenchError], size: int) -> None:
    """Raise `error` if an open file has grown beyond the `size` bytes that were read from it."""
    if os.fstat(handle.fileno()).st_size > size:
        raise error(f"{path}: grows while it is read; try again when it is complete")


def as_text(path: Path, raw: bytes, error: type[AccelBenchError]) -> str:
    """Return `raw`, a file's bytes, as text. Raises `error` with the path if they are not UTF-8."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise error(f"{path}: not UTF-8 text (byte {problem.start}); save it as UTF-8") from problem


PRIVATE = 0o600
"""Mode of a file that may hold secrets until they are redacted."""


def write_atomically(path: Path, text: str | bytes | Iterable[str], *, mode: int = 0o666) -> None:
    """Write text to a temporary file, flush it to the disk, and rename it to `path`.

    The text may come in pieces; the umask is applied to `mode`. Bytes that are not UTF-8, as Python
    reads them in file names, are written unchanged. Raises StoreError for a target that cannot be
    replaced, such as a folder or a device, and StoreUnavailableError with the reason, such as a
    full disk; the old file then remains.
    """
    aside = aside_of(path)
    binary = isinstance(text, bytes)
    how = {} if binary else {"encoding": "utf8", "errors": "surrogateescape", "newline": ""}
    with naming_the_file(path):
        try:
            opened: IO[Any] = open(  # type: ignore[call-overload]
                aside,
                "xb" if binary else "x",
                opener=lambda name, flags: os.open(name, flags, mode),
                **how,
            )
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


def aside_of(path: Path) -> Path:
    """Return a new name for a temporary file in the folder of `path`.

    Raises StoreError if a folder, a device or a pipe has the name `path`.
    """
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is {_kind(path.stat().st_mode)}; name a file to be written")
    return path.with_name(f".{path.name[:MAXIMUM_NAME]}.{secrets.token_hex(8)}")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock the file `path`, created if missing, for the block; wait while others hold the lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def naming_the_file(path: Path) -> Iterator[None]:
    """Turn an OSError in the `with` block into StoreUnavailableError with `path` and the reason."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailableError(f"{path}: {error.strerror or error}") from error


def _kind(mode: int) -> str:
    """Return the kind of a file that is not regular, such as `a folder`, from its `st_mode`."""
    return next((words for is_kind, words in _KINDS if is_kind(mode)), "no regular file")


def slug(text: str) -> str:
    """Return a file name for any text: at most 100 letters, digits, `.`, `_`, `+` and `-`.

    A text that is such a name stays unchanged. Any other gets a short hash at its end, so that
    different texts stay different.
    """
    plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", text)
    plain = re.sub(r"\.{2,}", ".", plain).strip(".-")
    if plain == text and 0 < len(plain) <= MAXIMUM_NAME:
        return plain
    mark = hashlib.sha256(text.encode("utf8", "surrogatepass")).hexdigest()[:8]
    return f"{plain[: MAXIMUM_NAME - len(mark) - 1] or 'unnamed'}-{mark}"
