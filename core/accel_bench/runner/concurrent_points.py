"""Execution of sweep points one after the other, or concurrently on parts of an allocation."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from accel_bench.launcher import Allocation, AllocationPart, DividedAllocation
from accel_bench.runner.supervise import POLL_SECONDS, deferred_signals

if TYPE_CHECKING:
    from accel_bench.runner.sweep_point import SweepPointRun


class PartLostError(Exception):
    """Error for a lost part of an allocation; its sweep point continues on another part."""


def places_of(allocation: Allocation | None) -> Sequence[AllocationPart]:
    """Return the parts of an allocation; an empty sequence if it is undivided or None."""
    parts: Sequence[AllocationPart] = getattr(allocation, "places", ())
    return parts


def first_place(allocation: Allocation | None) -> Allocation | None:
    """Return the first part of a divided allocation, else the whole allocation."""
    return next(iter(places_of(allocation)), allocation)


def run_points(points: Sequence[SweepPointRun], allocation: Any) -> None:
    """Run every sweep point, as many concurrently as the allocation has parts.

    Ctrl-C or an error in one point ends all points, and is raised again when they have ended.
    """
    queue = _Queue(points)
    places = places_of(allocation)
    if min(len(points), len(places)) > 1:
        _share(queue, places, allocation)
    for point in queue.waiting:  # no place is left, or there never were several
        point.stop = None
        point.run_point()


def _share(queue: _Queue, places: Sequence[AllocationPart], allocation: DividedAllocation) -> None:
    """Run queued sweep points on all parts, one thread for each part, until no point is left.

    Ctrl-C is deferred from the start on. Otherwise it could leave started threads running.
    """
    running: list[Future[None]] = []
    finished = False
    with ThreadPoolExecutor(len(places)) as pool, deferred_signals() as arrived:
        try:
            for place in places:
                running.append(pool.submit(queue.work, place))
            while not (arrived or finished or any(map(_has_failed, running))):
                finished = not wait(running, POLL_SECONDS, FIRST_EXCEPTION).not_done
        finally:
            if not finished or any(map(_has_failed, running)):
                queue.end()
                allocation.interrupt()
            wait(running)
    errors = [error for future in running if (error := future.exception()) is not None]
    # The first is what has ended the others, which were interrupted.
    for error in sorted(errors, key=lambda error: isinstance(error, KeyboardInterrupt)):
        raise error


def _has_failed(running: Future[None]) -> bool:
    return running.done() and running.exception() is not None


class _Queue:
    """Queue of sweep points, shared by the threads that run them, one for each allocation part."""

    def __init__(self, points: Sequence[SweepPointRun]) -> None:
        self.waiting = deque(points)
        self.stop = threading.Event()
        self._changed = threading.Condition()
        self._busy = 0

    def work(self, place: AllocationPart) -> None:
        """Run queued sweep points on the part `place`; requeue the point if the part is lost."""
        while (point := self._next()) is not None:
            back: SweepPointRun | None = point
            try:
                point.place, point.stop = place, self.stop
                point.run_point()
                back = None
            except PartLostError:
                return
            except BaseException:
                self.end()
                raise
            finally:
                self._return(back)

    def end(self) -> None:
        """Stop the running sweep points, and start no further point."""
        self.stop.set()
        with self._changed:
            self._changed.notify_all()

    def _next(self) -> SweepPointRun | None:
        """Return the next sweep point or None; wait while a running one may be requeued."""
        with self._changed:
            while not self.waiting and self._busy and not self.stop.is_set():
                self._changed.wait()
            if self.stop.is_set() or not self.waiting:
                return None
            self._busy += 1
            return self.waiting.popleft()

    def _return(self, back: SweepPointRun | None) -> None:
        with self._changed:
            self._busy -= 1
            if back is not None:
                self.waiting.appendleft(back)
            self._changed.notify_all()
