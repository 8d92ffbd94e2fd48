"""Read text within a limit, write files whole (the old content or the new), and name them."""

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
"""Files that are no regular ones."""

MAXIMUM_NAME = 100
"""Characters of a file's name that fit every file system, with room for an ending."""


def read_text(path: Path, maximum_bytes: int, error: type[AccelBenchError], beyond: str) -> str:
    """Return the UTF-8 text of a file; `beyond` ends the message about a larger one.

    Raises `error` with the file and the reason.
    """
    return as_text(path, read_bytes(path, maximum_bytes, error, beyond), error)


def read_bytes(path: Path, maximum_bytes: int, error: type[AccelBenchError], beyond: str) -> bytes:
    """Return the bytes of a file, as `read_text` does the text."""
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
    """Open a file for reading, at once. Raises `error` for all but a regular file, by its name.

    A named pipe would be waited for until somebody writes to it, and a device never ends.
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
    """Raise `error` where a file has more bytes than it had: it is still written."""
    if os.fstat(handle.fileno()).st_size > size:
        raise error(f"{path}: grows while it is read; try again when it is complete")


def as_text(path: Path, raw: bytes, error: type[AccelBenchError]) -> str:
    """Return the UTF-8 text of a file's bytes. Raises `error`."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise error(f"{path}: not UTF-8 text (byte {problem.start}); save it as UTF-8") from problem


PRIVATE = 0o600
"""Mode of a file that may hold secrets until these are taken out of it."""


def write_atomically(path: Path, text: str | bytes | Iterable[str], *, mode: int = 0o666) -> None:
    """Write a file aside, force it to the disk and rename it; names that are no UTF-8 stay bytes.

    The text may come in pieces; the umask takes its bits from `mode`. Raises StoreError for what
    cannot be replaced, such as a folder or a device, and StoreUnavailableError with the reason,
    such as a full disk; the old file is then still there.
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
    """Return a new name in the folder of a file that is to be written and renamed to it.

    Raises StoreError where a folder, a device or a pipe has the file's place.
    """
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is {_kind(path.stat().st_mode)}; name a file to be written")
    return path.with_name(f".{path.name[:MAXIMUM_NAME]}.{secrets.token_hex(8)}")


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


def _kind(mode: int) -> str:
    """Return in words what a file is that is no regular one, by its mode."""
    return next((words for is_kind, words in _KINDS if is_kind(mode)), "no regular file")


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
