"""The handles that a launcher returns, one for each rank; and what observes ranks from outside."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from accel_bench.result import Metric, RankResult

INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals by which a user, a system or a terminal that closes ends a session and its ranks."""


class RankProcess(Protocol):
    """A rank that has been started. Signals reach it and every process that it has started.

    One that is observed by way of another process, whose heartbeat page may lag behind, also has
    its `node`, and in `lost` why it can no longer be observed, with the name of its node; empty
    while it can be.
    """

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


class Allocation(Protocol):
    """Processes on one or several nodes that are kept for all runs of a session."""

    exit_code: int | None
    """What the command ends with at once, since another process has done its work; None where this
    process goes on as the parent."""

    @property
    def cores(self) -> int | None:
        """Return the cores that the processes of a node may use together, on the smallest node.

        None where they are those that the parent may use.
        """

    def close(self) -> None:
        """Give the processes back; called once, however the session ends."""


class Place(Allocation, Protocol):
    """A part of an allocation, on devices that no other part has."""

    def is_ready(self) -> bool:
        """Return whether all its processes are there, after waiting for what replaces lost ones."""

    def node_names(self) -> Sequence[str]:
        """Return the names of its nodes; of other ones once a lost node is replaced."""


class DividedAllocation(Allocation, Protocol):
    """Processes of which some run one sweep point while others run another."""

    places: Sequence[Place]
    """Its parts; each sweep point has all its rounds on one of them, while that is there."""

    def interrupt(self) -> None:
        """Wait for nothing any more: the session ends."""


class Observer(Protocol):
    """Watches the ranks of one attempt from the parent, in threads or processes of its own.

    One that shows something while the ranks run has a text `live`, a few words beside the step in
    the progress line, such as `utilization.gpu 97 %`. It is read several times a second by what
    watches over the ranks: keep the last reading at hand.
    """

    def finish(self, results: Mapping[int, RankResult]) -> Iterable[Metric]:
        """Stop, and return the metrics.

        Called once after the last rank has gone, also when the run was stopped or has failed;
        `results` holds what each rank has written, those that wrote nothing are missing. It gets
        seconds, not minutes.
        """
