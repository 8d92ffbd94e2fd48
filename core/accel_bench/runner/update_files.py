"""Exact comparison of the updates (weights' changes) of a round's runs, by files of the runs.

The parent opens a run's file when the run has ended, and unlinks it immediately. The file thus
disappears when it is closed, however the program ends.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import stat
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from accel_bench.job import BYTES_OF_A_CHANGE, SPARE_DISK_BYTES
from accel_bench.result import Result, WeightUpdate

BLOCK_BYTES = 1 << 22
"""Bytes of each of two files that are compared at a time."""

AT_ONCE = "sweep points run at once: comparing files would disturb the others' windows"
"""Reason why concurrent runs keep no file."""


class UpdateFile(NamedTuple):
    """Open file, already unlinked, with the update of one run's weights."""

    run_id: str
    stack: str
    file: BinaryIO

    places: dict[str, tuple[int, int]]
    """Offset and size of each tensor in the file, in bytes."""


class BrokenFileError(ValueError):
    """Error for a file of a run's update that cannot be read or does not match the run's result."""

    def __init__(self, change: UpdateFile, reason: str) -> None:
        super().__init__(reason)
        self.change = change


class PendingUpdates:
    """Files of updates by a round's runs that wait for comparison with the baseline's update."""

    def __init__(self, baseline: str, most: int) -> None:
        """Prepare comparisons with the stack `baseline`, by files of at most `most` bytes each."""
        self._baseline = baseline
        self._most = most
        self._kept: dict[str, UpdateFile] = {}

    def room(self, folder: Path, shared: bool = False) -> int:
        """Return the largest size in bytes of the next run's file, limited by the free disk space
        at `folder`. It is 0 if the run is `shared`: concurrent with runs of other sweep points."""
        if shared:
            return 0
        free = shutil.disk_usage(folder).free - SPARE_DISK_BYTES
        return max(0, min(self._most, free))

    def add(self, path: Path, result: Result, shared: bool = False) -> Result:
        """Open and unlink the file of a run's update; return the run's result with the distances
        between its update and those of earlier runs. If the file is unreadable, the result has no
        distances. A `shared` run is concurrent with other runs, and should have no file."""
        if shared and self._most and result.ranks and result.ranks[0].update:
            result = _with_update(result, kept_reason=AT_ONCE)
        try:
            change = _take(path, result)
            return result if change is None else self._compare(change, result)
        except (OSError, ValueError) as error:
            reason = f"its file could not be read: {error}"
            return _with_update(result, kept_bytes=0, kept_reason=reason)

    def close(self) -> None:
        """Close the files of all runs whose updates wait for comparison."""
        for change in self._kept.values():
            change.file.close()
        self._kept.clear()

    def _compare(self, change: UpdateFile, result: Result) -> Result:
        """Return `result` with the distances of its update `change` to earlier runs' updates; keep
        the file of `change` open if later runs need it."""
        stack = result.experiment.stack.name
        is_baseline = stack == self._baseline
        others = [
            other for name, other in self._kept.items() if (name == self._baseline) != is_baseline
        ]
        norms, reason = {}, ""
        for other in others:
            try:
                norms[other.run_id] = distances(change, other)
            except BrokenFileError as error:
                if error.change is change:
                    change.file.close()
                    raise
                self._kept.pop(other.stack).file.close()
                reason = f"the file of stack {other.stack} could not be read: {error}"
        if is_baseline:
            self.close()
        if others and not is_baseline:
            change.file.close()
        else:
            self._kept[stack] = change
        result = result.model_copy(update={"update_distances": norms})
        return _with_update(result, kept_reason=reason) if reason else result


def distances(one: UpdateFile, other: UpdateFile) -> dict[str, float]:
    """Return, for each tensor in both files, the L2 norm of the difference of two updates."""
    return {
        name: _distance(one, other, name)
        for name, (_, size) in one.places.items()
        if name in other.places and other.places[name][1] == size
    }


def _distance(one: UpdateFile, other: UpdateFile, name: str) -> float:
    import numpy as np

    (place, size), (there, _) = one.places[name], other.places[name]
    one.file.seek(place)
    other.file.seek(there)
    squares = 0.0
    for start in range(0, size, BLOCK_BYTES):
        length = min(BLOCK_BYTES, size - start)
        ours, theirs = (np.frombuffer(_read(run, length), "<f4") for run in (one, other))
        for run, numbers in ((one, ours), (other, theirs)):
            if not np.isfinite(numbers).all():
                raise BrokenFileError(run, f"it holds numbers that are not finite, in {name}")
        apart = ours.astype("f8") - theirs
        squares += float(apart @ apart)
    return math.sqrt(squares)


def _read(change: UpdateFile, length: int) -> bytes:
    """Return the next `length` bytes of a file. Raises BrokenFileError if there are fewer bytes."""
    try:
        content = change.file.read(length)
    except OSError as error:
        raise BrokenFileError(change, str(error)) from error
    if len(content) < length:
        raise BrokenFileError(change, "it has become shorter")
    return content


def _take(path: Path, result: Result) -> UpdateFile | None:
    """Return the opened and unlinked file of a completed run's update, or None if it wrote none.
    Raises OSError if the file cannot be opened, and ValueError if its size is wrong."""
    update = result.ranks[0].update if result.ranks else None
    if not result.status.completed or update is None or not update.kept_bytes:
        remove(path)
        return None
    places = _places(update)
    try:
        # Neither follow a link to another file, nor wait for one who writes to a pipe.
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    finally:
        remove(path)
    try:
        _check(os.fstat(number), sum(size for _, size in places.values()))
    except ValueError:
        os.close(number)
        raise
    return UpdateFile(result.run_id, result.experiment.stack.name, open(number, "rb"), places)


def _check(status: os.stat_result, expected: int) -> None:
    """Raise ValueError unless a file is regular and has the expected size in bytes."""
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no file")
    if status.st_size != expected:
        raise ValueError(f"it has {status.st_size:,} bytes in the place of {expected:,}")


def remove(path: Path) -> None:
    """Unlink a run's file if it exists; also remove a folder of that name."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _places(update: WeightUpdate) -> dict[str, tuple[int, int]]:
    """Return each tensor's offset and size in the file, in bytes, by the tensor's name."""
    places, end = {}, 0
    for name, tensor in update.tensors.items():
        size = tensor.elements * BYTES_OF_A_CHANGE
        places[name] = (end, size)
        end += size
    return places


def _with_update(result: Result, **fields: Any) -> Result:
    """Return a result in which `fields` replace fields of the `WeightUpdate` of its first rank."""
    first, *others = result.ranks
    assert first.update is not None
    update = first.update.model_copy(update=fields)
    ranks = (first.model_copy(update={"update": update}), *others)
    return result.model_copy(update={"ranks": ranks})
