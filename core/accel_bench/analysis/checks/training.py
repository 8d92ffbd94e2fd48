"""Did a stack train the same? The change of its weights compared with the baseline's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from accel_bench.analysis.checks.allowance import (
    SAME_TRAINING,
    Allowance,
    Limits,
    allowance,
    excuse_of_draws,
)
from accel_bench.analysis.checks.convergence import TrainingWord, compare_losses
from accel_bench.analysis.checks.distance import Changes, Distance, exact_differences
from accel_bench.analysis.checks.gradients import exact_gradient_reasons
from accel_bench.analysis.checks.mixtures import (
    is_mixture,
    rest_differences,
    rounded_scores_excuse,
    size_differences,
)
from accel_bench.analysis.checks.outputs import compare_outputs
from accel_bench.analysis.checks.trained import optimizer_by_design, trained_differences
from accel_bench.analysis.checks.training_verdict import (
    NO_TRAINING,
    ONLY_GENERATED,
    TrainingComparison,
)
from accel_bench.analysis.statistics.verdict import PRACTICAL_FLOOR, RoundKey
from accel_bench.analysis.wording import count, join_names, percent
from accel_bench.result import Result

NOT_STORED = "one of the two did not store its update"
"""Why nothing is compared where one run has an update and the other has none."""

TOLERANCE = 0.01
"""Relative distance allowed where no plugin declares one; docs/verdicts.md has the evidence for it
and for all other limits."""

COARSE_TOLERANCE = 0.1
"""The same where `train.matmul_precision` lets either round float32 products to tf32 or bfloat16.
"""

MAXIMUM_TOLERANCE = 0.3
"""Largest distance that a declared tolerance excuses."""

HALF_TOLERANCE = 0.2
"""The same where either computes in 16 bits or stores trained weights so: changes are rounded.
Rounding goes farther in a mixture of experts (`ROUTED_TOLERANCE`)."""

DRAWN_SIZE = 0.1
"""Relative difference of the sizes of two updates that other random draws may make."""

HALF = frozenset({"bfloat16", "float16"})

TOKEN_TOLERANCE = PRACTICAL_FLOOR
"""Relative difference of counts that is allowed: alone it is not worth a verdict on the speed."""

TOKEN_KINDS = {"real_tokens": "real", "supervised_tokens": "supervised"}
"""Counts of a sample that must be the baseline's, with their names."""


def _usual(baseline: Result, stack: Result) -> float:
    """Return the tolerance of the coarsest arithmetic of two runs."""
    trains = (run.experiment.scenario.train for run in (baseline, stack))
    coarse = any(train.matmul_precision != "highest" for train in trains)
    usual = COARSE_TOLERANCE if coarse else TOLERANCE
    return HALF_TOLERANCE if _rounds(baseline, stack) else usual


def _rounds(*runs: Result) -> bool:
    """Return whether any of the runs computes in 16 bits, or stores trained weights so."""
    ranks = [rank for run in runs for rank in run.ranks[:1]]
    stored = any(HALF & set(rank.effective.trained_dtypes) for rank in ranks)
    return stored or any(run.experiment.scenario.compute_dtype in HALF for run in runs)


LIMITS = Limits(lambda run: run.update_tolerances, _usual, MAXIMUM_TOLERANCE, trusts_distance=True)
"""What is allowed for the distance of two updates."""


def compare_training(
    baseline: Mapping[RoundKey, Result], stack: Mapping[RoundKey, Result]
) -> TrainingComparison:
    """Compare losses and updates of completed runs with the same key; the worst round counts."""
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
    found = TrainingComparison()
    if pairs:
        allowed = allowance(*pairs[0], LIMITS)
        found = max((_compare_round(*pair, allowed) for pair in pairs), key=_severity)
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
    return found.model_copy(update=changes)


def _compare_round(before: Result, after: Result, allowed: Allowance) -> TrainingComparison:
    """Compare the updates of one round; where neither run has stored one there is no reason."""
    baseline, stack = (run.ranks[0].update if run.ranks else None for run in (before, after))
    if baseline is None or stack is None:
        missing = "" if baseline is stack else NOT_STORED
        return TrainingComparison(update_reason=missing)
    if baseline.steps != stack.steps:
        steps = f"{stack.steps} steps in the place of {baseline.steps}"
        return TrainingComparison(update_reason=f"the update is that of {steps}")
    changes = Changes(baseline, stack, exact_differences(before, after))
    whole = changes.distance
    if not whole.baseline:
        return TrainingComparison(update_reason="the baseline's weights did not change")
    unmoved = changes.unmoved
    excuse = _excuse(before, after, whole, allowed)
    parts: list[str] = []
    if is_mixture(before, after) and not allowed.by_design:
        drawn = bool(excuse_of_draws(before, after))
        parts = size_differences(changes, drawn, _left_out_share(before, after))
        if not (excuse or allowed.plugins):
            parts += rest_differences(changes, allowed.tolerance)
            excuse = rounded_scores_excuse(changes) if _rounds(before, after) else ""
    verdict = _verdict(whole, allowed, [*unmoved, *parts], excuse)
    reasons: dict[TrainingWord, str] = {
        "equivalent": "",
        "cannot tell": f"{_apart(whole, allowed)}; {excuse}",
        "different": "; ".join([*parts, _reason(whole, allowed, unmoved, len(baseline.tensors))]),
        "different by design": _apart(whole, allowed),
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


def _verdict(whole: Distance, allowed: Allowance, wrong: list[str], excuse: str) -> TrainingWord:
    """Return the word for a distance, beside what is `wrong` at any; `excuse` says what else than a
    cheat may have made it."""
    verdict = allowed.verdict(whole.relative)
    if wrong and not allowed.other_training:
        return "different"
    return "cannot tell" if verdict == "different" and excuse else verdict


def _excuse(before: Result, after: Result, whole: Distance, allowed: Allowance) -> str:
    """Return what may have made a distance although the training is the same; empty without it."""
    off = abs(whole.norm_ratio - 1)
    share = _left_out_share(before, after)
    if share and off <= allowed.tolerance + share:
        counts = f"{_scaled_steps(after)} steps in the place of {_scaled_steps(before)}"
        return f"gradient scalers that left out other steps do that ({counts} were taken)"
    return excuse_of_draws(before, after) if off <= max(allowed.tolerance, DRAWN_SIZE) else ""


def _left_out_share(before: Result, after: Result) -> float:
    """Return the share of steps that a gradient scaler left out in one of two runs alone."""
    baseline, stack = _scaled_steps(before), _scaled_steps(after)
    if baseline is None or stack is None:
        return 0.0
    return abs(stack - baseline) / max(stack, baseline, 1)


def _scaled_steps(run: Result) -> int | None:
    """Return the steps that an optimizer took under a gradient scaler; None without one.

    More steps left out than the scaler's scale explains make the run invalid.
    """
    progress = run.ranks[0].effective.optimizer_progress
    scaled = run.experiment.scenario.train.precision == "fp16-autocast"
    return progress.counted_steps if scaled and progress else None


def _reason(whole: Distance, allowed: Allowance, unmoved: list[str], tensors: int) -> str:
    """Return what differs, what names most first."""
    if len(unmoved) == tensors:
        return "its weights did not move"
    if not unmoved:
        return _apart(whole, allowed)
    still = f"{len(unmoved)} of {count(tensors, 'tensor')} did not move ({join_names(unmoved)})"
    return f"{still}; {_apart(whole, allowed)}"


def _apart(whole: Distance, allowed: Allowance) -> str:
    """Return `its update is 74 % apart from the baseline's, 10 % allowed: 0.745 times its size`."""
    cosine = "" if whole.cosine is None else f", at a cosine of {whole.cosine:.3g}"
    return (
        f"its update is {percent(whole.relative)} apart from the baseline's, {allowed.words} "
        f"({whole.norm_ratio:.3g} times its size{cosine})"
    )


def _severity(one: TrainingComparison) -> tuple[int, float]:
    """Order verdicts from harmless to bad: one bad round spoils the stack."""
    order = ("not tested", "equivalent", "cannot tell", "different by design", "different")
    return order.index(one.update_verdict), one.update_difference or 0.0


def token_differences(baseline: Result, stack: Result) -> tuple[str, ...]:
    """Return a sentence for each count in which a stack's steps are not the baseline's.

    Runs of one round take the same samples in the same steps, however they are laid out. Compared
    are the steps that both took, over all ranks; nothing is where the two declare other data or
    another global batch.
    """
    if _batch(baseline) != _batch(stack):
        return ()
    sentences = []
    for kind, name in TOKEN_KINDS.items():
        before, after = _by_step(baseline, kind), _by_step(stack, kind)
        steps = sorted(set(before) & set(after))
        theirs, ours = (sum(counts[step] for step in steps) for counts in (before, after))
        if steps and abs(ours - theirs) > TOKEN_TOLERANCE * theirs:
            our_mean, their_mean = (f"{total / len(steps):,.6g}" for total in (ours, theirs))
            sentences.append(
                f"a step holds {ours / theirs:.3g} times the baseline's {name} tokens "
                f"({our_mean} against {their_mean})"
                if theirs
                else f"a step holds {our_mean} {name} tokens, the baseline's none"
            )
    return tuple(sentences)


def _by_step(run: Result, kind: str) -> Counter[int]:
    """Return a count of all batches by step number, warm-up and discarded windows included."""
    counts: Counter[int] = Counter()
    for rank in run.data_ranks:
        if rank.window is not None:
            for sample in rank.window.all_steps:
                counts[sample.step] += getattr(sample, kind)
    return counts


def _batch(run: Result) -> dict[str, Any]:
    """Return what a scenario says about the samples of a step, and not how they are laid out."""
    scenario = run.experiment.scenario
    data = scenario.data.model_dump(mode="json")
    settings = {key: value for key, value in data.items() if f"data.{key}" not in SAME_TRAINING}
    return {**settings, "global_batch_size": scenario.train.global_batch_size}
