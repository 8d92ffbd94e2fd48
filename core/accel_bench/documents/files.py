"""Write files whole: a reader sees the old content or the new one, never a part."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from accel_bench.errors import StoreUnavailableError

MAXIMUM_NAME = 100
"""Characters of a file's name that fit every file system, with room for an ending."""


def write_atomically(path: Path, text: str) -> None:
    """Write a file aside, force it to the disk and rename it.

    Raises StoreUnavailableError with the reason, such as a full disk; the old file is then still
    there.
    """
    aside = path.with_name(f".{path.name[:MAXIMUM_NAME]}.{secrets.token_hex(8)}")
    with naming_the_file(path):
        try:
            with aside.open("x", encoding="utf8", newline="") as handle:
                handle.write(text)
                handle.flush()
                os.fsync(handle.fileno())
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        _force_to_disk(path.parent)


@contextlib.contextmanager
def naming_the_file(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a StoreUnavailableError with the file and the reason."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailableError(f"{path}: {error.strerror or error}") from error


def _force_to_disk(folder: Path) -> None:
    """A rename is on the disk when the folder's own entry is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
