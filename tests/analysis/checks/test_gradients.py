"""First gradients beside the baseline's: a tensor without one, and norms that are of another."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from analysis_factory import limit, make_experiment, make_rank, make_result

from accel_bench import Result, Status
from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.analysis.checks import gradients
from accel_bench.analysis.checks.gradients import gradient_reasons
from accel_bench.analysis.checks.verdict_rules import gradient_norms, limit_of
from accel_bench.analysis.summary import summarize
from accel_bench.effective import EffectiveConfiguration, GradientFlow, OptimizerProgress
from accel_bench.scenario.uses import Use

CASES = ("float32", "rounding", "approximations", "other work")
EXACT_FACTOR, FACTOR, APPROXIMATE_FACTOR, OTHER_WORK_FACTOR = (
    limit("gradient norms", case) for case in CASES
)
EXPERT_FACTOR = limit("norms of an expert", "rounding")
different_norms = partial(gradients.different_norms, factor=FACTOR, of_expert=EXPERT_FACTOR)

BASELINE = {"a": 1.0, "b": 0.5, "tiny": 1e-9, "zero": 0.0}


def with_norms(norms: dict[str, Any], stack: str = "lora", round_number: int = 0) -> Result:
    """A completed run with these gradient norms."""
    flow = GradientFlow(trained_tensors=4, tensors_with_gradient=4, gradient_norms=norms)
    rank = make_rank().model_copy(update={"effective": EffectiveConfiguration(gradient_flow=flow)})
    return make_result(make_experiment(stack), round=round_number, ranks=(rank,))


def test_norms_that_are_alike_are_no_reason() -> None:
    alike = {"a": 1.0 * FACTOR * 0.99, "b": 0.5 / FACTOR * 1.01, "tiny": 1e-7, "zero": 0.0}
    assert different_norms(BASELINE, alike) == {}


@pytest.mark.parametrize("norm", [0.0, None, 1e-5, 0.5 / FACTOR / 1.01, 0.5 * FACTOR * 1.01])
def test_a_tensor_without_gradient_or_with_another_one_is_found(norm: float | None) -> None:
    (found,) = different_norms(BASELINE, {**BASELINE, "b": norm})
    assert found == "b"


def test_a_gradient_that_only_the_stack_has_is_found() -> None:
    assert different_norms(BASELINE, {**BASELINE, "zero": 0.3}) == {"zero": (0.3, 0.0)}


def test_tensors_of_one_side_alone_are_not_compared() -> None:
    assert different_norms({"a": 1.0, "mine": 1.0}, {"a": 1.0, "yours": 0.0}) == {}


def test_an_expert_may_get_other_tokens_where_something_is_rounded() -> None:
    one, other = {"b": 1.0, "m.experts.3.up": 1.0}, {"b": 1.0, "m.experts.3.up": 3.0}
    assert different_norms(one, other) == {}
    assert len(different_norms(one, other, of_expert=EXACT_FACTOR)) == 1


def exact(
    stack: str = "lora",
    tolerances: dict[str, float] | None = None,
    norms: dict[str, Any] = BASELINE,
    weights: int = 4,
    *,
    dropout: dict[str, int] | None = None,
    random_operations: str = "",
    **scenario: Any,
) -> Result:
    """A run of this version, which has stored its dropout."""
    uses = [Use(use=name) for name in tolerances or ()]
    run = with_norms(norms)
    effective = run.ranks[0].effective.model_copy(
        update={
            "dropout": dropout or {},
            "random_operations": random_operations,
            "optimizer_progress": OptimizerProgress(steps=3),
            "trained_dtypes": {"float32": weights},
        }
    )
    rank = run.ranks[0].model_copy(update={"effective": effective})
    experiment = make_experiment(stack, uses, scenario=scenario)
    return make_result(experiment, ranks=(rank,), loss_tolerances=tolerances)


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({}, EXACT_FACTOR),
        ({"train": {"gradient_checkpointing": True}}, EXACT_FACTOR),
        ({"train": {"learning_rate": 2e-4}}, OTHER_WORK_FACTOR),
        ({"train": {"precision": "bf16-autocast"}}, FACTOR),
        ({"model": {"dtype": "bfloat16"}}, FACTOR),
        ({"dropout": {"0.1": 2}}, FACTOR),
        ({"random_operations": "noise"}, FACTOR),
        ({"tolerances": {"compiled": 1e-3}}, FACTOR),
        ({"tolerances": {"nf4": 2e-2}}, APPROXIMATE_FACTOR),
        ({"train": {"micro_batch_size": 2}}, OTHER_WORK_FACTOR),
        ({"adapter": {"use": "lora", "options": {"r": 4}}}, OTHER_WORK_FACTOR),
    ],
)
def test_the_factor_follows_what_differs(changes: dict[str, Any], factor: float) -> None:
    pair = exact(), exact(**changes)
    assert limit_of("gradient norms", pair) == factor
    expert = EXACT_FACTOR if factor == EXACT_FACTOR else EXPERT_FACTOR
    assert limit_of("norms of an expert", pair) == expert


def test_a_row_of_an_earlier_version_is_not_taken_for_exact() -> None:
    assert limit_of("gradient norms", (with_norms(BASELINE), exact())) == FACTOR


@pytest.mark.parametrize("tolerances", [{}, {"compiled": 1e-3}], ids=["exact", "rounded"])
def test_a_forgotten_scale_of_the_adapter_is_a_reason(tolerances: dict[str, float]) -> None:
    key = ("s", 0)
    halved = exact(norms={**BASELINE, "b": 0.25}, tolerances=tolerances)
    (reason,) = gradient_reasons({key: exact()}, {key: halved})
    assert reason.endswith("in 1 of 4 tensors: b 0.25 against 0.5")


def test_tensors_of_one_side_alone_are_named() -> None:
    key = ("s", 0)
    mine = {"a": 1.0, "tiny": 1e-9, "mine": 1.0}
    reasons = gradient_reasons({key: exact()}, {key: exact(norms=mine, weights=3)})
    assert reasons == (
        "only the baseline trains 2 of the tensors: b and zero",
        "only the stack trains 1 of the tensors: mine",
    )
    same_weights = exact(norms=mine)
    assert gradient_reasons({key: exact()}, {key: same_weights}) == ()
    adapter = exact(norms=mine, weights=3, adapter={"use": "lora"})
    assert gradient_reasons({key: exact()}, {key: adapter}) == ()


def test_only_runs_of_the_same_round_are_compared() -> None:
    base = {("s", 0): with_norms(BASELINE)}
    assert gradient_reasons(base, {("s", 1): with_norms({**BASELINE, "a": 0.0})}) == ()


def test_a_run_without_norms_says_nothing() -> None:
    bare = make_result(make_experiment())
    assert gradient_norms(bare) == {}
    assert gradient_reasons({("s", 0): bare}, {("s", 0): with_norms(BASELINE)}) == ()


def test_the_sentence_names_tensors_and_both_norms() -> None:
    cut = {**BASELINE, "a": 0.0}
    key = ("s", 0)
    assert gradient_reasons({key: with_norms(BASELINE)}, {key: with_norms(cut)}) == (
        "gradient norms of the first step are not the baseline's in 1 of 4 tensors: a 0 against 1",
    )


def test_such_a_row_is_degraded_with_that_reason() -> None:
    stacks = {"lora": BASELINE, "cut": {**BASELINE, "a": 0.0}}
    planned = [PlannedSummary(experiment=make_experiment(stack)) for stack in stacks]
    results = [with_norms(norms, stack) for stack, norms in stacks.items()]
    base, cut = summarize("s", "lora", planned, results, 1).experiments
    assert (base.status, base.reasons) == (Status.OK, ())
    assert cut.status is Status.DEGRADED
    assert cut.reasons[0].startswith("gradient norms of the first step are not the baseline's")
