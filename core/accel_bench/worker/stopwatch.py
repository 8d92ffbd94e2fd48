"""Stopwatch of an engine's steps: warm-up, measured window, then extra steps for checks. In the
window only the end (lap) of each step is recorded; an unstable window is repeated."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from statistics import median
from typing import Any

from accel_bench.analysis.checks.pace import seconds_per_token
from accel_bench.engine import Batch, PhaseName
from accel_bench.errors import InvalidRunError
from accel_bench.job import HEARTBEAT_STEP
from accel_bench.machine.clock import monotonic
from accel_bench.machine.device_type import DeviceType
from accel_bench.result import PhaseSplit, Sample, Window
from accel_bench.scenario.settings import LONGEST_WARMUP, MOST_DISCARDED
from accel_bench.worker.after_window import PhaseSplitter, StepStage
from accel_bench.worker.clocks import HostClock, Lap, counted, samples_of
from accel_bench.worker.heartbeat import Heartbeat

PLATEAU_STEPS = 5
"""Number of steps of each of the two medians compared by `measure.warmup: auto`."""

PLATEAU_TOLERANCE = 0.01
"""Relative difference of two medians of step seconds up to which they form a plateau."""

JUMP = 5.0
"""Multiple of the median seconds per token above which a step is an outlier."""

JUMP_SECONDS = 0.05
"""Least duration in seconds of an outlier; shorter delays are the operating system's."""


@dataclass
class WindowStopwatch:
    """Stopwatch of an engine's steps, the implementation of `accel_bench.engine.Stopwatch`.

    `warmup` is a number of steps, or None to wait for a plateau. `before_window` is called each
    time before a window opens, and `after_window` once after the final window, while no step is
    timed. `instabilities` returns the disturbances of a window, given its samples; `agree` makes
    ranks take the same decisions. Afterwards come the steps of `learning`, then `phase_steps` steps
    that are split into phases if the engine states them, and the steps of `stages`. With
    `may_resume`, engines that answer requests or call operations may call `resume`.
    """

    clock: HostClock
    heartbeat: Heartbeat
    _: KW_ONLY
    warmup: int | None
    steps: int
    before_window: Callable[[], None] = lambda: None
    after_window: Callable[[Window], None] = lambda window: None
    instabilities: Callable[[Sequence[Sample]], list[str]] = lambda samples: []
    phase_steps: int = 0
    learning: StepStage | None = None
    stages: Sequence[StepStage] = ()
    agree: Callable[[bool], bool] = lambda ready: ready
    synchronize_each: bool = False
    may_resume: bool = False

    def __post_init__(self) -> None:
        self.running = True
        self.lap: Callable[[Sequence[Batch], Any], None] = self._warmup_lap
        self._splitter = PhaseSplitter(self.clock, self.phase_steps)
        self.mark: Callable[[PhaseName], None] = self._splitter.notice
        self.resume: Callable[[], None] = self._resume if self.may_resume else refuse_resume
        self._page = self.heartbeat.page
        splitter = self._splitter if self.phase_steps else None
        self._waiting = [
            stage for stage in (self.learning, splitter, *self.stages) if stage is not None
        ]
        self._resumed: list[int] = []
        self._resumes = False
        self._left_out = 0.0
        self._laps: list[Lap] = []
        self._done = 0
        self._warmup_samples: list[Sample] = []
        self._window_samples: list[Sample] = []
        self._discarded: list[list[Sample]] = []
        self._unstable: list[str] = []
        self._started = self._ended = 0.0

    def start(self) -> None:
        """Record the start of the first warm-up step, just before the engine runs."""
        self.heartbeat.phase = "warm-up"
        self.clock.reserve(2)
        self.clock.synchronize()
        self.clock.mark()

    @property
    def phases(self) -> PhaseSplit | None:
        """Seconds by phase of a step; None if no step was split into phases."""
        return self._splitter.split

    def window(self) -> Window:
        """Return the measured window, once the last window has closed."""
        return Window(
            started=self._started,
            ended=self._ended,
            left_out_seconds=self._left_out,
            samples=tuple(self._window_samples),
            discarded=tuple(sample for window in self._discarded for sample in window),
            instabilities=tuple(self._unstable),
            warmup=tuple(self._warmup_samples),
        )

    def _resume(self) -> None:
        """Leave the time from the last step's end until now out of the next step."""
        self._resumed.append(len(self._laps) + len(self._resumed))
        self.clock.mark()

    def _warmup_lap(self, batches: Sequence[Batch], loss: Any) -> None:
        """End a warm-up step; here it is allowed to wait for the device."""
        self._laps.append((counted(batches), float(loss)))
        self.clock.synchronize()
        self.clock.mark()
        self._done += 1
        self._page[HEARTBEAT_STEP] = self._done
        self._warmup_samples += self._read_samples(first=self._done - 1)
        if self.agree(self._is_warm()):
            self._open_window()
        else:
            self.clock.reserve(2)
            self.clock.mark()

    def _open_window(self) -> None:
        """Do all that would disturb the measured window, then record the window's start."""
        self.before_window()
        self.heartbeat.phase = "window"
        self._left_out = 0.0
        self.clock.reserve((2 if self._resumes else 1) * self.steps + 1)
        self.lap = self._synchronized_lap if self.synchronize_each else self._window_lap
        self.mark = lambda phase: None
        gc.collect()
        gc.freeze()
        self.clock.synchronize()
        self._started = monotonic()
        self.clock.mark()

    def _window_lap(self, batches: Sequence[Batch], loss: Any) -> None:
        """End a measured step: record its time, and neither wait nor call a hook."""
        self.clock.mark()
        self._laps.append((counted(batches), loss))
        self._done += 1
        self._page[HEARTBEAT_STEP] = self._done
        if len(self._laps) == self.steps:
            self._close_window()

    def _synchronized_lap(self, batches: Sequence[Batch], loss: Any) -> None:
        """End a measured step after waiting for the device, as `measure.sync: each` asks."""
        self.clock.synchronize()
        self._window_lap(batches, loss)

    def _close_window(self) -> None:
        """Wait for the device once, read the samples, and repeat the window if it was unstable.

        The losses are read first: a lazy engine computes a step only then.
        """
        self._laps = [(counts, float(loss)) for counts, loss in self._laps]
        self.clock.synchronize()
        self._ended = monotonic()
        gc.unfreeze()
        samples = self._read_samples(first=self._done - self.steps)
        problems = self.instabilities(samples)
        stable = self.agree(not problems)
        if not stable:
            self._unstable.append("; ".join(problems) or "the window of another rank was disturbed")
        if stable or len(self._discarded) == MOST_DISCARDED:
            self._keep_window(samples)
        else:
            self._discarded.append(samples)
            self._open_window()

    def _keep_window(self, samples: list[Sample]) -> None:
        """Store `samples` as those of the final window, and begin the extra steps after it."""
        self._window_samples = samples
        if self.may_resume:
            self.resume = lambda: None
        self.after_window(self.window())
        self._begin_stage()

    def _begin_stage(self) -> None:
        """Begin the next stage that needs extra steps; stop the stopwatch if there is none."""
        self.running = False
        while self._waiting and not self.running:
            stage = self._waiting.pop(0)
            self.heartbeat.phase = stage.phase
            self.lap, self.mark = partial(self._stage_lap, stage), stage.mark
            self.clock.synchronize()
            self.running = stage.start()

    def _stage_lap(self, stage: StepStage, batches: Sequence[Batch], loss: Any) -> None:
        """End an extra step after the window; it trains the model, but the loss curve omits it."""
        again = stage.end_step(batches, loss)
        self._done += 1
        self._page[HEARTBEAT_STEP] = self._done
        if not again:
            self._begin_stage()

    def _is_warm(self) -> bool:
        """Return whether the warm-up is over: by its number of steps, or because of a plateau."""
        if self.warmup is not None:
            return self._done >= self.warmup
        return self._done >= LONGEST_WARMUP or is_plateau(
            [sample.seconds for sample in self._warmup_samples]
        )

    def _leave_out(
        self, host: list[float], device: list[float] | None
    ) -> tuple[list[float], list[float] | None]:
        """Return host and device seconds of steps without those that `resume` leaves out."""
        places, self._resumed, self._resumes = set(self._resumed), [], True
        kept = [place for place in range(len(host)) if place not in places]
        true = host if device is None else device
        self._left_out = sum(true[place] for place in places)
        return [host[i] for i in kept], None if device is None else [device[i] for i in kept]

    def _read_samples(self, first: int) -> list[Sample]:
        """Return the samples of the steps since the last call, numbered from `first`."""
        seconds = self.clock.read()
        laps, self._laps = self._laps, []
        return samples_of(first, self._leave_out(*seconds) if self._resumed else seconds, laps)


def refuse_resume() -> None:
    """Raise InvalidRunError: an engine that trains must not leave time out of its steps."""
    raise InvalidRunError(
        [
            "the engine called stopwatch.resume(), which leaves time out of the steps: only an "
            "engine that answers requests or calls an operation may"
        ]
    )


def is_plateau(seconds: Sequence[float]) -> bool:
    """Return whether medians of the last five and the five steps before differ by at most 1 %."""
    if len(seconds) < 2 * PLATEAU_STEPS:
        return False
    before = median(seconds[-2 * PLATEAU_STEPS : -PLATEAU_STEPS])
    return abs(median(seconds[-PLATEAU_STEPS:]) - before) <= PLATEAU_TOLERANCE * before


class WindowMonitor:
    """Monitor of a measured window's disturbances, by counters of torch and durations of steps."""

    def __init__(self, device: DeviceType) -> None:
        self._device = device
        self._before: dict[str, int] = {}

    def start(self) -> None:
        """Read the counters before a measured window."""
        self._before = self._counts()

    def instabilities(self, samples: Sequence[Sample]) -> list[str]:
        """Return a text for each disturbance since `start`, such as a list of slow steps."""
        after = self._counts()
        grown = {name: after[name] - self._before.get(name, 0) for name in after}
        problems = [f"{count} {name}" for name, count in grown.items() if count > 0]
        if jumps := out_of_range(samples):
            listed = ", ".join(f"step {jump.step} took {jump.seconds:.3g} s" for jump in jumps[:3])
            problems.append(f"{listed}, more than {JUMP:g} times the median")
        return problems

    def _counts(self) -> dict[str, int]:
        """Return the counters of torch, by name, that stay the same in an undisturbed window."""
        counts = {}
        if "torch._dynamo" in sys.modules:
            counters = sys.modules["torch._dynamo"].utils.counters
            counts["graph(s) compiled within the window"] = counters["stats"]["unique_graphs"]
        if not self._device.on_host:
            retries = self._device.allocation_retries()
            counts["allocator retry(s) within the window"] = retries
        return counts


def out_of_range(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples of steps that took many times the median time per token.

    The time is per token, since padded batches make steps of different numbers of tokens.
    """
    pace = [seconds_per_token(sample) for sample in samples]
    usual = median(pace) if pace else 0.0
    return [
        sample
        for sample, seconds in zip(samples, pace, strict=True)
        if seconds > JUMP * usual and sample.seconds > JUMP_SECONDS
    ]
