"""What a launcher gives back: a handle on the process of each rank, wherever it runs."""

from __future__ import annotations

from typing import Protocol


class RankProcess(Protocol):
    """A rank that has been started. Signals go to it and to all that it has started."""

    rank: int
    """Global rank."""

    def wait(self, seconds: float) -> None:
        """Return when the process has ended, or after that many seconds."""

    def poll(self) -> int | None:
        """Exit code, negative for the number of the signal that ended it; None while it runs."""

    def dump_stack(self) -> None:
        """Have the process write the stacks of its threads to its log."""

    def signal(self, number: int) -> None:
        """Send a signal to the process and to everything that it has started."""

    def sweep(self) -> None:
        """End whatever the process has left behind."""
