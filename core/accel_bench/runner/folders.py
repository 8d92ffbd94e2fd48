"""Files of a results folder: safe names, nothing outside the root, nothing half written."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from pathlib import Path

from accel_bench.errors import StoreError
from accel_bench.store.sqlite import named_faults

MAXIMUM_NAME = 100
"""Characters of a slug, so that it fits every file system."""

RUNS_FOLDER = "runs"
"""Where the attempts' folders lie in a results folder."""


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


def run_folder(root: Path, session: str, name: str) -> Path:
    """Make and return the new folder `runs/<session>/<name>` of an attempt, its names as slugs.

    Raises StoreError when it is already there, or when a link would lead out of the root.
    """
    inside = root.resolve()
    parent = inside / RUNS_FOLDER / slug(session)
    target = parent / slug(name)
    with named_faults(target):
        for folder in (parent.parent, parent):
            _make_inside(inside, folder)
        try:
            target.mkdir()
        except FileExistsError as error:
            raise StoreError(
                f"{target} is already there; a run's folder is never used twice"
            ) from error
    return target


def write_atomically(path: Path, text: str) -> None:
    """Write a file aside, force it to the disk and rename it: readers see the old or the new one.

    Raises StoreError with the reason, such as a full disk; the old file is then still there.
    """
    aside = path.with_name(f".{path.name[:MAXIMUM_NAME]}.{secrets.token_hex(8)}")
    with named_faults(path):
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


def _make_inside(root: Path, folder: Path) -> None:
    """Make a folder that may be there already, but is no way out of the root."""
    folder.mkdir(parents=True, exist_ok=True)
    if not folder.resolve().is_relative_to(root):
        raise StoreError(f"{folder} is a link that leads out of {root}; remove it")


def _force_to_disk(folder: Path) -> None:
    """A rename is on the disk when the folder's own entry is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
