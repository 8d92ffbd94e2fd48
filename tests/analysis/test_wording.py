"""Numbers as people read them."""

from __future__ import annotations

from accel_bench.analysis.statistics.estimators import geometric_interval
from accel_bench.analysis.wording import StackAtPoint, group_label, label, rate_interval


def spread(*values: float) -> str:
    interval = geometric_interval(values)
    assert interval is not None
    return rate_interval(interval)


def test_an_interval_that_tells_nothing_asks_for_more_rounds() -> None:
    assert spread(1000.0, 1600.0) == "1,265 (needs more rounds)"  # it would be ±1,880 %
    assert spread(1000.0, 1050.0) == "1,025 ±36 %"
    assert spread(1000.0, 1600.0, 1300.0, 1250.0, 1310.0) == "1,278 ±23 %"
    assert spread(1000.0) == "1,000"


def test_a_point_is_called_by_the_tag_that_the_scenario_forms_and_else_by_its_values() -> None:
    sweep = {"train.seed": 1, "data.sequence_length": 64}
    assert label(StackAtPoint("lora", {}, "")) == "lora"
    assert label(StackAtPoint("lora", sweep, "")) == "lora (train.seed=1, data.sequence_length=64)"
    automatic = "sequence_length_64-seed_1"
    assert label(StackAtPoint("lora", sweep, automatic)) == group_label("lora", sweep)
    assert label(StackAtPoint("lora", sweep, "run.seed_1")) == "lora (run.seed_1)"
