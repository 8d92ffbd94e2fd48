"""Compare exactly by how much the runs of a round changed the weights, where they kept that.

Each run leaves its change in a file. The parent opens it when the run has ended and takes its name
away at once: the file goes with the last reader, however the program ends.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from pathlib import Path
from typing import BinaryIO, NamedTuple

from accel_bench.job import BYTES_OF_A_CHANGE, SPARE_DISK_BYTES
from accel_bench.result import Result, WeightUpdate

BLOCK_BYTES = 1 << 22
"""Bytes of each of two files that are compared at once."""


class Change(NamedTuple):
    """The change of one run, in a file without a name."""

    run_id: str
    file: BinaryIO

    places: dict[str, tuple[int, int]]
    """Offset and size of each tensor, in bytes."""


class KeptUpdates:
    """The changes of a round's runs that are still to be compared."""

    def __init__(self, baseline: str, most: int) -> None:
        """Compare with the stack `baseline` what takes at most `most` bytes a run."""
        self._baseline = baseline
        self._most = most
        self._kept: dict[str, Change] = {}

    def room(self, folder: Path) -> int:
        """Return how many bytes the next run's file may take."""
        free = shutil.disk_usage(folder).free - SPARE_DISK_BYTES
        return max(0, min(self._most, free))

    def add(self, path: Path, result: Result) -> Result:
        """Take a run's file away; return its result with the distances that are known now.

        A file that cannot be read costs its distances, and never the result.
        """
        try:
            change = _take(path, result)
            return result if change is None else self._compare(change, result)
        except (OSError, ValueError) as error:
            return _without_file(result, str(error))

    def close(self) -> None:
        """Let all files go."""
        for change in self._kept.values():
            change.file.close()
        self._kept.clear()

    def _compare(self, change: Change, result: Result) -> Result:
        """Compare with the baseline's change, or let it wait for that."""
        stack = result.experiment.stack.name
        is_baseline = stack == self._baseline
        others = [
            other for name, other in self._kept.items() if (name == self._baseline) != is_baseline
        ]
        found = {other.run_id: distances(change, other) for other in others}
        if is_baseline:
            self.close()
        if others and not is_baseline:
            change.file.close()
        else:
            self._kept[stack] = change
        return result.model_copy(update={"update_distances": found})


def distances(one: Change, other: Change) -> dict[str, float]:
    """Return the L2 norm of the difference of two changes, for each tensor that both have."""
    return {
        name: _distance(one, other, name)
        for name, (_, size) in one.places.items()
        if name in other.places and other.places[name][1] == size
    }


def _distance(one: Change, other: Change, name: str) -> float:
    import numpy as np

    (place, size), (there, _) = one.places[name], other.places[name]
    one.file.seek(place)
    other.file.seek(there)
    squares = 0.0
    for start in range(0, size, BLOCK_BYTES):
        length = min(BLOCK_BYTES, size - start)
        ours, theirs = (np.frombuffer(run.file.read(length), "<f4") for run in (one, other))
        apart = ours.astype("f8") - theirs
        squares += float(apart @ apart)
    return math.sqrt(squares)


def _take(path: Path, result: Result) -> Change | None:
    """Open a run's file and take its name away; None for a run that kept none, or failed.

    Raises OSError where it cannot be opened, and ValueError where it holds something else.
    """
    update = result.ranks[0].update if result.ranks else None
    if not result.status.completed or update is None or not update.kept_bytes:
        remove(path)
        return None
    try:
        # Neither follow a link to another file, nor wait for one who writes to a pipe.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        file = open(os.open(path, flags), "rb")
    finally:
        remove(path)
    places = _places(update)
    expected = sum(size for _, size in places.values())
    if (found := os.fstat(file.fileno()).st_size) != expected:
        file.close()
        raise ValueError(f"it has {found:,} bytes in the place of {expected:,}")
    return Change(result.run_id, file, places)


def remove(path: Path) -> None:
    """Take the name of a run's file away, if it is there."""
    with contextlib.suppress(OSError):
        path.unlink()


def _places(update: WeightUpdate) -> dict[str, tuple[int, int]]:
    """Return where each tensor lies: they stand one after the other."""
    places, end = {}, 0
    for name, tensor in update.tensors.items():
        size = tensor.elements * BYTES_OF_A_CHANGE
        places[name] = (end, size)
        end += size
    return places


def _without_file(result: Result, reason: str) -> Result:
    """Return a result whose file could not be read, with the reason."""
    first, *others = result.ranks
    assert first.update is not None
    reasons = {"kept_bytes": 0, "kept_reason": f"its file could not be read: {reason}"}
    update = first.update.model_copy(update=reasons)
    ranks = (first.model_copy(update={"update": update}), *others)
    return result.model_copy(update={"ranks": ranks})
