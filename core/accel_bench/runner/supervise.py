"""Supervision of an attempt's ranks until all have ended, on their own or by a signal."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType

from pydantic import ValidationError

from accel_bench.documents.program import seconds_from
from accel_bench.job import Job
from accel_bench.launcher import INTERRUPTIONS, RankProcess
from accel_bench.machine.clock import monotonic
from accel_bench.result import RankResult
from accel_bench.runner.heartbeats import Progress, Sighting, note, read_progress

POLL_SECONDS = 0.25
"""Seconds between readings of heartbeats and exit codes."""

DUMP_SECONDS = 0.5
"""Seconds to write the stacks of a rank that is about to be terminated."""

MOST_LOG_BYTES = 2**30
"""Largest log of a rank in bytes, above which the rank is terminated to save the disk."""

HUNG_SECONDS = 60.0
"""Seconds without progress after which a rank hangs, at most half the time limit."""


def grace_seconds() -> float:
    """Return the seconds that ranks get to end after SIGTERM, or after the failure of another rank.

    ACCEL_BENCH_GRACE_SECONDS can set them, for ranks that write much when they end. Raises
    AccelBenchError for an invalid value.
    """
    return seconds_from("ACCEL_BENCH_GRACE_SECONDS", 5.0)


@dataclass
class ProcessOutcome:
    """End of an attempt's ranks, as the supervisor saw it."""

    exits: dict[int, int] = field(default_factory=dict)
    """Exit code by rank; negative for a signal."""

    progress: dict[int, Progress] = field(default_factory=dict)
    first_failed: int | None = None

    sightings: dict[int, list[Sighting]] = field(default_factory=dict)
    """Times at which each rank's heartbeats were read."""

    lost: dict[int, str] = field(default_factory=dict)
    """Ranks that can no longer be observed, each with the reason."""

    signalled: list[int] = field(default_factory=list)
    """Ranks that were terminated by a signal not sent by the supervisor."""

    expired: str = ""
    """`timeout` or `hung` if the time limit was reached, else empty."""

    flooding: int | None = None
    """Rank that was terminated for a log of more than `MOST_LOG_BYTES`."""

    out_of_memory: str = ""
    """Memory limit at which the kernel killed processes meanwhile; empty if it did not."""

    slowest: int | None = None
    """Rank with the fewest steps at the time limit; None if all ranks had as many."""

    def reached(self, rank: int) -> Progress:
        """Return the last heartbeat of a rank; before the first, step 0 of the phase `start`."""
        return self.progress.get(rank, Progress(0, "start"))


class Supervisor:
    """Supervisor that watches one attempt's ranks, and terminates them at the time limit."""

    def __init__(
        self,
        job: Job,
        ranks: Sequence[RankProcess],
        on_progress: Callable[[Progress], None],
        stop: threading.Event | None = None,
    ) -> None:
        """Prepare to supervise `ranks`; `stop`, once set, acts like Ctrl-C in the main thread."""
        self.outcome = ProcessOutcome()
        self._stop = stop
        self._job = job
        self._ranks = ranks
        self._grace = grace_seconds()
        self._on_progress = on_progress
        self._changed = monotonic()
        self._terminating = False

    def run(
        self, timeout_seconds: float, observe: Callable[[], None] = lambda: None
    ) -> ProcessOutcome:
        """Call `observe`, wait until every rank has ended, and return how the ranks have ended.

        The ranks are terminated at the time limit, and if `observe` raises.
        """
        deadline = monotonic() + timeout_seconds
        try:
            observe()
            while running := self._running():
                running[0].wait(POLL_SECONDS)
                if self._stop is not None and self._stop.is_set():
                    raise KeyboardInterrupt
                self._poll()
                if self.outcome.first_failed is not None:
                    self._terminate_after_grace()
                elif self._flooded():
                    self.terminate()
                elif monotonic() >= deadline and self._running():
                    self._expire(timeout_seconds)
        except BaseException:
            self.terminate()
            raise
        finally:
            with deferred_signals():
                for rank in self._ranks:
                    rank.sweep()
                self._poll()
        return self.outcome

    def terminate(self) -> None:
        """Send SIGTERM to all ranks, and SIGKILL to ranks that still run after the grace period.

        A second Ctrl-C in the main thread skips that period; concurrent points wait for its end.
        """
        # What a rank does from here on is our doing: its last heartbeat says what it did before.
        self._terminating = True
        with deferred_signals() as arrived:
            self._signal(signal.SIGTERM)
            self._wait(self._grace, arrived)
            self._signal(signal.SIGKILL)
            self._wait(self._grace)

    def _running(self) -> list[RankProcess]:
        return [rank for rank in self._ranks if rank.poll() is None]

    def _poll(self) -> None:
        for rank in self._ranks:
            self._read_heartbeat(rank)
            code = rank.poll()
            if code is not None and rank.rank not in self.outcome.exits:
                self.outcome.exits[rank.rank] = code
                if lost := getattr(rank, "lost", ""):
                    self.outcome.lost[rank.rank] = lost
                if code < 0 and not self._terminating:
                    self.outcome.signalled.append(rank.rank)
                result = read_rank(self._job, rank.rank)
                sound = code == 0 and result is not None and result.status.completed
                if not sound and self.outcome.first_failed is None:
                    self.outcome.first_failed = rank.rank
        if self.outcome.progress and not self._terminating:
            self._on_progress(min(self.outcome.progress.values(), key=lambda beat: beat.step))

    def _read_heartbeat(self, rank: RankProcess) -> None:
        before = monotonic()
        progress = None if self._terminating else read_progress(self._job, rank.rank)
        if progress is None:
            return
        if not hasattr(rank, "lost"):  # the page of a relayed rank lags behind
            note(self.outcome.sightings.setdefault(rank.rank, []), progress, before, monotonic())
        if progress != self.outcome.progress.get(rank.rank):
            self.outcome.progress[rank.rank] = progress
            self._changed = monotonic()

    def _flooded(self) -> bool:
        """Record the first rank whose log exceeds MOST_LOG_BYTES; return whether one does."""
        logs = ((rank.rank, self._job.log_path(rank.rank)) for rank in self._running())
        large = (rank for rank, log in logs if log.exists() and log.stat().st_size > MOST_LOG_BYTES)
        self.outcome.flooding = next(large, None)
        return self.outcome.flooding is not None

    def _terminate_after_grace(self) -> None:
        self._wait(self._grace)
        if self._running():
            self._dump_stacks()
            self.terminate()

    def _expire(self, timeout_seconds: float) -> None:
        """Record `timeout` or `hung`, dump the ranks' Python stacks, and terminate all ranks."""
        still = monotonic() - self._changed
        hung = still >= min(HUNG_SECONDS, timeout_seconds / 2)
        self.outcome.expired = "hung" if hung else "timeout"
        running = [rank.rank for rank in self._running()]
        steps = {rank: self.outcome.reached(rank).step for rank in running}
        fewest = [rank for rank in steps if steps[rank] == min(steps.values())]
        self.outcome.slowest = fewest[0] if len(fewest) == 1 else None
        self._dump_stacks()
        self.terminate()

    def _dump_stacks(self) -> None:
        for rank in self._running():
            rank.dump_stack()
        time.sleep(DUMP_SECONDS)

    def _signal(self, number: int) -> None:
        for rank in self._running():
            rank.signal(number)

    def _wait(self, seconds: float, hurried: Sequence[int] = ()) -> None:
        """Wait until the ranks have ended, `seconds` have passed, or `hurried` holds a signal."""
        until = monotonic() + seconds
        while (running := self._running()) and (left := until - monotonic()) > 0:
            if hurried:
                return
            running[0].wait(min(left, POLL_SECONDS))
            self._poll()


def read_rank(job: Job, rank: int) -> RankResult | None:
    """Return the result in a rank's file; None if the file is missing or truncated."""
    try:
        return RankResult.model_validate_json(job.result_path(rank).read_bytes())
    except (OSError, ValidationError):
        return None


@contextlib.contextmanager
def deferred_signals() -> Iterator[Sequence[int]]:
    """Defer Ctrl-C and other ending signals until the block ends; yield a list of their numbers.

    People press Ctrl-C twice: the second signal must not prevent the storing of the run that the
    first signal ended. Only the main thread gets signals; an ignored signal stays ignored.
    """
    arrived: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield arrived
        return

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    handlers = {number: signal.getsignal(number) for number in INTERRUPTIONS}
    ours = {number: old for number, old in handlers.items() if old not in (None, signal.SIG_IGN)}
    for number in ours:
        signal.signal(number, note)
    try:
        yield arrived
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        for late in dict.fromkeys(arrived):
            signal.raise_signal(late)
