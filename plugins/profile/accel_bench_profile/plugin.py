"""The plugin `profile`, which records steps after the measured window: options and hooks."""

from __future__ import annotations

import sys
from statistics import median
from typing import TYPE_CHECKING

from pydantic import Field, PositiveInt

from accel_bench import Options, Plugin, Run, Window, hookimpl
from accel_bench.errors import InvalidRunError

if TYPE_CHECKING:
    from accel_bench_profile.recording.window import Profiler


class RecordingOptions(Options):
    """Options of the plugin `profile`: cycles of recorded steps after the measured window."""

    skip: int = Field(0, ge=0)
    """Number of steps before the first cycle, without the profiler."""

    wait: int = Field(0, ge=0)
    """Number of steps at the beginning of each cycle, without the profiler."""

    warmup: int = Field(1, ge=0)
    """Number of steps of each cycle in which the profiler runs without recording."""

    active: PositiveInt = 3
    """Number of recorded steps of each cycle."""

    repeat: PositiveInt = 1
    """Number of cycles."""

    top: PositiveInt = 15
    """Number of kernels or operations to keep by time, and as many by count."""

    shapes: bool = False
    """True to record the shapes of each operation's inputs in the trace."""

    python_stack: bool = False
    """True to record Python function calls in the trace, which slows every step."""

    memory: bool = False
    """True to record the use of memory, in separate steps."""

    nsight: bool = False
    """True to mark steps for Nsight instead of recording."""

    @property
    def steps(self) -> int:
        """Number of steps of all cycles."""
        return self.skip + self.repeat * (self.wait + self.warmup + self.active)


class Profile(Plugin[RecordingOptions]):
    """Records where the time of steps after the window goes, and what memory is used for."""

    _step_seconds: float | None = None

    @hookimpl
    def finish_metrics(self, run: Run, window: Window) -> None:
        """Store the median seconds of a measured step, for comparison with the profile."""
        self._step_seconds = median(sample.seconds for sample in window.samples)

    @hookimpl
    def observe_steps(self, run: Run) -> Profiler:
        """Return the recorder of steps. Raises InvalidRunError if the engine does not use torch."""
        if "torch" not in sys.modules or not hasattr(run.unwrapped_model, "named_parameters"):
            raise InvalidRunError(["nothing to profile: this engine does not train with torch"])
        from accel_bench_profile.recording.window import Profiler, parts_of, rank_folder

        parts = parts_of(self.options, run, rank_folder(run))
        return Profiler(run, parts, self._step_seconds)
