"""A clock that notes what the stopwatch asks of it, in order."""

from __future__ import annotations

from collections.abc import Callable

from accel_bench.worker.clocks import HostClock


class WatchedClock(HostClock):
    """Another clock, watched.

    `guard` is called with True when the window opens and with False when it is about to close.
    """

    def __init__(self, clock: HostClock, guard: Callable[[bool], None] = lambda _: None) -> None:
        super().__init__()
        self.calls: list[str] = []
        self._clock = clock
        self._guard = guard
        self._opening = False

    def open(self) -> None:
        """Say that the next mark opens the window: for `before_window`."""
        self._opening = True

    def reserve(self, marks: int) -> None:
        """As the clock does."""
        self._clock.reserve(marks)

    def mark(self) -> None:
        """As the clock does; the mark that opens the window is noted as such."""
        self._clock.mark()
        self.calls.append("open" if self._opening else "mark")
        if self._opening:
            self._opening = False
            self._guard(True)

    def synchronize(self) -> None:
        """As the clock does."""
        if not self._opening:
            self._guard(False)
        self.note("synchronize")
        self._clock.synchronize()

    def read(self) -> tuple[list[float], list[float] | None]:
        """As the clock does."""
        return self._clock.read()

    def note(self, call: str) -> None:
        """Note something else that waits for the device."""
        self.calls.append(call)

    def waits(self, call: str) -> tuple[int, int]:
        """How often something was done within the window, and how often after its last mark."""
        window = self.calls[self.calls.index("open") :]
        last_mark = len(window) - 1 - window[::-1].index("mark")
        return window[:last_mark].count(call), window[last_mark:].count(call)
