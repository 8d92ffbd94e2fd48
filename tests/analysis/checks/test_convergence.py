"""The verdict on the loss, with curves whose distance is known."""

from __future__ import annotations

import random
import re
from statistics import fmean

import pytest
from analysis_factory import make_experiment, make_rank, make_result
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_bench.analysis.checks.convergence import compare_losses, smoothed
from accel_bench.effective import EffectiveConfiguration
from accel_bench.result import Status
from accel_bench.scenario.uses import Use

STEPS = 10
FALLING = [2.0 - 0.01 * step for step in range(STEPS)]


def run(losses, tokens=100, **changes):
    steps = [0.1] * (len(losses) - 1)
    rank = make_rank(step_seconds=steps, losses=losses, tokens=tokens)
    return make_result(ranks=[rank], **changes)


def reading(result, read):
    """Return the result with an effective configuration."""
    rank = result.ranks[0].model_copy(update={"effective": EffectiveConfiguration(**read)})
    return result.model_copy(update={"ranks": (rank,)})


def verdict(baseline, stack, **changes):
    return compare_losses({("monday", 0): run(baseline)}, {("monday", 0): run(stack, **changes)})


def test_the_moving_mean_is_centred_and_shorter_at_the_ends():
    assert smoothed([0.0, 10.0, 20.0, 30.0, 40.0, 80.0]) == [10.0, 15.0, 20.0, 36.0, 42.5, 50.0]


def test_equal_curves_are_bitwise_equal_with_distance_0():
    found = verdict(FALLING, FALLING)
    assert (found.loss_verdict, found.loss_difference, found.loss_tolerance) == (
        "bitwise equal",
        0.0,
        1e-3,
    )


@pytest.mark.parametrize(("shift", "word"), [(1.0009, "equivalent"), (1.0011, "different")])
def test_one_thousandth_is_allowed_where_no_plugin_declares_more(shift, word):
    found = verdict(FALLING, [shift * loss for loss in FALLING])
    assert found.loss_verdict == word
    assert found.loss_difference == pytest.approx(shift - 1, rel=1e-6)


@pytest.mark.parametrize(
    ("read", "shift", "word"),
    [
        ({"random_operations": "Gumbel noise"}, 1.014, "inconclusive"),
        ({"dropout": {"0.1": 2}}, 1.0015, "inconclusive"),
        ({"dropout": {"0.1": 2}}, 1.0009, "equivalent"),
        ({"dropout": {"0.1": 2}, "random_operations": "Gumbel noise"}, 1.03, "different"),
    ],
)
def test_random_draws_in_another_order_excuse_a_little(read, shift, word):
    before, after = (run([factor * loss for loss in FALLING]) for factor in (1.0, shift))
    found = compare_losses(
        {("monday", 0): reading(before, read)}, {("monday", 0): reading(after, read)}
    )
    assert found.loss_verdict == word
    assert ("drawn in another order" in found.loss_reason) == (word == "inconclusive")
    one_draws = compare_losses({("monday", 0): before}, {("monday", 0): reading(after, read)})
    assert one_draws.loss_verdict == ("equivalent" if word == "equivalent" else "different")


@pytest.mark.parametrize(
    "work", [{"model": {"dtype": "bfloat16"}}, {"train": {"precision": "bf16-autocast"}}]
)
@pytest.mark.parametrize(("shift", "word"), [(1.0049, "equivalent"), (1.0051, "different")])
def test_five_thousandths_are_allowed_where_both_compute_in_16_bits(work, shift, word):
    experiment = make_experiment(scenario=work)
    before, after = (
        run([factor * loss for loss in FALLING], experiment=experiment) for factor in (1.0, shift)
    )
    found = compare_losses({("monday", 0): before}, {("monday", 0): after})
    assert (found.loss_verdict, found.loss_tolerance) == (word, 5e-3)


def test_a_single_step_off_counts_for_a_fifth():
    bumped = [*FALLING[:5], FALLING[5] + 0.1, *FALLING[6:]]
    last = smoothed(FALLING)[7]
    assert verdict(FALLING, bumped).loss_difference == pytest.approx(0.1 / 5 / last)


def test_a_difference_in_warm_up_counts_too():
    assert verdict(FALLING, [3.0, *FALLING[1:]]).loss_verdict == "different"


def test_a_declared_tolerance_replaces_the_default():
    shifted = [1.015 * loss for loss in FALLING]
    found = verdict(FALLING, shifted, loss_tolerance=2e-2)
    assert (found.loss_word, found.loss_tolerance) == ("within what a plugin declares", 2e-2)
    assert found.loss_verdict == "different by design"


def using(*plugins, **work):
    return make_experiment("other", [Use(use=one) for one in plugins], scenario=work)


def shifted(shift, experiment, tolerances, baseline=None):
    before = run(FALLING, experiment=baseline, loss_tolerances=tolerances)
    losses = [shift * loss for loss in FALLING]
    after = run(losses, experiment=experiment, loss_tolerances=tolerances)
    return compare_losses({("monday", 0): before}, {("monday", 0): after})


def test_the_largest_declared_tolerance_counts_and_says_whose_it_is():
    found = shifted(1.015, using("nf4", "fp8"), {"nf4": 2e-2, "fp8": 1e-2})
    assert (found.loss_word, found.loss_tolerance) == ("within what nf4 declares", 2e-2)
    assert found.loss_tolerance_by == ("nf4",) and found.loss_excused
    assert found.loss_reason == "by up to 1.5 %, 2 % allowed by nf4"


def test_a_tolerance_above_2_percent_makes_the_loss_different_by_design():
    found = shifted(1.015, using("one-block"), {"one-block": 0.5})
    assert (found.loss_verdict, found.loss_tolerance) == ("different by design", 0.5)
    assert found.loss_reason == (
        "by up to 1.5 %, 50 % allowed by one-block; "
        "2 % is the most that counts as the same training"
    )
    assert not found.loss_excused


def test_what_needs_no_excuse_is_equivalent_whatever_is_declared():
    assert shifted(1.0009, using("one-block"), {"one-block": 0.5}).loss_verdict == "equivalent"


def test_no_tolerance_allows_more_than_it_declares():
    assert shifted(1.6, using("one-block"), {"one-block": 0.5}).loss_verdict == "different"


def test_a_plugin_that_both_stacks_use_alike_excuses_nothing():
    both = using("nf4")
    assert shifted(1.015, both, {"nf4": 2e-2}, both).loss_verdict == "different"


def test_a_plugin_of_the_baseline_alone_excuses_what_it_changes():
    found = shifted(1.015, make_experiment(), {"nf4": 2e-2}, using("nf4"))
    assert (found.loss_excused, found.loss_tolerance_by) == (True, ("nf4",))


def test_the_verdict_is_the_same_in_both_directions():
    coarse, fine = (
        make_experiment(name, [Use(use="fp8", options={"mode": name})]) for name in ("a", "b")
    )
    runs = (
        run(FALLING, experiment=coarse, loss_tolerances={"fp8": 2e-2}),
        run([1.015 * loss for loss in FALLING], experiment=fine, loss_tolerances={"fp8": 5e-3}),
    )
    for before, after in (runs, runs[::-1]):
        found = compare_losses({("monday", 0): before}, {("monday", 0): after})
        assert (found.loss_excused, found.loss_tolerance) == (True, 2e-2)


def test_a_plugin_in_a_slot_excuses_as_one_of_the_stack_does():
    eight_bit = using(optimizer={"use": "adamw-8bit"})
    found = shifted(1.015, eight_bit, {"adamw-8bit": 2e-2})
    assert found.loss_word == "within what adamw-8bit declares"


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        ({"adapter": {"use": "lora"}}, "adapter.use is lora in the place of none"),
        ({"train": {"learning_rate": 2e-3}}, "train.learning_rate is 0.002 in the place of 0.001"),
        ({"model": {"overrides": {"num_hidden_layers": 1}}}, "model.overrides is "),
    ],
)
def test_what_trains_something_else_is_never_equivalent(work, reason):
    found = shifted(1.0, using("nf4", **work), {"nf4": 2e-2})
    assert found.loss_verdict == "different by design"
    assert f"by up to 0 %, 2 % allowed by nf4; {reason}" in found.loss_reason


def trained(**slots):
    return make_experiment("trained", scenario={"adapter": {"use": "lora", "r": 64}} | slots)


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        ({"adapter": {"use": "lora", "r": 1}}, "adapter.r is 1 in the place of 64"),
        ({"adapter": {"use": "lora"}}, "adapter.r is unset in the place of 64"),
        ({"data": {"pattern": "uniform"}}, "data.pattern is uniform in the place of unset"),
    ],
)
def test_another_option_of_the_adapter_or_the_data_trains_something_else(work, reason):
    found = shifted(1.0, trained(**work), {}, trained())
    assert (found.loss_verdict, found.loss_reason[-len(reason) :]) == (
        "different by design",
        reason,
    )


def test_options_of_storage_and_layout_train_the_same():
    adapter = {"use": "lora", "r": 64, "autocast_adapter_dtype": False}
    other = trained(adapter=adapter, data={"padding": "longest"})
    assert shifted(1.0, other, {}, trained()).loss_verdict == "bitwise equal"


def test_the_one_tolerance_of_an_older_row_still_counts():
    old = run([1.015 * loss for loss in FALLING], loss_tolerance=2e-2)
    found = compare_losses({("monday", 0): run(FALLING)}, {("monday", 0): old})
    assert (found.loss_excused, found.loss_tolerance) == (True, 2e-2)


@pytest.mark.parametrize(
    "settings", [{"model": {"dtype": "bfloat16"}}, {"train": {"precision": "bf16-autocast"}}]
)
def test_another_dtype_or_precision_is_allowed_2_percent(settings):
    other = make_experiment("half", scenario=settings)
    found = verdict(FALLING, [1.015 * loss for loss in FALLING], experiment=other)
    assert (found.loss_verdict, found.loss_tolerance) == ("equivalent", 2e-2)


def test_only_steps_that_both_took_are_compared():
    assert verdict(FALLING, [*FALLING, 9.0, 9.0]).loss_verdict == "bitwise equal"


def test_steps_of_a_window_that_was_measured_again_are_compared_with_those_of_another_round():
    longer = [*FALLING, *(FALLING[-1] - 0.01 * step for step in range(1, 6))]
    baseline = {("monday", 0): run(FALLING), ("monday", 1): run(longer)}
    for tail, word in ((longer[-5:], "bitwise equal"), ([1.5] * 5, "different")):
        stack = {("monday", 0): run([*FALLING, *tail]), ("monday", 1): run(longer)}
        assert compare_losses(baseline, stack).loss_verdict == word


def test_the_worst_pair_counts():
    keys = [("monday", 0), ("monday", 1)]
    baseline = {key: run(FALLING) for key in keys}
    stack = {keys[0]: run(FALLING), keys[1]: run([1.5 * loss for loss in FALLING])}
    found = compare_losses(baseline, stack)
    assert found.loss_verdict == "different"
    assert found.loss_difference == pytest.approx(0.5)
    assert found.loss_reason == "by up to 50 %, 0.1 % allowed"


def test_a_loss_that_is_not_finite_is_a_different_loss():
    found = verdict(FALLING, [*FALLING[:3], None, *FALLING[4:]])
    assert found.loss_verdict == "different"
    assert found.loss_reason == "the loss of step 3 is missing or not finite"
    assert found.loss_difference is None


def test_nothing_is_tested_against_a_baseline_whose_loss_is_not_finite():
    found = verdict([*FALLING[:3], None, *FALLING[4:]], FALLING)
    assert found.loss_verdict == "not tested"
    assert "baseline's loss of step 3" in found.loss_reason


def test_nothing_is_tested_where_steps_hold_different_samples():
    found = verdict(FALLING, FALLING, tokens=200)
    assert found.loss_verdict == "not tested"
    assert "different numbers of tokens" in found.loss_reason


def test_nothing_is_tested_without_a_common_round():
    found = compare_losses({("monday", 0): run(FALLING)}, {("monday", 1): run(FALLING)})
    assert found.loss_verdict == "not tested"


def test_a_failed_run_is_no_pair():
    failed = make_result(status=Status.OOM)
    found = compare_losses({("monday", 0): run(FALLING)}, {("monday", 0): failed})
    assert found.loss_verdict == "not tested"


def test_a_loss_of_0_differs_from_any_other_without_a_number():
    found = verdict([0.0] * STEPS, [0.1] * STEPS)
    assert (found.loss_verdict, found.loss_difference) == ("different", None)


@settings(deadline=None)
@given(st.lists(st.floats(min_value=0.1, max_value=10), min_size=2, max_size=12))
def test_every_curve_is_equivalent_to_itself(losses):
    assert verdict(losses, losses).loss_difference == 0.0


def still(moves, noise=0.0, steps=STEPS, seed=1):
    """A curve that training moves by that fraction in all, with noise from batch to batch."""
    dice = random.Random(seed)
    return [2.0 * (1 - moves * step / (steps - 1)) + dice.gauss(0, noise) for step in range(steps)]


def test_a_loss_that_training_hardly_moves_cannot_tell_stacks_apart():
    baseline, frozen = still(2e-4), [2.0] * STEPS
    found = verdict(baseline, frozen)
    assert (found.loss_verdict, found.loss_tolerance) == ("inconclusive", 1e-3)
    assert found.loss_movement == pytest.approx(2e-4, rel=1e-3)
    assert found.loss_reason == "the loss moved by 0.02 % in all, and 0.1 % is allowed"


def test_a_loss_that_training_moves_by_more_than_the_tolerance_can_tell():
    baseline = still(2e-3)
    assert verdict(baseline, baseline).loss_verdict == "bitwise equal"
    assert verdict(baseline, [2.0] * STEPS).loss_verdict == "different"


def test_a_difference_beyond_the_tolerance_is_different_however_little_the_loss_moved():
    assert verdict(still(2e-4), [1.01 * loss for loss in still(2e-4)]).loss_verdict == "different"


def test_what_a_plugin_is_excused_for_must_have_moved_by_what_it_was_allowed():
    curve = still(1e-2)
    beyond, within = ([shift * loss for loss in curve] for shift in (1.015, 1.0005))
    assert verdict(curve, beyond, loss_tolerance=2e-2).loss_verdict == "inconclusive"
    assert verdict(curve, within, loss_tolerance=2e-2).loss_verdict == "equivalent"


def test_two_steps_show_no_movement():
    found = verdict([2.0, 1.0], [2.0, 1.0])
    assert (found.loss_verdict, found.loss_detectable_movement) == ("inconclusive", None)
    assert found.loss_reason == "it takes 3 steps or more to see whether the loss moves"


def test_a_movement_within_the_noise_between_batches_says_what_would_be_seen():
    curve = still(0.0, noise=0.1)
    found = verdict(curve, curve)
    assert found.loss_verdict == "inconclusive"
    assert re.fullmatch(
        r"the loss moved by [\d.]+ % in all, within the noise between its batches "
        r"\([\d.]+ % would be seen\), and 0.1 % is allowed",
        found.loss_reason,
    )


@pytest.mark.parametrize("steps", [6, 15, 40])
def test_noise_between_batches_passes_for_movement_in_at_most_5_percent_of_curves(steps):
    curves = [still(0.0, noise=0.1, steps=steps, seed=seed) for seed in range(400)]
    called = sum(verdict(curve, curve).loss_verdict == "bitwise equal" for curve in curves)
    assert called / 400 <= 0.05 + 3 * (0.05 * 0.95 / 400) ** 0.5


def test_the_detectable_movement_is_seen_in_8_of_10_curves():
    first = verdict(*[still(0.0, noise=0.02, steps=20)] * 2)
    detectable = fmean(
        verdict(curve, curve).loss_detectable_movement
        for curve in (still(0.0, noise=0.02, steps=20, seed=seed) for seed in range(100))
    )
    assert first.loss_detectable_movement == pytest.approx(detectable, rel=0.5)
    curves = [still(detectable, noise=0.02, steps=20, seed=seed) for seed in range(400)]
    called = sum(verdict(curve, curve).loss_verdict == "bitwise equal" for curve in curves)
    assert called / 400 == pytest.approx(0.80, abs=0.06)


def test_one_round_that_cannot_tell_leaves_the_stack_without_an_equivalent_loss():
    keys = [("monday", 0), ("monday", 1)]
    curves = {keys[0]: run(FALLING), keys[1]: run(still(2e-4))}
    assert compare_losses(curves, curves).loss_verdict == "inconclusive"
