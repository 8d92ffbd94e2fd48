"""Attempts that were interrupted as the program was killed: their folders, and redaction of files.

During an attempt only this user can open its folder, and the program holds a lock on it, which ends
with the program. Some network file systems show a lock only to the host that holds it, so the
folder also names the host. A recorded attempt has a `result.json`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accel_bench.documents.files import PRIVATE, read_text, write_atomically
from accel_bench.documents.redaction import Redactor
from accel_bench.errors import StoreError, StoreUnavailableError
from accel_bench.job import UPDATE_FILE
from accel_bench.result import Result
from accel_bench.runner.artifacts import RESULT_FILE, RUNS_FOLDER, record_result, redact_file
from accel_bench.store.database import Store, open_store
from accel_bench.store.records import parse_result, redact_result
from accel_bench.store.schema import MAXIMUM_PAYLOAD_BYTES

PENDING_FILE = "kept.json"
"""Name of the file of a result that could not be stored yet, in the attempt's folder."""

HOST_FILE = "host"
"""Name of the file that names an attempt's host until the attempt has ended."""


@contextlib.contextmanager
def attempt_in_progress(folder: Path) -> Iterator[None]:
    """Lock an attempt's folder for the block; then let other users read it if it has a result."""
    with _locked(folder):
        write_atomically(folder / HOST_FILE, socket.gethostname())
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                (folder / HOST_FILE).unlink()
        if (folder / RESULT_FILE).exists():
            _open_to_others(folder)


@contextlib.contextmanager
def open_results(place: Path | str, *, write: bool = False) -> Iterator[Store]:
    """Open the store at `place`, a folder or a database's address, and redact interrupted attempts.
    With `write`, also add results that could not be stored when their run ended."""
    with open_store(place, write=write) as store:
        redact_unfinished(store.folder)
        if write:
            _store_pending(store)
        yield store


def save_pending_result(
    folder: Path, result: Result, error: StoreUnavailableError
) -> StoreUnavailableError:
    """Write a result to its attempt's folder because the database is unavailable. Returns a copy of
    `error` whose message also has the path of the written file."""
    path = folder / PENDING_FILE
    write_atomically(path, redact_result(result).model_dump_json(), mode=PRIVATE)
    return StoreUnavailableError(
        f"{error}. The result of the run that has just ended is kept in {path}, and the next "
        "`accel-bench run` with these results stores it"
    )


def _store_pending(store: Store) -> None:
    """Store the results that wait in attempts' folders, unless they belong to another database."""
    for folder in unfinished_attempts(store.folder):
        kept = folder / PENDING_FILE
        if not kept.is_file() or kept.is_symlink():
            continue
        with contextlib.suppress(StoreError, ValueError):
            text = read_text(kept, MAXIMUM_PAYLOAD_BYTES, StoreError, "")
            record_result(folder, store.add(parse_result(text)))
            kept.unlink()
            _open_to_others(folder)


def unfinished_attempts(root: Path) -> Iterator[Path]:
    """Yield the folder of each interrupted attempt, locked until the next folder is yielded.

    Attempts of a running program, links, and attempts of another host, whose program may still run,
    are left out.
    """
    for folder in _attempts(root):
        if folder.resolve() != root.resolve() / folder.relative_to(root):
            continue
        with contextlib.suppress(OSError), _locked(folder, wait=False):
            if not (folder / RESULT_FILE).exists() and not _of_another_host(folder):
                yield folder


def sessions_in_progress(root: Path) -> frozenset[str]:
    """Return the ids of the sessions that run now on this host."""
    ids = set()
    for folder in _attempts(root):
        if (folder / RESULT_FILE).exists() or not (folder / HOST_FILE).exists():
            continue
        try:
            with _locked(folder, wait=False):
                pass
        except OSError:
            ids.add(folder.relative_to(root / RUNS_FOLDER).parts[0])
    return frozenset(ids)


def _attempts(root: Path) -> list[Path]:
    """Return the folders of all attempts below `root`, also those in folders of sweep points."""
    runs = root / RUNS_FOLDER
    return sorted(
        job.parent for depth in ("*/*", "*/*/*") for job in runs.glob(f"{depth}/job.json")
    )


def redact_unfinished(root: Path) -> None:
    """Redact the jobs, logs and ranks' results of interrupted attempts.

    Secrets are those of this process and of the attempt's scenario, and texts in the form of a
    token. Files without write permission are left unchanged. Files with a run's changes of weights
    are removed.
    """
    for folder in unfinished_attempts(root):
        for path in folder.glob(UPDATE_FILE):
            with contextlib.suppress(OSError):
                path.unlink()
        redactor = Redactor.of_this_process(_environment(folder / "job.json"))
        for path in sorted(folder.glob("*")):
            if path.suffix in (".json", ".log") and not path.is_symlink():
                with contextlib.suppress(OSError):
                    redact_file(path, redactor, shorten=path.suffix == ".log")


def _open_to_others(folder: Path) -> None:
    """Let users who may read a session's folder also read an attempt's folder and its files."""
    readers = folder.parent.stat().st_mode & 0o777
    for path in folder.iterdir():
        if path.is_file() and not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o777 | readers & 0o044)
    folder.chmod(readers)


@contextlib.contextmanager
def _locked(folder: Path, wait: bool = True) -> Iterator[None]:
    """Lock a folder for the block. Without `wait`, raise OSError if another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            if not wait:  # A file system without locks shows no attempt as cut off.
                raise
        yield
    finally:
        os.close(descriptor)


def _of_another_host(folder: Path) -> bool:
    path = folder / HOST_FILE
    if not path.is_file():
        return False
    return path.read_text(encoding="utf8", errors="surrogateescape") != socket.gethostname()


def _environment(job: Path) -> dict[str, str]:
    """Return the environment variables of a job's scenario; empty if the job file is truncated."""
    try:
        scenario: Any = json.loads(job.read_text(encoding="utf8"))["experiment"]["scenario"]
        return {str(name): str(value) for name, value in scenario["environment"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
