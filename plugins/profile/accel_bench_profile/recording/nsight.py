"""Mark steps for Nsight: the range that it captures, with NVTX ranges of steps, phases and modules.

They take the place of torch's profiler: two programs cannot both record a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from accel_bench.engine import FOLLOWING, Batch, PhaseName
from accel_bench.modeling.module_calls import around_modules
from accel_bench.run_context import Run
from accel_bench_profile.recording.window import Part


class NsightMarks(Part):
    """The part of the profile that another program records."""

    name = "marks for Nsight"

    def __init__(self, run: Run, quiet_steps: int, active_steps: int) -> None:
        self.steps = quiet_steps + active_steps
        self._run = run
        self._quiet = quiet_steps
        self._taken = 0
        self._capture = ExitStack()
        self._step = ExitStack()
        self._phase = ExitStack()

    def start(self) -> None:
        """Begin with the first step. Raises RuntimeError where there is no CUDA device."""
        if self._run.device.type != "cuda":
            raise RuntimeError("Nsight records CUDA devices, and this run has none")
        self._begin_step()

    def mark(self, phase: PhaseName) -> None:
        """End the range of a phase, and begin that of the next."""
        self._phase.close()
        if self._quiet <= self._taken and phase in FOLLOWING:
            self._phase.enter_context(torch.cuda.nvtx.range(f"phase: {FOLLOWING[phase]}"))

    def end_step(self, batches: Sequence[Batch]) -> None:
        """End the range of a step, and begin that of the next."""
        self._phase.close()
        self._step.close()
        self._taken += 1
        if self._taken < self.steps:
            self._begin_step()

    def stop(self) -> None:
        """End all ranges and the capture."""
        self._phase.close()
        self._step.close()
        self._capture.close()

    def result(self) -> Mapping[str, Any]:
        """Return the number of marked steps: what was recorded is in Nsight's own file."""
        return {"recorder": "nsight", "steps": max(0, self._taken - self._quiet)}

    def _begin_step(self) -> None:
        if self._taken < self._quiet:
            return
        if self._taken == self._quiet:
            self._capture.enter_context(torch.cuda.profiler.profile())
            ranges = around_modules(self._run.unwrapped_model, torch.cuda.nvtx.range)
            self._capture.enter_context(ranges)
        self._step.enter_context(torch.cuda.nvtx.range(f"step {self._taken}"))
        self._phase.enter_context(torch.cuda.nvtx.range("phase: data"))
