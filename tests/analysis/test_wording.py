"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_bench.analysis.statistics.estimators import Interval, geometric_interval
from accel_bench.analysis.statistics.verdict import Policy, compare_logs
from accel_bench.analysis.wording import (
    StackAtPoint,
    group_label,
    interval_text,
    label,
    rate_interval,
    ratio,
    ratio_interval,
    shares,
)


def judged_interval(logs: Sequence[float], look: int, sharing: int = 1) -> Interval:
    """The interval of a verdict on paired log-ratios."""
    interval = compare_logs({"b": logs}, {"b": look}, Policy(points=sharing))["b"].ratio
    assert interval is not None
    return interval


def spread(*values: float) -> str:
    interval = geometric_interval(values)
    assert interval is not None
    return rate_interval(interval)


def test_an_interval_that_tells_nothing_asks_for_more_rounds() -> None:
    assert spread(1000.0, 1600.0) == "1,265 ±>100 %"  # it would be ±1,880 %
    assert spread(1000.0, 1050.0) == "1,025 ±36 %"
    assert spread(1000.0, 1600.0, 1300.0, 1250.0, 1310.0) == "1,278 ±23 %"
    assert spread(1000.0) == "1,000"


def test_two_rounds_of_a_verdicts_interval_are_as_short_as_others() -> None:
    texts = {(0.0, 0.1): "1.05 [<0.01, >105]", (0.0, 5.0): "12.18 [<0.1, >1,218]"}
    for rounds, text in texts.items():
        for look in (1, 2):
            interval = judged_interval(rounds, look)
            assert ratio_interval(interval) == text
            assert ratio_interval(interval.mapped(lambda ratio: 1 / ratio))


@pytest.mark.parametrize(
    ("look", "sharing", "sure"),
    [(1, 1, "99.5"), (1, 3, "99.83"), (2, 1, "99.83"), (3, 20, "99.9958"), (5, 100, "99.99967")],
)
def test_no_interval_is_said_to_be_sure(look: int, sharing: int, sure: str) -> None:
    interval = judged_interval([0.0, 0.01], look, sharing)
    text = interval_text(interval, ratio)
    assert text.startswith(f"{sure} % interval ") and len(text) < 50


def test_a_point_is_called_by_the_tag_that_the_scenario_forms_and_else_by_its_values() -> None:
    sweep = {"train.seed": 1, "data.sequence_length": 64}
    assert label(StackAtPoint("lora", {}, "")) == "lora"
    assert label(StackAtPoint("lora", sweep, "")) == "lora (train.seed=1, data.sequence_length=64)"
    automatic = "sequence_length_64-seed_1"
    assert label(StackAtPoint("lora", sweep, automatic)) == group_label("lora", sweep)
    assert label(StackAtPoint("lora", sweep, "run.seed_1")) == "lora (run.seed_1)"


def test_shares_of_a_step_add_up_to_a_hundred_percent() -> None:
    thirds = {"forward": 1.0, "backward": 1.0, "optimizer": 1.0}
    assert shares(thirds, 3.0) == "forward 34 %, backward 33 %, optimizer 33 %"
    assert shares({"forward": 0.255, "backward": 0.705}, 1.0) == (
        "forward 26 %, backward 70 %, other 4 %"
    )
    # Medians of parts may add up to more than that of the step.
    assert shares({"forward": 2.0, "backward": 2.0}, 3.0) == "forward 50 %, backward 50 %"


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=6), st.floats(1e-3, 1e6))
def test_shares_of_any_parts_do(parts: list[float], whole: float) -> None:
    named = {f"part{number}": part for number, part in enumerate(parts)}
    percents = [int(one.split()[1]) for one in shares(named, whole).split(", ")]
    assert sum(percents) == 100
