"""Profiled steps after the window: recorders that work in succession, and their results.

A recorder records one thing, such as memory, in as many steps as it needs. Its cost thus affects no
other recorder's figures. A new recorder is a class named in `parts_of`, with fields of
`RankProfile`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accel_bench.documents.files import write_atomically
from accel_bench.engine import Batch, PhaseName
from accel_bench.machine.clock import monotonic
from accel_bench.machine.process_memory import resident_bytes
from accel_bench.run_context import Run
from accel_bench.worker.after_window import StepStage
from accel_bench.worker.clocks import clock_of
from accel_bench.worker.failure import reasons_of
from accel_bench_profile.figures.schema import (
    PROFILE_FILE,
    PROFILE_FOLDER,
    RankProfile,
    StepScalars,
)
from accel_bench_profile.plugin import RecordingOptions

logger = logging.getLogger("accel_bench")


class WindowRecorder(ABC):
    """Base class of a recorder of one thing in a number of steps after the measured window.

    Its exceptions become warnings of the profile.
    """

    name: str
    """Subject of the recording, for warnings."""

    steps: int
    """Number of the recorder's steps, equal on all ranks even after failures: ranks synchronize."""

    @abstractmethod
    def start(self) -> None:
        """Start recording; called between two steps."""

    def mark(self, phase: PhaseName) -> None:  # noqa: B027 - most look at no phases
        """Note the end of a phase of a step, if the engine marks phases."""

    def end_step(self, batches: Sequence[Batch]) -> None:  # noqa: B027 - some record all as one
        """Note the end of a step with the micro-batches `batches`."""

    def stop(self) -> None:  # noqa: B027 - some install nothing
        """Undo the changes of `start`; called once, even if a step raised."""

    @abstractmethod
    def result(self) -> Mapping[str, Any]:
        """Return fields of the rank's `RankProfile`; `warnings` of all recorders are joined."""


class StepReader(WindowRecorder):
    """Recorder of each step's time, tokens and memory, whose reading would slow measured steps."""

    name = "scalars of steps"

    def __init__(self, run: Run, steps: int) -> None:
        self.steps = steps
        self._device = run.device_type
        self._began = 0.0
        self._found: list[StepScalars] = []

    def start(self) -> None:
        """Start the clock of the next step."""
        if not self._device.on_host:
            self._device.reset_peak_memory()
        self._began = monotonic()

    def end_step(self, batches: Sequence[Batch]) -> None:
        """Wait for the device, and read clock and memory."""
        self._device.synchronize()
        seconds = monotonic() - self._began
        memory = resident_bytes() if self._device.on_host else self._peak_bytes()
        tokens = sum(batch.tokens.real for batch in batches)
        self._found.append(StepScalars(seconds=seconds, elements=tokens, memory_bytes=memory))
        self.start()

    def result(self) -> Mapping[str, Any]:
        """Return the steps' scalars as a field of `RankProfile`."""
        return {"scalars": tuple(self._found)}

    def _peak_bytes(self) -> int | None:
        """Return the step's peak bytes, or the current bytes if the allocator reports no peak."""
        held = self._device.memory()
        return held.get("device_peak_allocated_bytes", held.get("device_allocated_bytes"))


class ProfileWindow(StepStage):
    """Scheduler of recorders: each gets its number of steps, one recorder after the other."""

    phase = "observe_steps"

    def __init__(self, parts: Sequence[WindowRecorder], synchronize: Callable[[], None]) -> None:
        self.warnings: list[str] = []
        self._waiting = list(parts)
        self._synchronize = synchronize
        self._part: WindowRecorder | None = None
        self._failed = False
        self._left = 0
        self._fields: dict[str, Any] = {}

    def start(self) -> bool:
        """Start the first recorder; return whether a step is needed."""
        self._next()
        return self._left > 0

    def mark(self, phase: PhaseName) -> None:
        """Tell the current recorder that a phase of the step has ended."""
        if self._part is not None and not self._failed:
            with self._warns(self._part):
                self._part.mark(phase)

    def end_step(self, batches: Sequence[Batch] = (), loss: Any = None) -> bool:
        """Tell the current recorder that a step has ended; return whether another is needed."""
        self._left -= 1
        if self._part is not None and not self._failed:
            with self._warns(self._part):
                self._part.end_step(batches)
        if self._left <= 0:
            self.stop()
            self._next()
        return self._left > 0

    def stop(self) -> None:
        """Stop the current recorder, and store its result."""
        part, self._part = self._part, None
        if part is None:
            return
        with self._warns(part):
            self._synchronize()
            part.stop()
            fields = dict(part.result())
            self.warnings += fields.pop("warnings", ())
            self._fields |= fields

    def fields(self) -> dict[str, Any]:
        """Return the fields of the rank's profile from all recorders, with warnings."""
        return {"steps": 0, "step_seconds": None, **self._fields, "warnings": tuple(self.warnings)}

    def _next(self) -> None:
        """Start the next recorder that needs steps; start and stop recorders without steps."""
        while self._left <= 0 and self._waiting:
            part = self._waiting.pop(0)
            self._part, self._left, self._failed = part, part.steps, False
            with self._warns(part):
                self._synchronize()
                part.start()
            if self._left <= 0:
                self.stop()

    @contextmanager
    def _warns(self, part: WindowRecorder) -> Iterator[None]:
        """Turn an exception within the block into a warning, since the run is measured already.

        The recorder `part` gets no further steps, since its recording is incomplete.
        """
        try:
            yield
        except Exception as error:
            self._failed = True
            logger.exception("profile: %s", part.name)
            self.warnings.append(f"{part.name}: {type(error).__name__}: {error}")


class Profiler(ProfileWindow):
    """Observer of one rank's steps, which writes the rank's profile."""

    def __init__(
        self, run: Run, parts: Sequence[WindowRecorder], window_step_seconds: float | None = None
    ) -> None:
        self.steps = sum(part.steps for part in parts)
        super().__init__(parts, clock_of(run).synchronize)
        self._folder = rank_folder(run)
        self._known: dict[str, Any] = {
            "rank": run.rank,
            "device": run.device.type,
            "window_step_seconds": window_step_seconds,
        }

    def fail(self, error: Exception) -> None:
        """Stop recording, and write the profile of the steps before the step that failed."""
        self.warnings += reasons_of(error, "observe_steps")
        self.stop()
        self.finish()

    def finish(self) -> tuple[()]:
        """Write the profile, and return an empty tuple.

        Errors are logged only, since the run is measured already.
        """
        try:
            profile = RankProfile(**self._known, **self.fields())
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._folder / PROFILE_FILE, profile.model_dump_json(indent=1))
        except Exception:
            logger.exception("the profile could not be written")
        return ()


def rank_folder(run: Run) -> Path:
    """Return the folder in which a rank writes its profile."""
    return run.folder / PROFILE_FOLDER / f"rank{run.rank}"


def parts_of(request: RecordingOptions, run: Run, folder: Path) -> list[WindowRecorder]:
    """Return the recorders that the options request, the least disturbing first.

    They write their files to `folder`, and traces beside it.
    """
    if request.nsight:
        from accel_bench_profile.recording.ranges import NsightMarks

        quiet = request.skip + request.wait + request.warmup
        return [NsightMarks(run, quiet, request.active)]
    from accel_bench_profile.recording.recorder import Recorder

    recorder = Recorder(request, run, folder, clock_of(run).synchronize)
    parts: list[WindowRecorder] = [StepReader(run, request.steps), recorder]
    if request.memory:  # It builds on torch's private modules.
        from accel_bench_profile.recording.memory import MemoryRecorder

        parts.append(MemoryRecorder(run, folder))
    return parts
