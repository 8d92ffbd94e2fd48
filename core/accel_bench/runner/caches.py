"""The folder of caches: this user's own, since what lies in it is run or unpickled.

It never lies in a results folder, which may have come from another person with a cache inside.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from accel_bench.errors import StoreError

VARIABLE = "ACCEL_BENCH_CACHE"
"""Variable that names another folder than `$XDG_CACHE_HOME/accel-bench`."""


def cache_folder() -> Path:
    """Make the folder where it is missing, and return it.

    Raises StoreError for a link, another user's folder, and one that others can enter.
    """
    folder = _named_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _refusal(folder, f"cannot be made: {reason}; mend that") from error
    if stat.S_ISLNK(found.st_mode):
        raise _refusal(folder, "is a link; remove it")
    if found.st_uid != os.geteuid():
        raise _refusal(
            folder, "belongs to another user, who could have put code into it: remove it"
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise _refusal(folder, f"is open to other users; run `chmod 700 {folder}`")
    return folder


def _named_folder() -> Path:
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # An XDG folder that is not absolute is to be ignored, says its specification.
    return Path(
        base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "accel-bench"
    ).absolute()


def _refusal(folder: Path, problem: str) -> StoreError:
    return StoreError(
        f"the folder of caches {str(folder)!r} {problem}, or let {VARIABLE} name another folder"
    )
