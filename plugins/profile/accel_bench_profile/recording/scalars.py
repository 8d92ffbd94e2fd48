"""Take steps that nothing records, and keep of each its seconds, its tokens and its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accel_bench.engine import Batch, PhaseName
from accel_bench.machine.clock import monotonic
from accel_bench.machine.process_memory import resident_bytes
from accel_bench.run_context import Run
from accel_bench_profile.figures.memory_schema import StepScalars


class StepReader:
    """The part of the profile that reads after each step what the window must not be asked for."""

    name = "scalars of steps"

    def __init__(self, run: Run, steps: int) -> None:
        self.steps = steps
        self._device = run.device_type
        self._began = 0.0
        self._found: list[StepScalars] = []

    def start(self) -> None:
        """Start the clock of the first step."""
        self._restart()

    def mark(self, phase: PhaseName) -> None:
        """Do nothing: steps are whole here."""

    def end_step(self, batches: Sequence[Batch]) -> None:
        """Wait for the device, and read clock and memory."""
        self._device.synchronize()
        seconds = monotonic() - self._began
        memory = resident_bytes() if self._device.on_host else self._peak_bytes()
        tokens = sum(batch.tokens.real for batch in batches)
        self._found.append(StepScalars(seconds=seconds, elements=tokens, memory_bytes=memory))
        self._restart()

    def stop(self) -> None:
        """Do nothing: nothing was installed."""

    def result(self) -> Mapping[str, Any]:
        """Return the steps."""
        return {"scalars": tuple(self._found)}

    def _restart(self) -> None:
        if not self._device.on_host:
            self._device.reset_peak_memory()
        self._began = monotonic()

    def _peak_bytes(self) -> int | None:
        """Return the peak of the step; what is held now, where the allocator has no peaks."""
        held = self._device.memory()
        return held.get("device_peak_allocated_bytes", held.get("device_allocated_bytes"))
