"""Watch the ranks of one attempt until all have ended, by themselves or by our hand."""

from __future__ import annotations

import signal
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from accel_bench.job import HEARTBEAT_BYTES, PHASES, Job
from accel_bench.launcher import RankProcess
from accel_bench.result import RankResult

LOOK_EVERY_SECONDS = 0.25
"""How often the heartbeats are read."""

GRACE_SECONDS = 5.0
"""Time that ranks get to end on SIGTERM, or after another rank has failed, before SIGKILL."""

DUMP_SECONDS = 0.5
"""Time to write the stacks of a rank that is about to be ended."""

HUNG_SECONDS = 60.0
"""A rank whose step and phase have stood still for this long, or half the time limit, hangs."""


@dataclass(frozen=True)
class Progress:
    """What a rank was doing when it was last looked at."""

    step: int
    """Optimizer steps ended."""

    phase: str
    """What it is doing, one of `PHASES`."""


@dataclass
class ProcessOutcome:
    """How the ranks of an attempt ended."""

    exits: dict[int, int] = field(default_factory=dict)
    """Exit code by rank; negative for a signal."""

    progress: dict[int, Progress] = field(default_factory=dict)
    """Last heartbeat by rank."""

    first_bad: int | None = None
    """The rank that ended badly before any other."""

    signalled: list[int] = field(default_factory=list)
    """Ranks that a signal ended which was not ours."""

    expired: str = ""
    """`timeout` or `hung` when the time limit was reached, else empty."""

    slowest: int | None = None
    """The rank with the fewest steps when the time limit was reached; None when all had as many."""


class Watch:
    """One attempt's ranks, from the moment they have been started."""

    def __init__(
        self, job: Job, ranks: Sequence[RankProcess], on_progress: Callable[[Progress], None]
    ) -> None:
        self.outcome = ProcessOutcome()
        self._job = job
        self._ranks = ranks
        self._on_beat = on_progress
        self._changed = time.monotonic()
        self._ending_them = False

    def run(
        self, timeout_seconds: float, observe: Callable[[], None] = lambda: None
    ) -> ProcessOutcome:
        """Return when every rank has ended; at the time limit they are made to.

        `observe` is called first; what it raises ends them too.
        """
        deadline = time.monotonic() + timeout_seconds
        try:
            observe()
            while running := self._running():
                running[0].wait(LOOK_EVERY_SECONDS)
                self._look()
                if self.outcome.first_bad is not None:
                    self._end_after_grace()
                elif time.monotonic() >= deadline and self._running():
                    self._expire(timeout_seconds)
        except BaseException:
            self.end()
            raise
        finally:
            self._sweep()
        return self.outcome

    def end(self) -> None:
        """End all ranks: SIGTERM, then SIGKILL for those that are still there; a second Ctrl-C
        hurries."""
        # What a rank does from here on is our doing: its last heartbeat says what it did before.
        self._ending_them = True
        try:
            self._signal(signal.SIGTERM)
            self._wait(GRACE_SECONDS)
        finally:
            self._signal(signal.SIGKILL)
            self._wait(GRACE_SECONDS)

    def _running(self) -> list[RankProcess]:
        return [rank for rank in self._ranks if rank.poll() is None]

    def _look(self) -> None:
        """Read heartbeats and exit codes."""
        for rank in self._ranks:
            if not self._ending_them:
                self._look_at_beat(rank)
            code = rank.poll()
            if code is not None and rank.rank not in self.outcome.exits:
                self.outcome.exits[rank.rank] = code
                if code < 0 and not self._ending_them:
                    self.outcome.signalled.append(rank.rank)
                found = read_rank(self._job, rank.rank)
                sound = code == 0 and found is not None and found.status.completed
                if not sound and self.outcome.first_bad is None:
                    self.outcome.first_bad = rank.rank
        if self.outcome.progress and not self._ending_them:
            self._on_beat(min(self.outcome.progress.values(), key=lambda progress: progress.step))

    def _look_at_beat(self, rank: RankProcess) -> None:
        """Read one heartbeat."""
        progress = read_progress(self._job, rank.rank)
        if progress is not None and progress != self.outcome.progress.get(rank.rank):
            self.outcome.progress[rank.rank] = progress
            self._changed = time.monotonic()

    def _end_after_grace(self) -> None:
        """A rank is lost: the others will wait for it for ever, unless they notice soon."""
        self._wait(GRACE_SECONDS)
        if self._running():
            self._dump_stacks()
            self.end()

    def _expire(self, timeout_seconds: float) -> None:
        """The time is over: say whether anything still moved, keep the stacks, end all."""
        still = time.monotonic() - self._changed
        hung = still >= min(HUNG_SECONDS, timeout_seconds / 2)
        self.outcome.expired = "hung" if hung else "timeout"
        running = [rank.rank for rank in self._running()]
        steps = {
            rank: self.outcome.progress.get(rank, Progress(0, "start")).step for rank in running
        }
        fewest = [rank for rank in steps if steps[rank] == min(steps.values())]
        self.outcome.slowest = fewest[0] if len(fewest) == 1 else None
        self._dump_stacks()
        self.end()

    def _dump_stacks(self) -> None:
        for rank in self._running():
            rank.dump_stack()
        time.sleep(DUMP_SECONDS)

    def _signal(self, number: int) -> None:
        for rank in self._running():
            rank.signal(number)

    def _wait(self, seconds: float) -> None:
        """Wait until no rank runs, at most that long."""
        until = time.monotonic() + seconds
        while (running := self._running()) and (left := until - time.monotonic()) > 0:
            running[0].wait(min(left, LOOK_EVERY_SECONDS))
            self._look()

    def _sweep(self) -> None:
        for rank in self._ranks:
            rank.sweep()
        self._look()


def read_rank(job: Job, rank: int) -> RankResult | None:
    """What a rank has written; None for a file that is missing or cut short."""
    try:
        return RankResult.model_validate_json(job.result_path(rank).read_bytes())
    except (OSError, ValidationError):
        return None


def read_progress(job: Job, rank: int) -> Progress | None:
    """The last heartbeat of a rank; None before it has written one."""
    try:
        page = job.heartbeat_path(rank).read_bytes()
    except OSError:
        return None
    if len(page) != HEARTBEAT_BYTES:
        return None
    step, phase = struct.unpack("=QQ", page)
    return Progress(step, PHASES[phase] if phase < len(PHASES) else "")
