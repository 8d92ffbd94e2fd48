"""Intervals and nested spans, in examples counted by hand."""

from __future__ import annotations

import pytest
from accel_bench_profile.figures.modules import OUTSIDE
from accel_bench_profile.figures.schema import ModulePhase
from accel_bench_profile.figures.spans import (
    Cycle,
    Interval,
    Span,
    in_order,
    length,
    self_times,
    union,
    without,
)
from hypothesis import given
from hypothesis import strategies as st

INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)).map(lambda p: (p[0], sum(p))))


def moments(intervals: list[Interval]) -> set[int]:
    """The integer times that intervals cover."""
    return {moment for start, end in intervals for moment in range(start, end)}


@given(INTERVALS, INTERVALS)
def test_intervals_are_joined_and_taken_away_as_sets_of_moments_are(
    ones: list[Interval], others: list[Interval]
) -> None:
    left = without(union(ones), union(others))
    assert moments(left) == moments(ones) - moments(others)
    assert length(left) == len(moments(left)), "no moment is counted twice"


def test_a_span_does_not_count_what_runs_within_it_and_other_threads_count_apart() -> None:
    spans = in_order(
        [
            Span("outer", "operation", 0, 100),
            Span("inner", "operation", 10, 60),
            Span("innermost", "operation", 20, 30),
            Span("next", "operation", 60, 70),
            Span("elsewhere", "operation", 0, 50, lane=1),
        ]
    )
    assert {span.name: own for span, own in self_times(spans)} == {
        "outer": 40,
        "inner": 40,
        "innermost": 10,
        "next": 10,
        "elsewhere": 50,
    }


@pytest.mark.parametrize(
    ("moment", "place"),
    [
        (5, ModulePhase(module=OUTSIDE, phase="data")),
        (15, ModulePhase(module="model", phase="forward")),
        (25, ModulePhase(module="model.mlp", phase="forward")),
        (45, ModulePhase(module="model", phase="forward")),
        (60, ModulePhase(module=OUTSIDE, phase="backward")),
        (90, ModulePhase(module=OUTSIDE, phase="")),
        (105, ModulePhase(module=OUTSIDE, phase="data")),
    ],
)
def test_a_moment_has_the_innermost_module_and_the_phase_that_ends_next(
    moment: int, place: ModulePhase
) -> None:
    spans = [
        Span("ProfilerStep#1", "range", 0, 100),
        Span("ProfilerStep#2", "range", 100, 200),
        Span("module: model", "range", 10, 50),
        Span("module: model.mlp", "range", 20, 40),
        Span("phase: data", "range", 8, 9),
        Span("phase: forward", "range", 52, 53),
        Span("phase: backward", "range", 80, 81),
        Span("phase: data", "range", 108, 109),
    ]
    assert Cycle(in_order(spans)).place_at(moment) == place
