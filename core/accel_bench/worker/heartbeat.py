"""Worker's side of the heartbeat: four numbers in a memory-mapped page that the parent reads."""

from __future__ import annotations

import mmap
from pathlib import Path

from accel_bench.job import (
    HEARTBEAT_BYTES,
    HEARTBEAT_PASSES,
    HEARTBEAT_PHASE,
    HEARTBEAT_PLUGIN,
    PHASES,
)


class Heartbeat:
    """Writer of a rank's heartbeat page, by which the parent sees the rank's progress.

    It has no method for the step number: the stopwatch writes that to `page[HEARTBEAT_STEP]`.
    """

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(HEARTBEAT_BYTES))
        with path.open("r+b") as handle:
            self._map = mmap.mmap(handle.fileno(), HEARTBEAT_BYTES)
        self.page = memoryview(self._map).cast("Q")

    @property
    def phase(self) -> str:
        """Current phase of the worker, one of PHASES."""
        return PHASES[self.page[HEARTBEAT_PHASE]]

    @phase.setter
    def phase(self, name: str) -> None:
        self.page[HEARTBEAT_PHASE] = PHASES.index(name)

    def call(self, plugin: int) -> None:
        """Store the number of the plugin whose code is called from now on, from 1; 0 for none."""
        self.page[HEARTBEAT_PLUGIN] = plugin

    def end_pass(self) -> None:
        """Count a forward pass that is part of no step, so that the parent sees progress."""
        self.page[HEARTBEAT_PASSES] += 1
