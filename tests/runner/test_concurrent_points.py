"""Sweep points at once: each on one place, on another one where that is lost; all end together."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from runner.places import Divided, OnePlace, divided

from accel_bench import Allocation
from accel_bench.runner.concurrent_points import PartLostError, run_points

PATIENCE_SECONDS = 30.0


class OnePoint:
    """A sweep point that does what a test wants, and notes where."""

    def __init__(self, act: Callable[[OnePoint], None]) -> None:
        self.place: Allocation | None = OnePlace("first")
        self.stop: threading.Event | None = None
        self.ran_on: list[str] = []
        self._act = act

    def run_point(self) -> None:
        assert isinstance(self.place, OnePlace)
        self.ran_on.append(self.place.name)
        self._act(self)


def test_points_run_at_once_each_on_one_place_that_no_other_has() -> None:
    both, busy = threading.Barrier(2), set()

    def act(point: OnePoint) -> None:
        assert point.ran_on[-1] not in busy
        busy.add(point.ran_on[-1])
        both.wait(PATIENCE_SECONDS)
        busy.remove(point.ran_on[-1])
        both.wait(PATIENCE_SECONDS)

    points = [OnePoint(act) for _ in range(4)]
    run_points(points, divided())
    assert sorted(name for point in points for name in point.ran_on) == ["a", "a", "b", "b"]


def test_a_point_whose_place_is_lost_goes_on_on_another_one() -> None:
    lost = threading.Event()

    def act(point: OnePoint) -> None:
        if point.ran_on[-1] == "a":
            lost.set()
            raise PartLostError
        assert lost.wait(PATIENCE_SECONDS)

    points = [OnePoint(act) for _ in range(4)]
    run_points(points, divided())
    assert [point.ran_on[-1] for point in points] == ["b"] * 4
    assert sum(point.ran_on == ["a", "b"] for point in points) == 1


def test_without_any_place_left_points_run_to_their_own_end() -> None:
    def act(point: OnePoint) -> None:
        if point.stop is not None:
            raise PartLostError

    points = [OnePoint(act) for _ in range(3)]
    run_points(points, divided())
    assert [point.stop for point in points] == [None] * 3


def test_what_fails_in_one_point_ends_the_others_and_is_raised() -> None:
    running = threading.Barrier(2)

    def act(point: OnePoint) -> None:
        running.wait(PATIENCE_SECONDS)
        if point is points[0]:
            raise OSError("the disk is full")
        assert point.stop is not None and point.stop.wait(PATIENCE_SECONDS)
        raise KeyboardInterrupt

    points = [OnePoint(act) for _ in range(4)]
    allocation = divided()
    with pytest.raises(OSError, match="the disk is full"):
        run_points(points, allocation)
    assert allocation.interrupted
    assert [bool(point.ran_on) for point in points] == [True, True, False, False]


def test_ctrl_c_while_the_first_point_starts_ends_all_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The signal arrives while places get their threads: nothing waits for them as yet."""
    submit = ThreadPoolExecutor.submit

    def interrupted(pool: ThreadPoolExecutor, *work: Any) -> Any:
        future = submit(pool, *work)
        signal.raise_signal(signal.SIGINT)
        return future

    def act(point: OnePoint) -> None:
        assert point.stop is not None
        stopped.append(point.stop.wait(PATIENCE_SECONDS))
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    stopped: list[bool] = []
    points, allocation = [OnePoint(act) for _ in range(4)], divided()
    with pytest.raises(KeyboardInterrupt):
        run_points(points, allocation)
    assert allocation.interrupted
    assert all(stopped) and len(stopped) <= 2


def test_ctrl_c_while_points_run_ends_all_of_them() -> None:
    running = threading.Barrier(2)

    def act(point: OnePoint) -> None:
        running.wait(PATIENCE_SECONDS)
        if point is points[0]:
            _thread.interrupt_main()
        assert point.stop is not None and point.stop.wait(PATIENCE_SECONDS)
        raise KeyboardInterrupt

    points, allocation = [OnePoint(act) for _ in range(4)], divided()
    with pytest.raises(KeyboardInterrupt):
        run_points(points, allocation)
    assert allocation.interrupted
    assert [bool(point.ran_on) for point in points] == [True, True, False, False]


@pytest.mark.parametrize("allocation", [None, OnePlace("alone"), Divided([OnePlace("a")])])
def test_points_of_one_place_run_one_after_another_in_the_main_thread(
    allocation: Allocation | None,
) -> None:
    threads: list[threading.Thread] = []
    points = [OnePoint(lambda point: threads.append(threading.current_thread())) for _ in range(2)]
    run_points(points, allocation)
    assert threads == [threading.main_thread()] * 2
