"""The handles that a launcher returns, one for each rank; and what observes ranks from outside."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from accel_bench.result import Metric, RankResult

INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals by which a user, a system or a terminal that closes ends a session and its ranks."""


class RankProcess(Protocol):
    """A rank that has been started. Signals reach it and every process that it has started."""

    rank: int
    """Global rank."""

    pid: int | None
    """Its process id on this machine; None where it runs on another."""

    def wait(self, seconds: float) -> None:
        """Wait until the process has ended, at most that many seconds."""

    def poll(self) -> int | None:
        """Return the exit code, negative for the signal that ended it; None while it runs."""

    def dump_stack(self) -> None:
        """Have the process write the stacks of its threads to its log."""

    def signal(self, number: int) -> None:
        """Send a signal to the process and to everything that it has started."""

    def sweep(self) -> None:
        """End whatever the process has left behind."""


class Observer(Protocol):
    """Watches the ranks of one attempt from the parent, in threads or processes of its own."""

    def finish(self, results: Mapping[int, RankResult]) -> Iterable[Metric]:
        """Stop, and return the metrics.

        Called once after the last rank has gone, also when the run was stopped or has failed;
        `results` holds what each rank has written, those that wrote nothing are missing. It gets
        seconds, not minutes.
        """
