"""Private folder of caches, whose files are run or unpickled, so only its owner may write there.

The folder is never in a results folder, which another person may have sent with caches inside.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from accel_bench.errors import StoreError

VARIABLE = "ACCEL_BENCH_CACHE"
"""Environment variable of the cache folder, by default `$XDG_CACHE_HOME/accel-bench`."""


def cache_folder() -> Path:
    """Create the cache folder if missing, and return it.

    Raises StoreError if the folder cannot be made, is a link, belongs to another user, can be
    entered by others, or is configured with a leading `~` although there is no home folder.
    """
    folder = _named_folder()
    is_new = not os.path.lexists(folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _refusal(folder, f"cannot be made: {reason}; mend that") from error
    if not (problem := _problem(folder, status)):
        return folder
    if is_new:
        with contextlib.suppress(OSError):  # so that the next run says the same
            folder.rmdir()
        raise StoreError(
            f"the folder of caches {str(folder)!r} cannot be kept from other users, since this "
            f"file system does not keep owners or modes; let {VARIABLE} name another folder"
        )
    raise _refusal(folder, problem)


def _problem(folder: Path, status: os.stat_result) -> str:
    """Return what is wrong with the cache folder's owner or mode; empty for a safe folder."""
    if stat.S_ISLNK(status.st_mode):
        return "is a link; remove it"
    if status.st_uid != os.geteuid():
        return "belongs to another user, who could have put code into it: remove it"
    if stat.S_IMODE(status.st_mode) & 0o077:
        return f"is open to other users; run `chmod 700 {folder}`"
    return ""


def _named_folder() -> Path:
    """Return the cache folder's absolute path. Raises StoreError for a `~` without a home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # An XDG folder that is not absolute is to be ignored, says its specification.
    base = base if os.path.isabs(base) else os.path.expanduser("~/.cache")
    folder = Path(os.environ.get(VARIABLE) or os.path.join(base, "accel-bench"))
    if str(folder).startswith("~"):
        raise StoreError(
            f"the folder of caches {str(folder)!r} begins with `~`, which stands for no home "
            f"folder here; let {VARIABLE} name a folder by its whole path"
        )
    return folder.absolute()


def _refusal(folder: Path, problem: str) -> StoreError:
    return StoreError(
        f"the folder of caches {str(folder)!r} {problem}, or let {VARIABLE} name another folder"
    )
