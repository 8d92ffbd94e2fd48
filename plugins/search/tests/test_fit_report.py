"""Search for the largest value that fits: tried values, and conclusion."""

from __future__ import annotations

from collections.abc import Callable

from accel_bench_search.fit_report import (
    FitPoint,
    FitReport,
    SearchRange,
    fit_point,
    fit_report,
    next_value,
)
from analysis_factory import make_result
from hypothesis import given
from hypothesis import strategies as st
from serving_factory import serving

from accel_bench.result import Status

KEY = "train.micro_batch_size"


def search(where: SearchRange, make: Callable[[int], FitPoint]) -> FitReport:
    """Try values until the search ends."""
    points: list[FitPoint] = []
    while (value := next_value(points, where)) is not None:
        points.append(make(value))
    return fit_report("some", "lora", KEY, where, points)


def point(value: int, limit: int) -> FitPoint:
    """A run of a device that holds so many samples."""
    return FitPoint(value=value, outcome="holds" if value <= limit else "does not hold")


@given(st.integers(0, 5000), st.integers(1, 5000), st.integers(1, 20))
def test_the_search_finds_every_limit_and_runs_nothing_above_what_does_not_fit(
    limit: int, start: int, step: int
) -> None:
    report = search(SearchRange(start=start, step=step), lambda value: point(value, limit))
    values = [one.value for one in report.points]
    found = report.largest.value if report.largest else 0
    assert found <= limit < found + (step if found else 1)
    refused = [one.value for one in report.points if one.outcome == "does not hold"]
    assert refused == sorted(refused, reverse=True)
    assert len(set(values)) == len(values) <= 30


def test_odd_sizes_are_found_in_few_runs() -> None:
    report = search(SearchRange(start=1), lambda value: point(value, 13))
    assert [one.value for one in report.points] == [1, 2, 4, 8, 16, 12, 14, 13]
    assert report.refused is not None
    assert (report.refused.value, report.exit_code) == (14, 0)


def test_what_fails_otherwise_ends_the_search_and_is_no_limit() -> None:
    def make(value: int) -> FitPoint:
        failed = make_result(status=Status.TIMEOUT, reasons=["it took too long"])
        return fit_point(value, [make_result() if value < 4 else failed])

    report = search(SearchRange(start=1), make)
    assert [one.outcome for one in report.points] == ["holds", "holds", "not tested"]
    assert (report.exit_code, report.refused) == (1, None)
    assert "for another reason than memory (timeout: it took too long); 2 (" in report.answer


def test_the_answer_names_the_largest_its_speed_and_why_the_next_does_not_fit() -> None:
    def make(value: int) -> FitPoint:
        oom = make_result(status=Status.OOM, reasons=["out of memory in forward: asked 2.00 GiB"])
        runs = [make_result(seconds=0.1 if value == 3 else 0.05)]
        return fit_point(value, runs if value <= 3 else [oom])

    report = search(SearchRange(start=1), make)
    assert report.answer == (
        "lora: the largest train.micro_batch_size that fits is 3 (1,000 tokens/s, peak 1,000 "
        "bytes); 4 does not: out of memory in forward: asked 2.00 GiB."
    )


def test_a_search_that_ends_at_its_bound_does_not_call_that_the_limit() -> None:
    report = search(SearchRange(start=3, most=7), lambda value: point(value, 100))
    assert [one.value for one in report.points] == [3, 6, 7]
    assert report.answer == (
        "lora: train.micro_batch_size = 7 fits, and is the largest that was tried; --max sets "
        "a larger one."
    )


def test_nothing_that_fits_is_an_answer_too() -> None:
    report = search(SearchRange(start=4), lambda value: point(value, 0))
    assert [one.value for one in report.points] == [4, 2, 1]
    assert report.exit_code == 1
    assert report.answer.startswith("lora: not even train.micro_batch_size = 1 fits")


def test_one_round_out_of_memory_is_enough_not_to_fit() -> None:
    oom = make_result(status=Status.OOM, reasons=["out of memory in forward"], round=1)
    found = fit_point(3, [make_result(), oom, make_result(round=2)])
    assert (found.outcome, found.run_id) == ("does not hold", oom.run_id)
    assert found.reason == "it fits in 2 of 3 rounds: out of memory in forward"


def test_at_a_rate_the_answer_has_the_latency_of_the_median_request() -> None:
    def answer(saturated: int) -> str:
        def make(value: int) -> FitPoint:
            if value > 3:
                return FitPoint(value=value, outcome="does not hold", reason="out of memory")
            runs = serving("base", 100 * value, seconds=0.1 / value, saturated=value == saturated)
            return fit_point(value, runs)

        return search(SearchRange(start=1), make).answer

    assert "fits is 3 (the median request in 300 ms, peak" in answer(saturated=0)
    assert "fits is 3 (the median request in 300 ms, saturated, peak" in answer(saturated=3)
