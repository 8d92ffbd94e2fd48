"""The verdict on the loss, with curves whose distance is known."""

from __future__ import annotations

import pytest
from analysis_factory import make_experiment, make_rank, make_result
from hypothesis import given
from hypothesis import strategies as st

from accel_bench.analysis.checks.convergence import compare_losses, loss_tolerance, smoothed
from accel_bench.result import Status
from accel_bench.scenario.models import Scenario

STEPS = 10
FLAT = [2.0] * STEPS


def run(losses, tokens=100, **changes):
    steps = [0.1] * (len(losses) - 1)
    rank = make_rank(step_seconds=steps, losses=losses, tokens=tokens)
    return make_result(ranks=[rank], **changes)


def verdict(baseline, stack, **changes):
    return compare_losses({("monday", 0): run(baseline)}, {("monday", 0): run(stack, **changes)})


def test_the_moving_mean_is_centred_and_shorter_at_the_ends():
    assert smoothed([0.0, 10.0, 20.0, 30.0, 40.0, 80.0]) == [10.0, 15.0, 20.0, 36.0, 42.5, 50.0]


def test_equal_curves_are_equivalent_with_distance_0():
    found = verdict(FLAT, FLAT)
    assert (found.loss_verdict, found.loss_difference, found.loss_tolerance) == (
        "equivalent",
        0.0,
        1e-3,
    )


@pytest.mark.parametrize(("shift", "word"), [(1.0009, "equivalent"), (1.0011, "different")])
def test_one_thousandth_is_allowed_where_no_plugin_declares_more(shift, word):
    found = verdict(FLAT, [shift * loss for loss in FLAT])
    assert found.loss_verdict == word
    assert found.loss_difference == pytest.approx(shift - 1, rel=1e-6)


def test_a_single_step_off_counts_for_a_fifth():
    bumped = [*FLAT[:5], 2.1, *FLAT[6:]]
    assert verdict(FLAT, bumped).loss_difference == pytest.approx(0.1 / 5 / 2.0)


def test_a_difference_in_warm_up_counts_too():
    assert verdict(FLAT, [3.0, *FLAT[1:]]).loss_verdict == "different"


def test_a_declared_tolerance_replaces_the_default():
    shifted = [1.015 * loss for loss in FLAT]
    found = verdict(FLAT, shifted, loss_tolerance=2e-2)
    assert (found.loss_verdict, found.loss_tolerance) == ("equivalent", 2e-2)


def test_the_largest_declared_tolerance_counts():
    assert loss_tolerance([None, 1e-2, 3e-2], Scenario(), Scenario()) == 3e-2


@pytest.mark.parametrize(
    "settings", [{"model": {"dtype": "bfloat16"}}, {"train": {"precision": "bf16-autocast"}}]
)
def test_another_dtype_or_precision_is_allowed_2_percent(settings):
    other = make_experiment("half", scenario=settings)
    found = verdict(FLAT, [1.015 * loss for loss in FLAT], experiment=other)
    assert (found.loss_verdict, found.loss_tolerance) == ("equivalent", 2e-2)


def test_only_steps_that_both_took_are_compared():
    assert verdict(FLAT, [*FLAT, 9.0, 9.0]).loss_verdict == "equivalent"


def test_the_worst_pair_counts():
    keys = [("monday", 0), ("monday", 1)]
    baseline = {key: run(FLAT) for key in keys}
    stack = {keys[0]: run(FLAT), keys[1]: run([1.5 * loss for loss in FLAT])}
    found = compare_losses(baseline, stack)
    assert found.loss_verdict == "different"
    assert found.loss_difference == pytest.approx(0.5)
    assert found.loss_reason == "by up to 50 %, 0.1 % allowed"


def test_a_loss_that_is_not_finite_is_a_different_loss():
    found = verdict(FLAT, [*FLAT[:3], None, *FLAT[4:]])
    assert found.loss_verdict == "different"
    assert found.loss_reason == "the loss of step 3 is missing or not finite"
    assert found.loss_difference is None


def test_nothing_is_tested_against_a_baseline_whose_loss_is_not_finite():
    found = verdict([*FLAT[:3], None, *FLAT[4:]], FLAT)
    assert found.loss_verdict == "not tested"
    assert "baseline's loss of step 3" in found.loss_reason


def test_nothing_is_tested_where_steps_hold_different_samples():
    found = verdict(FLAT, FLAT, tokens=200)
    assert found.loss_verdict == "not tested"
    assert "different numbers of tokens" in found.loss_reason


def test_nothing_is_tested_without_a_common_round():
    found = compare_losses({("monday", 0): run(FLAT)}, {("monday", 1): run(FLAT)})
    assert found.loss_verdict == "not tested"


def test_a_failed_run_is_no_pair():
    failed = make_result(status=Status.OOM)
    found = compare_losses({("monday", 0): run(FLAT)}, {("monday", 0): failed})
    assert found.loss_verdict == "not tested"


def test_a_loss_of_0_differs_from_any_other_without_a_number():
    found = verdict([0.0] * STEPS, [0.1] * STEPS)
    assert (found.loss_verdict, found.loss_difference) == ("different", None)


@given(st.lists(st.floats(min_value=0.1, max_value=10), min_size=2, max_size=12))
def test_every_curve_is_equivalent_to_itself(losses):
    assert verdict(losses, losses).loss_difference == 0.0
