"""Make folders of a results folder: safe names, and nothing outside the root."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from accel_bench.documents.files import MAXIMUM_NAME, naming_the_file
from accel_bench.errors import StoreError

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
    with naming_the_file(target):
        for folder in (parent.parent, parent):
            folder.mkdir(parents=True, exist_ok=True)
            if not folder.resolve().is_relative_to(inside):
                raise StoreError(f"{folder} is a link that leads out of {inside}; remove it")
        try:
            target.mkdir()
        except FileExistsError as error:
            raise StoreError(
                f"{target} is already there; a run's folder is never used twice"
            ) from error
    return target
