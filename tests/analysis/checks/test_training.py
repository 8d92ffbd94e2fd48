"""The verdict on the update, with changes of weights whose distance is known."""

from __future__ import annotations

import json
import math
import random

import pytest
from analysis_factory import (
    make_experiment,
    make_rank,
    make_result,
    make_rounds,
    make_summary,
)
from analysis_factory import scaled as times

from accel_bench.analysis.checks.audit import audit
from accel_bench.analysis.checks.distance import Changes
from accel_bench.analysis.checks.training import compare_training
from accel_bench.analysis.checks.training_verdict import of_same_training, training_obstacle
from accel_bench.analysis.conclusion import conclusion
from accel_bench.analysis.statistics.verdict import Comparison
from accel_bench.analysis.summary import judge_row
from accel_bench.effective import EffectiveConfiguration, GradientFlow, OptimizerProgress
from accel_bench.report.formats import render
from accel_bench.report.render_terminal import render_terminal
from accel_bench.report.views.run_table import stacks_report
from accel_bench.report.views.training import verdict_column
from accel_bench.result import SKETCH_BUCKETS, TensorUpdate, WeightUpdate
from accel_bench.scenario.uses import Use

NAMES = ("embed", "layers.0", "layers.1", "norm")
ELEMENTS = {"embed": 10_000, "layers.0": 10_000, "layers.1": 10_000, "norm": 1}


def sketch(size, turned=0.0):
    """Return a change of that L2 norm, `turned` by an angle from the others."""
    return (size * math.cos(turned), size * math.sin(turned), *(0.0,) * (SKETCH_BUCKETS - 2))


def make_update(sizes=(), turned=0.0, steps=3, names=NAMES):
    """Return an update in which tensors moved by 1 a weight, or by `sizes` times that."""
    factors = dict.fromkeys(names, 1.0) | dict(sizes)
    return WeightUpdate(
        steps=steps,
        trained_tensors=len(names),
        trained_elements=sum(ELEMENTS[name] for name in names),
        tensors={
            name: TensorUpdate(
                elements=ELEMENTS[name],
                sketch=sketch(math.sqrt(ELEMENTS[name]) * factors[name], turned),
            )
            for name in names
        },
        weights=sketch(1.0),
        seconds=0.01,
    )


def run(update, **changes):
    rank = make_rank().model_copy(update={"update": update})
    return make_result(ranks=[rank], **changes)


def verdict(stack, baseline=None, **changes):
    before = run(baseline or make_update(), **{k: v for k, v in changes.items() if "ex" not in k})
    return compare_training({("monday", 0): before}, {("monday", 0): run(stack, **changes)})


def test_equal_updates_are_equivalent_with_distance_0():
    found = verdict(make_update())
    assert (found.update_verdict, found.update_reason) == ("equivalent", "")
    assert (found.update_difference, found.update_norm_ratio, found.update_cosine) == (0, 1, 1)
    assert not found.training_difference


@pytest.mark.parametrize(
    ("update", "difference", "ratio", "cosine"),
    [
        (make_update(turned=math.pi / 3), 1.0, 1.0, 0.5),
        (make_update(dict.fromkeys(NAMES, 0.1)), 0.9, 0.1, 1.0),
        (make_update(dict.fromkeys(NAMES, 2.0)), 1.0, 2.0, 1.0),
    ],
)
def test_distance_ratio_and_cosine_are_those_of_the_changes(update, difference, ratio, cosine):
    found = verdict(update)
    assert found.update_verdict == "different"
    assert found.update_difference == pytest.approx(difference)
    assert found.update_norm_ratio == pytest.approx(ratio)
    assert found.update_cosine == pytest.approx(cosine)
    assert found.update_reason in found.training_difference


def test_tensors_that_did_not_move_are_counted_and_named_however_small():
    found = verdict(make_update({"norm": 0.0}))
    # One of thirty thousand weights: the distance alone would be small enough.
    assert found.update_difference < found.update_tolerance
    assert found.update_verdict == "different"
    assert found.update_reason.startswith("1 of 4 tensors did not move (norm); its update is")


def test_a_tensor_that_only_one_side_trains_counts_as_unmoved_or_as_distance():
    lacking = verdict(make_update(names=NAMES[:2]))
    assert lacking.update_reason.startswith("2 of 4 tensors did not move (layers.1 and norm)")
    more = verdict(make_update(), baseline=make_update(names=NAMES[:1]))
    assert more.update_difference == pytest.approx(math.sqrt(2.0001))


def test_no_weight_moved():
    still = make_update(dict.fromkeys(NAMES, 0.0))
    found = verdict(still)
    assert (found.update_reason, found.update_cosine) == ("its weights did not move", None)
    assert verdict(make_update(), baseline=still).update_reason == (
        "the baseline's weights did not change"
    )


@pytest.mark.parametrize("missing", ["steps", "baseline"])
def test_faster_does_not_survive_an_update_that_was_not_compared(missing: str):
    still = make_update(dict.fromkeys(NAMES, 0.0))
    found = verdict(make_update(steps=5)) if missing == "steps" else verdict(still, baseline=still)
    assert found.untested
    speed = of_same_training(Comparison(verdict="better"), found)
    assert (speed.verdict, speed.training) == ("not tested", "not tested")
    assert speed.verdict_reason == found.update_reason


def test_what_is_rounding_in_the_baseline_need_not_move():
    before = make_update({"norm": 1e-4})
    assert Changes(before, make_update({"norm": 0.0})).unmoved == []
    assert Changes(make_update(), make_update({"norm": 0.0})).unmoved == ["norm"]


def test_updates_after_different_numbers_of_steps_are_not_compared():
    found = verdict(make_update(steps=5))
    assert found.update_verdict == "not tested"
    assert found.update_reason == "the update is that of 5 steps in the place of 3"
    assert found.update_tolerance is None


def test_a_run_without_an_update_is_not_compared_and_two_need_no_word():
    assert verdict(None).update_reason == "one of the two did not store its update"
    neither = compare_training({("monday", 0): run(None)}, {("monday", 0): run(None)})
    assert (neither.update_verdict, neither.update_reason) == ("not tested", "")


def test_the_worst_round_counts():
    bad = make_update(turned=1.0)
    baseline = {("monday", n): run(make_update(), round=n) for n in range(3)}
    stack = {("monday", n): run(bad if n == 1 else make_update(), round=n) for n in range(3)}
    assert compare_training(baseline, stack).update_verdict == "different"


@pytest.mark.parametrize(
    ("turned", "declared", "word"),
    [
        (0.15, {}, "different"),
        (0.005, {"nf4": 0.2}, "equivalent"),
        (0.15, {"nf4": 0.2}, "different by design"),
        (0.25, {"nf4": 0.2}, "different"),
        (0.6, {"nf4": 0.9}, "different by design"),
        (0.29, {"nf4": 0.9}, "different by design"),
    ],
)
def test_a_plugin_may_declare_a_tolerance_up_to_a_limit(turned, declared, word):
    experiment = make_experiment("nf4", [Use(use="nf4")])
    before = run(make_update(), update_tolerances=declared)
    after = run(make_update(turned=turned), experiment=experiment, update_tolerances=declared)
    found = compare_training({("monday", 0): before}, {("monday", 0): after})
    assert found.update_verdict == word
    assert found.update_tolerance_by == tuple(declared)
    assert found.declared_by == (("nf4",) if word == "different by design" else ())
    assert found.update_excused == (word == "different by design" and turned < 0.3)
    assert bool(training_obstacle(found)) == (word.startswith("diff") and not found.update_excused)


@pytest.mark.parametrize(
    ("dtype", "experts", "turned", "word"),
    [
        ("float32", None, 0.15, "different"),
        ("bfloat16", None, 0.15, "equivalent"),
        ("float32", "eager", 0.15, "different"),
        ("bfloat16", None, 0.25, "different"),
        ("bfloat16", "eager", 0.25, "different"),
    ],
)
def test_16_bits_round_more_and_experts_are_no_excuse_for_the_rest(dtype, experts, turned, word):
    stored = EffectiveConfiguration(trained_dtypes={dtype: 30_100}, experts=experts)
    before, after = (
        one.model_copy(update={"ranks": (one.ranks[0].model_copy(update={"effective": stored}),)})
        for one in (run(make_update()), run(make_update(turned=turned)))
    )
    assert compare_training({("a", 0): before}, {("a", 0): after}).update_verdict == word


def mixture(
    dtype, part, size=1.0, turned=0.0, scale=1.0, *, read=None, experiment=None, declared=None
):
    """Return a run of a mixture, nearly all of whose weights belong to one part."""
    whole = make_update()
    large = 1e5 * size * scale
    angle = 2 * math.asin(turned / 2)
    moved = {f"layers.0.{part}.weight": TensorUpdate(elements=10**10, sketch=sketch(large, angle))}
    tensors = {
        name: one.model_copy(update={"norm": math.hypot(*one.sketch)})
        for name, one in (whole.tensors | moved).items()
    }
    changes = {"update_tolerances": declared or {}}
    result = run(whole.model_copy(update={"tensors": tensors}), experiment=experiment, **changes)
    facts = {"trained_dtypes": {dtype: 30_100}, "experts": "grouped_mm", **(read or {})}
    rank = result.ranks[0].model_copy(update={"effective": EffectiveConfiguration(**facts)})
    return result.model_copy(update={"ranks": (rank,), "run_id": f"{size} {turned}"})


@pytest.mark.parametrize(
    ("dtype", "change", "word", "reason"),
    [
        ("bfloat16", ("experts", 1.0, 0.15), "equivalent", ""),
        ("bfloat16", ("experts", 1.0, 0.3), "inconclusive", "rounded scores"),
        ("bfloat16", ("experts", 1.0, 0.5), "different", "50 % apart"),
        ("float32", ("experts", 1.0, 0.3), "different", "30 % apart"),
        ("bfloat16", ("experts", 0.95, 0.1), "different", "its experts changed 0.95 times"),
        ("bfloat16", ("experts", 1.02, 0.3), "inconclusive", "rounded scores"),
        ("bfloat16", ("router", 0.9, 0.3), "inconclusive", "rounded scores"),
        ("bfloat16", ("router", 0.8, 0.1), "different", "its routers changed 0.8 times"),
    ],
)
def test_rounding_turns_a_mixture_s_update_and_keeps_the_size_of_its_parts(
    dtype, change, word, reason
):
    found = beside(mixture(dtype, change[0]), mixture(dtype, *change))
    assert (found.update_verdict, reason in found.update_reason) == (word, True)


@pytest.mark.parametrize(
    ("size", "turned", "word", "reason"),
    [
        (1.0, 0.15, "equivalent", ""),
        (1.0, 0.3, "inconclusive", "rounded scores"),
        (0.65, 0.0, "different", "its experts changed 0.65 times"),
        (0.65, 0.1, "different", "its experts changed 0.65 times"),
        (1.0, 0.5, "different", "50 % apart"),
    ],
)
def test_sizes_of_experts_are_compared_by_sketches_where_nothing_is_exact(
    size, turned, word, reason
):
    before, after = mixture("bfloat16", "experts"), mixture("bfloat16", "experts", size, turned)
    found = compare_training({("a", 0): before}, {("a", 0): after})
    assert not found.update_exact
    assert (found.update_verdict, reason in found.update_reason) == (word, True)


def test_rounded_scores_are_no_excuse_where_sketches_show_a_whole_of_another_size():
    before, after = mixture("bfloat16", "router"), mixture("bfloat16", "router", 0.86, 0.16)
    found = compare_training({("a", 0): before}, {("a", 0): after})
    assert (found.update_verdict, found.update_exact) == ("different", False)
    assert found.update_reason.startswith("its update is 20.")
    assert beside(before, after).update_verdict == "inconclusive"


@pytest.mark.parametrize(("taken", "alike"), [(10, False), (8, True)])
def test_steps_that_a_scaler_left_out_make_experts_change_less(taken, alike):
    experiment = make_experiment("fast", scenario={"train": {"precision": "fp16-autocast"}})

    def stepped(size, steps):
        read = {"optimizer_progress": OptimizerProgress(steps=10, counted_steps=steps)}
        return mixture("float32", "experts", size, read=read, experiment=experiment)

    found = beside(stepped(1.0, 10), stepped(0.85, taken))
    assert ("its experts changed 0.85 times" not in found.update_reason) == alike
    assert (found.update_verdict == "different") == (not alike)


@pytest.mark.parametrize(("size", "found"), [(1.0, False), (0.95, False), (0.75, True)])
def test_sketches_tell_a_size_beyond_three_standard_errors(size, found):
    numbers = random.Random(0)
    before = [numbers.gauss(0, 1) for _ in range(SKETCH_BUCKETS * 4)]
    after = [size * (0.95 * one + 0.3 * numbers.gauss(0, 1)) for one in before]
    baseline, stack = (
        WeightUpdate(
            steps=3,
            trained_tensors=4,
            trained_elements=400,
            tensors={
                str(at): TensorUpdate(elements=100, sketch=tuple(values[at::4])) for at in range(4)
            },
            weights=(),
            seconds=0.0,
        )
        for values in (before, after)
    )
    error = Changes(baseline, stack).norm_ratio_error
    assert 0.015 < error < 0.05
    assert Changes(baseline, stack, {}).norm_ratio_error == 0
    ratio = Changes(baseline, stack).distance.norm_ratio
    assert (abs(ratio - 1) > 0.03 + 3 * error) == found


@pytest.mark.parametrize(
    ("size", "turned", "word", "reason"),
    [
        (0.85, 0.0, "different", "its experts changed 0.85 times"),
        (0.85, 0.5, "different", "its experts changed 0.85 times"),
        (0.9, 0.1, "equivalent", ""),
        (0.9, 0.5, "inconclusive", "dropout drawn in another order"),
    ],
)
def test_dropout_turns_experts_and_keeps_their_size(size, turned, word, reason):
    read = {"read": {"dropout": {"0.1": 2}}}
    found = beside(
        mixture("bfloat16", "experts", **read), mixture("bfloat16", "experts", size, turned, **read)
    )
    assert (found.update_verdict, reason in found.update_reason) == (word, True)


@pytest.mark.parametrize(
    ("declared", "size", "turned", "word", "reason"),
    [
        (0.3, 1.0, 0.25, "different by design", "30 % allowed by float8"),
        (0.3, 0.85, 0.1, "different", "its experts changed 0.85 times"),
        (0.7, 0.85, 0.5, "different by design", "70 % allowed by float8"),
    ],
)
def test_sizes_of_experts_are_compared_beside_what_a_plugin_declares(
    declared, size, turned, word, reason
):
    experiment = make_experiment("float8", [Use(use="float8")])
    after = mixture(
        "bfloat16", "experts", size, turned, experiment=experiment, declared={"float8": declared}
    )
    found = beside(mixture("bfloat16", "experts"), after)
    assert found.update_tolerance_by == ("float8",)
    assert (found.update_verdict, reason in found.update_reason) == (word, True)


def test_experts_that_hardly_changed_are_not_compared():
    scale = {"scale": 1e-4}
    found = beside(
        mixture("bfloat16", "experts", **scale), mixture("bfloat16", "experts", 0.5, **scale)
    )
    assert found.update_verdict == "equivalent"


def beside(before, after):
    """Compare two runs whose changes were compared number by number."""
    one, other = (run.ranks[0].update.tensors for run in (before, after))
    apart = {name: math.dist(one[name].sketch, other[name].sketch) for name in one}
    after = after.model_copy(update={"update_distances": {before.run_id: apart}})
    found = compare_training({("a", 0): before}, {("a", 0): after})
    assert found.update_exact
    return found


@pytest.mark.parametrize(
    ("update", "dropout", "word"),
    [
        (make_update(turned=0.5), {"0.05": 8}, "inconclusive"),
        (make_update(turned=0.5), {}, "different"),
        (make_update(turned=0.005), {"0.05": 8}, "equivalent"),
        (make_update(dict.fromkeys(NAMES, 0.95)), {"0.05": 8}, "inconclusive"),
        (make_update(dict.fromkeys(NAMES, 0.7)), {"0.05": 8}, "different"),
        (make_update({"norm": 0.0}), {"0.05": 8}, "different"),
    ],
)
def test_dropout_in_another_order_turns_an_update_and_keeps_its_size(update, dropout, word):
    read = EffectiveConfiguration(dropout=dropout)
    before, after = (
        one.model_copy(update={"ranks": (one.ranks[0].model_copy(update={"effective": read}),)})
        for one in (run(make_update()), run(update))
    )
    found = compare_training({("a", 0): before}, {("a", 0): after})
    assert found.update_verdict == word
    assert bool(found.training_difference) == (word == "different")
    assert ("dropout drawn in another order" in found.update_reason) == (word == "inconclusive")
    assert ("without it (model.overrides)" in found.update_reason) == (word == "inconclusive")


def test_the_way_to_a_verdict_under_an_adapter_s_dropout_is_named():
    adapter = {"adapter": {"use": "lora", "dropout": 0.1}}
    experiment = make_experiment("fast", scenario=adapter)
    read = EffectiveConfiguration(dropout={"0.1": 4})
    runs = [run(make_update(turned=angle), experiment=experiment) for angle in (0, 0.5)]
    before, after = (
        one.model_copy(update={"ranks": (one.ranks[0].model_copy(update={"effective": read}),)})
        for one in runs
    )
    found = compare_training({("a", 0): before}, {("a", 0): after})
    assert found.update_verdict == "inconclusive"
    assert "without it (--set adapter.dropout=0) it can be told" in found.update_reason


@pytest.mark.parametrize(
    ("precision", "taken", "sizes", "word"),
    [
        ("fp16-autocast", 8, 0.8, "inconclusive"),
        ("fp16-autocast", 8, 0.5, "different"),
        ("fp16-autocast", 10, 0.75, "different"),
        ("bf16-autocast", 8, 0.75, "different"),
        ("fp16-autocast", 8, 0.9, "equivalent"),
    ],
)
def test_scalers_that_left_out_other_steps_explain_a_smaller_update(precision, taken, sizes, word):
    def stepped(update, steps):
        experiment = make_experiment("fast", scenario={"train": {"precision": precision}})
        result = run(update, experiment=experiment)
        progress = OptimizerProgress(steps=10, counted_steps=steps)
        read = EffectiveConfiguration(optimizer_progress=progress)
        rank = result.ranks[0].model_copy(update={"effective": read})
        return result.model_copy(update={"ranks": (rank,)})

    before = stepped(make_update(), 10)
    after = stepped(make_update(dict.fromkeys(NAMES, sizes), turned=0.05), taken)
    found = compare_training({("a", 0): before}, {("a", 0): after})
    assert found.update_verdict == word, found.update_reason
    assert ("gradient scalers" in found.update_reason) == (word == "inconclusive")


def test_a_stack_whose_update_is_missing_is_not_faster():
    rows = make_summary([BASE, FAST], results(None)).experiments
    assert (rows[1].verdict, rows[1].verdict_reason) == (
        "not tested",
        "one of the two did not store its update",
    )
    outcome, reason = judge_row(rows[1], "lora", 0.01)
    assert (outcome, "did not store its update" in reason) == ("inconclusive", True)


def test_an_expert_that_got_no_tokens_need_not_move():
    def update(moved):
        expert = {"mlp.experts.3.up": TensorUpdate(elements=100, sketch=sketch(1.0 * moved))}
        whole = make_update()
        return whole.model_copy(update={"tensors": whole.tensors | expert})

    assert verdict(update(moved=0), baseline=update(moved=1)).update_verdict == "equivalent"


def test_other_training_is_never_equivalent():
    experiment = make_experiment("slow", scenario={"train": {"learning_rate": 1e-5}})
    found = verdict(make_update({"norm": 0.0}), experiment=experiment)
    assert found.update_verdict == "different by design" and found.differs_by_design
    assert "train.learning_rate is 1e-05" in found.update_reason


@pytest.mark.parametrize(
    ("drift", "before", "broken"),
    [(0.0, 1.0, False), (1e-6, 1.0, False), (0.5, 1.0, True), (0.5, 2.0, False)],
)
def test_ranks_that_began_with_the_same_weights_must_end_with_the_same(drift, before, broken):
    first = make_update().model_copy(update={"weights_before": sketch(1.0)})
    changes = {"weights": sketch(1.0 + drift * first.norm), "weights_before": sketch(before)}
    second = first.model_copy(update=changes | {"tensors": {}})
    experiment = make_experiment(scenario={"resources": {"devices": 2}})
    ranks = [
        make_rank(rank).model_copy(update={"update": update})
        for rank, update in enumerate((first, second))
    ]
    found = [
        one for one in audit(make_result(experiment, ranks=ranks)) if one.invariant == "replicas"
    ]
    assert bool(found) == broken


@pytest.mark.parametrize(("factor", "alike"), [(1.001, True), (2.0, False)])
def test_a_constant_factor_of_exact_gradients_is_another_training(factor, alike):
    def exact(norm):
        effective = EffectiveConfiguration(
            gradient_flow=GradientFlow(
                trained_tensors=1, tensors_with_gradient=1, gradient_norms={"embed": norm}
            ),
            optimizer_progress=OptimizerProgress(steps=3),
            trained_dtypes={"float32": 30_100},
        )
        one = run(make_update())
        return one.model_copy(
            update={"ranks": (one.ranks[0].model_copy(update={"effective": effective}),)}
        )

    found = compare_training({("a", 0): exact(1.0)}, {("a", 0): exact(factor)})
    assert found.update_verdict == "equivalent"
    assert (not found.training_difference) == alike
    assert alike or "gradient norms of the first step" in found.training_difference


def rounds(experiment, seconds, update, **changes):
    return [
        one.model_copy(update={"ranks": (one.ranks[0].model_copy(update={"update": update}),)})
        for one in make_rounds(experiment, seconds, **changes)
    ]


BASE, FAST = make_experiment("lora"), make_experiment("fast")


def results(update):
    return [*rounds(BASE, times(1.0), make_update()), *rounds(FAST, times(0.5), update)]


def test_faster_needs_an_equivalent_update():
    same, other = (
        make_summary([BASE, FAST], results(update)).experiments[1]
        for update in (make_update(), make_update({"norm": 0.0}))
    )
    assert (same.verdict_word, other.verdict_word) == ("faster", "different training")
    assert (same.verdict, same.training, same.wins) == ("better", "equivalent", True)
    assert (other.verdict, other.training, other.wins) == ("better", "different", False)
    assert other.loss_verdict != "different"
    assert other.verdict_reason.startswith("1 of 4 tensors did not move (norm)")


def test_what_only_a_declaration_allows_is_never_called_equivalent():
    half = make_experiment("half", [Use(use="half-backward")])
    declared = {"update_tolerances": {"half-backward": 0.3}}
    stack = rounds(half, times(0.5), make_update(turned=0.25), **declared)
    summary = make_summary([BASE, half], [*rounds(BASE, times(1.0), make_update()), *stack])
    row, word = summary.experiments[1], "within what half-backward declares"
    assert (row.verdict_word, row.update_verdict, row.update_excused) == (
        *("faster", "different by design"),
        True,
    )
    text = conclusion(summary)
    assert (
        "with a bitwise equal loss, its update is within what half-backward declares (its" in text
    )
    table = " ".join(render_terminal(stacks_report([summary]).sections, 80).split())
    assert "equivalent" not in table
    document = json.loads(render([summary], "json"))
    assert document["experiments"][1]["update_verdict"] == "different by design"
    assert verdict_column("update").cell(row) == (
        "within what",
        "half-backward declares",
        "~25 %,",
        "limit 30 %",
    )
    assert row.verdicts["update"][0] == word
    assert judge_row(row, "lora", 0.01)[0] == "passed"


def test_the_answer_says_first_that_the_training_is_different():
    text = conclusion(make_summary([BASE, FAST], results(make_update({"norm": 0.0}))))
    assert text.startswith("the training of fast is different (1 of 4 tensors did not move (norm)")
    assert "so that being 2.000 times as fast as lora" in text
    assert "is not for the same training" in text


def test_another_training_does_not_pass():
    outcomes = [
        judge_row(make_summary([BASE, FAST], results(update)).experiments[1], "lora", 0.01)
        for update in (make_update(), make_update({"norm": 0.0}))
    ]
    assert [outcome for outcome, _ in outcomes] == ["passed", "regression"]
    assert "1 of 4 tensors did not move (norm)" in outcomes[1][1]


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ({}, "different"),
        ({"matmul_precision": "high"}, "equivalent"),
        ({"precision": "bf16-autocast"}, "equivalent"),
    ],
)
def test_only_coarse_arithmetic_allows_more_than_one_percent(setting, word):
    experiment = make_experiment("fast", scenario={"train": setting})
    found = verdict(make_update(turned=0.05), experiment=experiment)
    assert found.update_verdict == word
