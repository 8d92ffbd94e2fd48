"""Comparison of a stack's training with the baseline's, by losses and updates.

An update is the change of all trained weights from before the first step to the window's end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import get_args

from accel_bench.analysis.checks.allowance import Allowance, allowance
from accel_bench.analysis.checks.convergence import compare_losses
from accel_bench.analysis.checks.distance import PARTS, Changes, Distance, exact_differences
from accel_bench.analysis.checks.gradients import exact_gradient_reasons
from accel_bench.analysis.checks.outputs import compare_outputs
from accel_bench.analysis.checks.trained import (
    optimizer_by_design,
    token_differences,
    trained_differences,
)
from accel_bench.analysis.checks.training_verdict import (
    NO_TRAINING,
    ONLY_GENERATED,
    TrainingComparison,
)
from accel_bench.analysis.checks.verdict_rules import Pair, explanation, left_out_share, limit_of
from accel_bench.analysis.statistics.verdict import RoundKey, Training
from accel_bench.analysis.wording import count, join_names, percent
from accel_bench.result import Result


def compare_training(
    baseline: Mapping[RoundKey, Result], stack: Mapping[RoundKey, Result]
) -> TrainingComparison:
    """Compare two stacks' losses and updates, or outputs, by round; return the worst comparison."""
    pairs = [
        (baseline[key], stack[key])
        for key in sorted(set(baseline) & set(stack))
        if baseline[key].status.completed and stack[key].status.completed
    ]
    if pairs and pairs[0][0].experiment.scenario.calls_alone:
        return TrainingComparison(loss_reason=NO_TRAINING)
    if pairs and pairs[0][0].experiment.scenario.generates:
        outputs = compare_outputs(pairs)
        return TrainingComparison(loss_reason=ONLY_GENERATED, **dict(outputs))
    comparison = TrainingComparison()
    if pairs:
        allowed = allowance("update", pairs[0])
        comparison = max((_compare_round(pair, allowed) for pair in pairs), key=_severity)
    others = (
        reason
        for pair in pairs
        for differences in (trained_differences, token_differences, exact_gradient_reasons)
        for reason in differences(*pair)
    )
    changes = dict(compare_losses(baseline, stack))
    changes["training_reasons"] = tuple(dict.fromkeys(others))
    designs = (optimizer_by_design(*pair) for pair in pairs)
    changes["optimizer_by_design"] = next(filter(None, designs), "")
    return comparison.model_copy(update=changes)


def _compare_round(pair: Pair, allowed: Allowance) -> TrainingComparison:
    """Compare a round's two updates. If only one run stored its update, `update_reason` says so."""
    baseline, stack = (run.ranks[0].update if run.ranks else None for run in pair)
    if baseline is None or stack is None:
        missing = "" if baseline is stack else "one of the two did not store its update"
        return TrainingComparison(update_reason=missing)
    if baseline.steps != stack.steps:
        steps = f"{stack.steps} steps in the place of {baseline.steps}"
        return TrainingComparison(update_reason=f"the update is that of {steps}")
    changes = Changes(baseline, stack, exact_differences(*pair))
    whole = changes.distance
    if not whole.baseline:
        return TrainingComparison(update_reason="the baseline's weights did not change")
    unmoved = changes.unmoved
    parts = [*_other_sizes(changes, pair)]
    excuse = _explained_size(abs(whole.norm_ratio - 1), allowed.tolerance, pair)
    if not excuse:
        parts += _other_dense_weights(changes, allowed.tolerance, pair)
        excuse = _explained_mixture(changes, pair)
    verdict = _verdict(whole, allowed, [*unmoved, *parts], excuse)
    if verdict == "equivalent" and changes.exact is not None and not whole.apart:
        verdict = "bitwise equal"
    reasons: dict[Training, str] = {
        "bitwise equal": "",
        "equivalent": "",
        "inconclusive": f"{_distance_words(whole, allowed)}; {excuse}",
        "different": "; ".join([*parts, _reason(whole, allowed, unmoved, len(baseline.tensors))]),
        "different by design": _distance_words(whole, allowed),
    }
    excused = verdict == "different by design" and allowed.excuses(whole.relative)
    if not excused:
        reasons["different by design"] += f"; {allowed.by_design}"
    return TrainingComparison(
        update_verdict=verdict,
        update_difference=whole.relative,
        update_norm_ratio=whole.norm_ratio,
        update_cosine=whole.cosine,
        update_exact=changes.exact is not None,
        update_tolerance=allowed.tolerance,
        update_tolerance_by=allowed.plugins,
        update_excused=excused,
        update_reason=reasons[verdict],
    )


def _verdict(whole: Distance, allowed: Allowance, wrong: list[str], excuse: str) -> Training:
    """Return the verdict on the distance `whole` of two updates. Entries in `wrong` (unmoved
    tensors, wrong parts) make it `different`; an `excuse` makes a large distance `inconclusive`."""
    verdict = allowed.verdict(whole.relative)
    if wrong and not allowed.other_training:
        return "different"
    return "inconclusive" if verdict == "different" and excuse else verdict


def _explained_size(difference: float, allowed: float, pair: Pair) -> str:
    """Return a rule's explanation of the relative `difference` of two updates' norms beyond the
    tolerance `allowed`; empty without one."""
    beyond = difference - allowed
    steps = explanation("explained size a step", beyond - left_out_share(pair), pair)
    return steps or explanation("explained size", difference if beyond > 0 else 0.0, pair)


def _explained_mixture(changes: Changes, pair: Pair) -> str:
    words = explanation("explained mixture", changes.distance.relative, pair)
    return "" if words and _size_gap(changes, limit_of("size of a mixture", pair), pair) else words


def _other_sizes(changes: Changes, pair: Pair) -> Iterator[str]:
    """Yield a text for each group of tensors in PARTS whose update's norm differs between the runs.
    Groups that hardly changed are left out."""
    for part in PARTS:
        changed, limit = changes.part(part), limit_of(f"size of {part}", pair)
        if changed.is_negligible(changes):
            continue
        if off := _size_gap(changed, limit + left_out_share(pair), pair):
            yield f"its {part} changed {off}"


def _other_dense_weights(changes: Changes, tolerance: float, pair: Pair) -> Iterator[str]:
    """Yield a text if the changes of weights outside of experts and routers differ by too much."""
    rest, limit = changes.part(None), limit_of("rest of a mixture", pair)
    if rest.is_negligible(changes):
        return
    apart, allowed = rest.distance.relative, max(limit, tolerance)
    if apart > allowed:
        words = f"{percent(apart)} apart, {percent(allowed)} allowed"
        yield f"what is neither expert nor router is {words}"


def _size_gap(changes: Changes, limit: float, pair: Pair) -> str:
    """Return the ratio of the two changes' norms in words; empty if it is within `limit`."""
    errors = limit_of("standard errors", pair)
    allowed = limit + errors * changes.norm_ratio_error
    ratio = changes.distance.norm_ratio
    if abs(ratio - 1) <= allowed:
        return ""
    return f"{ratio:.3g} times as much as the baseline's, {percent(allowed)} more or less allowed"


def _reason(whole: Distance, allowed: Allowance, unmoved: list[str], tensors: int) -> str:
    """Return a text on the distance `whole` of two updates, and on the tensors that did not move
    (their names in `unmoved`, of `tensors` in all)."""
    if len(unmoved) == tensors:
        return "its weights did not move"
    if not unmoved:
        return _distance_words(whole, allowed)
    still = f"{len(unmoved)} of {count(tensors, 'tensor')} did not move ({join_names(unmoved)})"
    return f"{still}; {_distance_words(whole, allowed)}"


def _distance_words(whole: Distance, allowed: Allowance) -> str:
    """Return the distance, ratio of sizes and cosine of two updates in words."""
    cosine = "" if whole.cosine is None else f", at a cosine of {whole.cosine:.3g}"
    return (
        f"its update is {percent(whole.relative)} apart from the baseline's, {allowed.words} "
        f"({whole.norm_ratio:.3g} times its size{cosine})"
    )


def _severity(one: TrainingComparison) -> tuple[int, float]:
    return get_args(Training).index(one.update_verdict), one.update_difference or 0.0
