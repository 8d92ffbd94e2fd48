"""The parent's clock bounds how long a window lasted, and never says more than it saw."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner.job_factory import make_job

from accel_bench.result import RankResult, Sample, SeenWindow, Status, Window
from accel_bench.runner.heartbeats import Progress, Sighting, bounds, note, seen_windows

WARMUP, STEPS = 2, 4


def window(first: int = WARMUP, steps: int = STEPS) -> Window:
    """A window of these steps."""
    counts = {"sequences": 1, "processed_tokens": 1, "real_tokens": 1, "supervised_tokens": 1}
    samples = [Sample(step=first + i, seconds=1.0, loss=1.0, **counts) for i in range(steps)]
    return Window(started=0.0, ended=1.0, samples=tuple(samples))


def sightings(*read: tuple[float, int, str]) -> list[Sighting]:
    """Heartbeats that were read at these seconds, each in a millisecond."""
    found: list[Sighting] = []
    for at, step, phase in read:
        note(found, Progress(step, phase), at, at + 0.001)
    return found


def test_a_window_that_was_seen_from_before_to_after_has_both_bounds() -> None:
    seen = sightings(
        (9.0, 2, "warm-up"),
        (10.0, 2, "window"),
        (11.0, 3, "window"),
        (13.0, 5, "window"),
        (13.5, 5, "window"),
        (14.0, 6, "finish_metrics"),
    )
    found = bounds(0, seen, window())
    assert found.at_least == pytest.approx(13.5 - 11.001)
    assert found.at_most == pytest.approx(14.001 - 9.0)


def test_the_phase_of_a_window_does_not_say_that_its_clock_runs() -> None:
    """Before the clock starts, the garbage is collected: it may take long."""
    seen = sightings((10.0, 2, "window"), (15.0, 5, "window"), (16.0, 9, "phases"))
    assert bounds(0, seen, window()) == SeenWindow(rank=0, at_least=0.0, at_most=None)


def test_discarded_windows_are_not_part_of_the_one_that_is_kept() -> None:
    seen = sightings(
        (1.0, 0, "warm-up"),
        (5.0, 4, "window"),
        (6.0, 6, "window"),
        (7.0, 7, "window"),
        (9.0, 9, "window"),
        (10.0, 10, "finish_metrics"),
    )
    found = bounds(0, seen, window(first=6))
    assert found.at_least == pytest.approx(9.0 - 7.001)
    assert found.at_most == pytest.approx(10.001 - 5.0)


@pytest.mark.parametrize(
    "seen", [[], sightings((8.0, 6, "write_result")), sightings((8.0, 3, "window"))]
)
def test_a_window_that_was_over_too_soon_is_not_judged(seen: list[Sighting]) -> None:
    assert bounds(0, seen, window()) == SeenWindow(rank=0, at_least=0.0, at_most=None)


times = st.floats(0.001, 5.0)


@given(st.lists(times, min_size=8, max_size=8), st.lists(st.floats(0, 40.0), max_size=40))
def test_the_true_length_lies_within_the_bounds_whenever_the_parent_reads(
    gaps: list[float], readings: list[float]
) -> None:
    """The events: warm-up ends, phase, start, steps of the window, its end, phase."""
    at = [sum(gaps[:i]) for i in range(1, 9)]
    warm_up, opened, started, *steps, ended, after = at
    ends = [warm_up / 2, warm_up, *steps, ended - gaps[6] / 2]

    def page(moment: float) -> Progress:
        phase = "warm-up" if moment < opened else "window" if moment < after else "phases"
        return Progress(sum(end <= moment for end in ends), phase)

    seen: list[Sighting] = []
    for reading in sorted(readings):
        note(seen, page(reading), reading, reading)
    found = bounds(0, seen, window())
    assert found.at_least <= ended - started + 1e-9
    assert found.at_most is None or found.at_most >= ended - started - 1e-9


def test_ranks_without_a_window_and_ranks_on_several_nodes_have_no_bounds(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    ranks = {
        0: RankResult(rank=0, status=Status.OK, window=window()),
        1: RankResult(rank=1, status=Status.OK),
    }
    assert [one.rank for one in seen_windows(job, {}, ranks)] == [0]
    scenario = job.experiment.scenario
    resources = scenario.resources.model_copy(update={"nodes": 2})
    scenario = scenario.model_copy(update={"resources": resources})
    experiment = job.experiment.model_copy(update={"scenario": scenario})
    assert seen_windows(job.model_copy(update={"experiment": experiment}), {}, ranks) == ()
