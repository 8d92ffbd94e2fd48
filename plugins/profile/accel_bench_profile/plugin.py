"""The plugin that records steps after the measured window: what it is asked for, and its hooks."""

from __future__ import annotations

import sys
from statistics import median
from typing import TYPE_CHECKING

from pydantic import Field, PositiveInt

from accel_bench import Options, Plugin, Run, Window, hookimpl
from accel_bench.errors import InvalidRunError

if TYPE_CHECKING:
    from accel_bench_profile.recording.window import Profiler


class ProfileOptions(Options):
    """What to record after the measured window, in steps of their own."""

    skip: int = Field(0, ge=0)
    """Steps before the first cycle that the profiler leaves alone."""

    wait: int = Field(0, ge=0)
    """Steps at the beginning of each cycle that it leaves alone."""

    warmup: int = Field(1, ge=0)
    """Steps of each cycle in which it runs, and keeps nothing."""

    active: PositiveInt = 3
    """Steps of each cycle that it records."""

    repeat: PositiveInt = 1
    """Cycles."""

    top: PositiveInt = 15
    """Kernels or operations to keep by time, and as many by count."""

    shapes: bool = False
    """True if the trace has the shapes of each operation's inputs."""

    python_stack: bool = False
    """True if the trace has the Python functions that were called, which slows every step."""

    memory: bool = False
    """True if the use of memory is recorded, in steps of its own."""

    nsight: bool = False
    """True if steps are marked for Nsight, in the place of all that is recorded here."""

    @property
    def steps(self) -> int:
        """Steps that all cycles take."""
        return self.skip + self.repeat * (self.wait + self.warmup + self.active)


class Profile(Plugin[ProfileOptions]):
    """Records where the time of steps after the window goes, and what memory is used for."""

    _step_seconds: float | None = None

    @hookimpl
    def finish_metrics(self, run: Run, window: Window) -> None:
        """Keep what a measured step took, which a profile is held against."""
        self._step_seconds = median(one.seconds for one in window.samples)

    @hookimpl
    def observe_steps(self, run: Run) -> Profiler:
        """Return what records. Raises InvalidRunError where torch does not train."""
        if "torch" not in sys.modules or not hasattr(run.unwrapped_model, "named_parameters"):
            raise InvalidRunError(["nothing to profile: this engine does not train with torch"])
        from accel_bench_profile.recording.window import Profiler, parts_of, rank_folder

        parts = parts_of(self.options, run, rank_folder(run))
        return Profiler(run, parts, self._step_seconds)
