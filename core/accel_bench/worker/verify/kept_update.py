"""Keep the exact change of the trained weights in a file of the run's folder.

The file holds the numbers of all trained tensors one after the other, in float32: first the weights
before training, then the change in their place. A copy in memory would count as the run's memory.

A billion weights take 4 GB of disk and 50 s on one busy CPU core, beside 20 s for their sketches,
and the parent 40 s to compare two files; the quickstart takes 5 MiB, and 0.2 s for all of it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from accel_bench.analysis.wording import size
from accel_bench.job import BYTES_OF_A_CHANGE, SPARE_DISK_BYTES

BLOCK = 1 << 20
"""Elements that are read at once: 8 MB in float64."""


class KeptUpdate:
    """The file of one run; where it cannot be kept it is removed, and `reason` says why."""

    def __init__(self, path: Path, elements: Mapping[str, int], most: int) -> None:
        """Open the file for tensors of so many elements, if it takes at most `most` bytes."""
        self.bytes = 0
        self.reason = ""
        self._path = path
        self._places: dict[str, int] = {}
        for name, count in elements.items():
            self._places[name] = self.bytes
            self.bytes += count * BYTES_OF_A_CHANGE
        with self._removed_on_error():
            room = shutil.disk_usage(path.parent).free - SPARE_DISK_BYTES
            self._file = path.open("x+b")
        if not self.reason and self.bytes > (most := max(0, min(most, room))):
            self.remove(f"it takes {size(self.bytes)}, and {size(most)} may be used")

    def write(self, name: str, weights: torch.Tensor) -> None:
        """Write the weights of a tensor before training."""
        if weights.dtype == torch.float64:
            self.remove(f"{name} is float64, which a file in float32 cannot hold")
        if self.reason:
            return
        with self._removed_on_error():
            self._file.seek(self._places[name])
            for block in weights.reshape(-1).split(BLOCK):
                self._file.write(block.float().cpu().numpy().data)

    def sync(self) -> None:
        """Write everything to the disk now, so that nothing is written during a window."""
        if self.reason:
            return
        with self._removed_on_error():
            self._file.flush()
            os.fsync(self._file.fileno())

    def subtract(self, name: str, weights: torch.Tensor) -> float | None:
        """Write the change of a tensor in the place of its weights; return its L2 norm.

        None where the file could not be kept.
        """
        if self.reason or not weights.numel():
            return None if self.reason else 0.0
        place, squares = self._places[name], 0.0
        with self._removed_on_error():
            for block in weights.reshape(-1).split(BLOCK):
                self._file.seek(place)
                content = bytearray(self._file.read(block.numel() * BYTES_OF_A_CHANGE))
                change = block.cpu().double() - torch.frombuffer(content, dtype=torch.float32)
                squares += float(change.square().sum())
                self._file.seek(place)
                self._file.write(change.float().numpy().data)
                place += len(content)
        return None if self.reason else float(squares**0.5)

    def remove(self, reason: str) -> None:
        """Remove the file; `reason` says why it is not kept."""
        self.reason = self.reason or reason
        self.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def close(self) -> None:
        """Close the file and leave it where it is."""
        if hasattr(self, "_file"):
            with contextlib.suppress(OSError):
                self._file.close()

    @contextlib.contextmanager
    def _removed_on_error(self) -> Iterator[None]:
        """Remove the file where the disk does not take it."""
        try:
            yield
        except OSError as error:
            self.remove(f"it could not be written: {error.strerror or error}")
