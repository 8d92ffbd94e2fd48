"""The worker's side of the heartbeat: two numbers in a memory-mapped page."""

from __future__ import annotations

import mmap
from pathlib import Path

from accel_bench.job import HEARTBEAT_BYTES, HEARTBEAT_PHASE, HEARTBEAT_STEP, PHASES


class Heartbeat:
    """Stores the step number and the phase where the parent reads them."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(HEARTBEAT_BYTES))
        with path.open("r+b") as handle:
            self._map = mmap.mmap(handle.fileno(), HEARTBEAT_BYTES)
        self.page = memoryview(self._map).cast("Q")

    def beat(self, step: int) -> None:
        """Store the number of steps that have ended."""
        self.page[HEARTBEAT_STEP] = step

    @property
    def phase(self) -> str:
        """What the worker is doing."""
        return PHASES[self.page[HEARTBEAT_PHASE]]

    @phase.setter
    def phase(self, name: str) -> None:
        self.page[HEARTBEAT_PHASE] = PHASES.index(name)
