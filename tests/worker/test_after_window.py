"""Steps after the window, which show whether those of the window took as long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from accel_bench import Batch, TokenCounts
from accel_bench.result import Sample, Window
from accel_bench.worker import after_window
from accel_bench.worker.after_window import PATIENCE_STEPS, PaceSteps
from accel_bench.worker.clocks import HostClock

BATCH = Batch({}, 1, TokenCounts(processed=10, real=10, supervised=10), 10)


class Clock(HostClock):
    """A clock by which steps take given seconds."""

    def __init__(self, seconds: Iterable[float]) -> None:
        super().__init__()
        self._seconds = iter(seconds)

    def read(self) -> tuple[list[float], list[float] | None]:
        steps = len(super().read()[0])
        return [next(self._seconds) for _ in range(steps)], None


def samples(seconds: Sequence[float], tokens: int = 10) -> tuple[Sample, ...]:
    counts = {"sequences": 1, "processed_tokens": tokens, "real_tokens": tokens}
    return tuple(
        Sample(step=step, seconds=one, supervised_tokens=1, loss=0.5, **counts)
        for step, one in enumerate(seconds)
    )


def pace(
    window: Sequence[float],
    after: Sequence[float] = (1.0, 1.0),
    warmup: Sequence[float] = (),
    agrees: Iterable[bool] = (),
    tokens: int = 10,
) -> tuple[int, list[str]]:
    """Return the steps taken after a window, and why that window is refused."""
    answers = iter(agrees)
    stage = PaceSteps(Clock(after), lambda enough: next(answers, enough))
    stage.window = Window(
        started=0.0, ended=1.0, samples=samples(window, tokens), warmup=samples(warmup)
    )
    assert stage.start()
    steps = 1
    while stage.end_step([BATCH], 0.5):
        steps += 1
    return steps, stage.reasons()


@pytest.mark.parametrize("usual", [0.34, 1.0, 5.0])
def test_two_steps_are_enough_after_a_window_whose_steps_took_as_long(usual: float) -> None:
    assert pace([usual, usual, 0.001]) == (2, [])


def test_a_window_that_took_less_than_a_third_of_a_step_is_refused_with_both_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(after_window, "PATIENCE_SECONDS", 0.0)
    steps, (reason,) = pace([0.2, 0.3, 9.0, 0.3], after=[1.5] * 4 + [1.0] * 40)
    assert steps == PATIENCE_STEPS
    assert reason.startswith(
        "the window's median step took 0.3 s, and the fastest of 10 steps after the window 1 s: "
    )


def test_slow_steps_of_a_machine_that_is_busy_for_a_moment_refuse_nothing() -> None:
    assert pace([0.3] * 4, after=[2.0, 2.0, 2.0, 0.4]) == (4, [])


def test_ranks_take_steps_until_all_of_them_have_enough() -> None:
    assert pace([1.0] * 4, after=[1.0] * 5, agrees=[False, False, True]) == (4, [])


def test_a_long_batch_may_take_long() -> None:
    assert pace([0.1] * 4, tokens=1) == (2, [])
    assert pace([0.3] * 4, tokens=1) == (2, [])


def test_the_warm_up_is_compared_but_for_its_first_step_where_it_is_long() -> None:
    slow = [9.0, 4.0, 4.0, 4.0, 4.0]
    assert pace([1.0] * 4, warmup=slow) == (2, []), "each may have compiled"
    assert pace([1.0] * 4, warmup=[*slow, 2.9]) == (2, [])
    _, (reason,) = pace([1.0] * 4, warmup=[*slow, 3.1])
    assert "the fastest of 5 steps of the warm-up 3.1 s" in reason
