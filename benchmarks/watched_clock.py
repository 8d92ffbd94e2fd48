"""Record the stopwatch's calls of a clock, in order."""

from __future__ import annotations

from collections.abc import Callable

from accel_bench.worker.clocks import HostClock


class WatchedClock(HostClock):
    """Recorder of the calls of another clock.

    `guard` is called with True when the window opens and with False when it is about to close.
    """

    def __init__(self, clock: HostClock, guard: Callable[[bool], None] = lambda _: None) -> None:
        super().__init__()
        self.calls: list[str] = []
        self._clock = clock
        self._guard = guard
        self._opening = False

    def open(self) -> None:
        """Set that the next mark opens the window: for `before_window`."""
        self._opening = True

    def reserve(self, marks: int) -> None:
        """Reserve marks in the other clock."""
        self._clock.reserve(marks)

    def mark(self) -> None:
        """Mark the other clock, and record the mark, or that it opens the window."""
        self._clock.mark()
        self.calls.append("open" if self._opening else "mark")
        if self._opening:
            self._opening = False
            self._guard(True)

    def synchronize(self) -> None:
        """Record the call, and synchronize the other clock."""
        if not self._opening:
            self._guard(False)
        self.note("synchronize")
        self._clock.synchronize()

    def read(self) -> tuple[list[float], list[float] | None]:
        """Read the marks of the other clock."""
        return self._clock.read()

    def note(self, call: str) -> None:
        """Record another call that waits for the device."""
        self.calls.append(call)

    def waits(self, call: str) -> tuple[int, int]:
        """Count a call within the window, and after its last mark."""
        window = self.calls[self.calls.index("open") :]
        last_mark = len(window) - 1 - window[::-1].index("mark")
        return window[:last_mark].count(call), window[last_mark:].count(call)
