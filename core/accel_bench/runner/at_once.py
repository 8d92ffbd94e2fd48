"""Run sweep points one after the other, or several at once on places of their own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from accel_bench.launcher import Allocation, DividedAllocation, Place
from accel_bench.runner.supervise import POLL_SECONDS, deferred_signals

if TYPE_CHECKING:
    from accel_bench.runner.sweep_point import SweepPoint


class PlaceLostError(Exception):
    """Processes of a place are lost, and others have not come: the point goes on elsewhere."""


def places_of(allocation: Allocation | None) -> Sequence[Place]:
    """Return the places of an allocation; none where it is not divided."""
    found: Sequence[Place] = getattr(allocation, "places", ())
    return found


def first_place(allocation: Allocation | None) -> Allocation | None:
    """Return the place of points that run one after the other: all of what is not divided."""
    return next(iter(places_of(allocation)), allocation)


def run_points(points: Sequence[SweepPoint], allocation: Any) -> None:
    """Run every point, as many at once as there are places.

    Ctrl-C, or an error in one of them, ends all, and is raised when they have ended.
    """
    queue = _Queue(points)
    places = places_of(allocation)
    if min(len(points), len(places)) > 1:
        _share(queue, places, allocation)
    for point in queue.waiting:  # no place is left, or there never were several
        point.stop = None
        point.run_point()


def _share(queue: _Queue, places: Sequence[Place], allocation: DividedAllocation) -> None:
    """Run points on all places, each in a thread, until none is waiting or no place is left.

    Ctrl-C is noted from before the first one starts: raised anywhere, it could miss the threads.
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
    errors = [error for one in running if (error := one.exception()) is not None]
    # The first is what has ended the others, which were interrupted.
    for error in sorted(errors, key=lambda one: isinstance(one, KeyboardInterrupt)):
        raise error


def _has_failed(running: Future[None]) -> bool:
    return running.done() and running.exception() is not None


class _Queue:
    """The points that are still to be run, shared by the threads of the places."""

    def __init__(self, points: Sequence[SweepPoint]) -> None:
        self.waiting = deque(points)
        self.stop = threading.Event()
        self._changed = threading.Condition()
        self._busy = 0

    def work(self, place: Place) -> None:
        """Run points on a place while there are any; give one back where the place is lost."""
        while (point := self._take()) is not None:
            back: SweepPoint | None = point
            try:
                point.place, point.stop = place, self.stop
                point.run_point()
                back = None
            except PlaceLostError:
                return
            except BaseException:
                self.end()
                raise
            finally:
                self._give(back)

    def end(self) -> None:
        """Let no point start any more, and those that run end."""
        self.stop.set()
        with self._changed:
            self._changed.notify_all()

    def _take(self) -> SweepPoint | None:
        """Return the next point; wait while one that runs may still be given back."""
        with self._changed:
            while not self.waiting and self._busy and not self.stop.is_set():
                self._changed.wait()
            if self.stop.is_set() or not self.waiting:
                return None
            self._busy += 1
            return self.waiting.popleft()

    def _give(self, back: SweepPoint | None) -> None:
        with self._changed:
            self._busy -= 1
            if back is not None:
                self.waiting.appendleft(back)
            self._changed.notify_all()
