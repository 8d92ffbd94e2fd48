"""Hold Ctrl-C and SIGTERM back while something is done that must not be cut in two."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

HELD = (signal.SIGINT, signal.SIGTERM)
"""What a user or a batch system ends the program with."""


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Signals that arrive in the block are delivered once, after it; only the main thread gets any.

    People press Ctrl-C twice: the second one must not cost the row that the first one left.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    before = {number: signal.signal(number, note) for number in HELD}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in dict.fromkeys(arrived):
            signal.raise_signal(late)
