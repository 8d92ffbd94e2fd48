"""Interfaces of launchers: handles of ranks, allocations, and observers of ranks."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from accel_bench.result import Metric, RankResult

INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end a session and its ranks: from the user, the system or a terminal that closes."""


class RankProcess(Protocol):
    """Handle of a rank's process; signals reach it and every process that it has started.

    The handle of a rank on another node also has its `node`, since the heartbeat page of such a
    rank may lag behind. Its `lost` is the reason why the rank can no longer be observed, with the
    name of its node, or empty while the rank can be observed.
    """

    rank: int
    """Global rank of the process."""

    pid: int | None
    """Process id on this machine; None for a process on another machine."""

    def wait(self, seconds: float) -> None:
        """Wait until the process has ended, at most the given seconds."""

    def poll(self) -> int | None:
        """Return the exit code, negative for the signal that ended it; None while it runs."""

    def dump_stack(self) -> None:
        """Make the process write the stacks of its threads to its log."""

    def signal(self, number: int) -> None:
        """Send a signal to the process and to everything that it has started."""

    def sweep(self) -> None:
        """End every process that the rank's process has left behind."""


class Allocation(Protocol):
    """Processes on one or several nodes that a launcher keeps for all runs of a session."""

    exit_code: int | None
    """Exit code of the command if another process does its work; None if this process is the
    parent."""

    @property
    def cores(self) -> int | None:
        """Number of cores that the processes of a node may use together, on the smallest node.

        None means the cores that the parent process may use.
        """

    def close(self) -> None:
        """Release the processes; called once, however the session ends."""


class AllocationPart(Allocation, Protocol):
    """Part of an allocation, with devices of its own, on which one sweep point runs."""

    def is_ready(self) -> bool:
        """Wait for replacements of lost nodes; return whether all processes of this part run."""

    def node_names(self) -> Sequence[str]:
        """Return the names of this part's nodes, which change when a lost node is replaced."""


class DividedAllocation(Allocation, Protocol):
    """Allocation in parts, which run different sweep points at the same time."""

    places: Sequence[AllocationPart]
    """Parts of the allocation; all rounds of a sweep point run on one part, while it lasts."""

    def interrupt(self) -> None:
        """End every wait for parts of the allocation, since the session ends."""


class Observer(Protocol):
    """Observer of the ranks of one attempt from the parent, in threads or processes of its own.

    An observer may have a text `live`, a few words about the running ranks that the progress line
    shows beside the step, such as `utilization.gpu 97 %`. The supervising loop reads `live` several
    times a second, so reading it must not start a measurement.
    """

    def finish(self, results: Mapping[int, RankResult]) -> Iterable[Metric]:
        """Stop observing, and return the metrics of the attempt. Called once after the last rank
        has gone, also when the run was stopped or has failed; `results` holds the written results
        by rank. The call must end within seconds."""
