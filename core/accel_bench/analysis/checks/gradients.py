"""Do a stack's first gradients look like the baseline's? A cut that leaves traces shows here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from accel_bench.analysis.checks.allowance import allowance
from accel_bench.analysis.checks.convergence import LIMITS
from accel_bench.analysis.checks.trained import (
    ONE_EXPERT,
    explained,
    restructured,
)
from accel_bench.analysis.statistics.verdict import RoundKey
from accel_bench.analysis.wording import join_names
from accel_bench.effective import plain_name
from accel_bench.result import Result

EXACT_FACTOR = 1.02
"""Norms of equal work differ by no more than this factor, where it is computed in float32;
docs/verdicts.md has the evidence for these factors."""

ROUNDED_FACTOR = 1.5
"""The same where the two round otherwise, or draw their dropout in another order."""

APPROXIMATE_FACTOR = 3.0
"""The same where a plugin declares a tolerance beyond `ROUNDING`."""

OTHER_WORK_FACTOR = 5.0
"""The same where the stacks declare other work."""

ROUNDING = 5e-3
"""Largest tolerance of the loss by which a plugin declares that it only rounds otherwise."""

NEGLIGIBLE = 1e-4
"""Fraction of a run's largest norm below which one is rounding, as that of a key's bias is."""


class Norms(NamedTuple):
    """L2 norms of one tensor's gradient on the first step; 0 where there is none."""

    tensor: str
    stack: float
    baseline: float


def gradient_reasons(
    baseline: Mapping[RoundKey, Result], runs: Mapping[RoundKey, Result]
) -> tuple[str, ...]:
    """Return why a stack did not train as its baseline did, in a sentence or two; empty if it did.

    Runs of the same round are compared, since they see the same first batch.
    """
    different: dict[str, Norms] = {}
    compared: set[str] = set()
    alone: dict[str, None] = {}
    for key in sorted(set(baseline) & set(runs)):
        base, stack = gradient_norms(baseline[key]), gradient_norms(runs[key])
        compared |= set(base) & set(stack)
        factor = allowed_factor(baseline[key], runs[key])
        different |= {norms.tensor: norms for norms in different_norms(base, stack, factor)}
        alone |= dict.fromkeys(_of_one_side(baseline[key], runs[key]))
    if not different:
        return tuple(alone)
    shown = join_names(
        [f"{n.tensor} {n.stack:.2g} against {n.baseline:.2g}" for n in different.values()]
    )
    return (
        f"gradient norms of the first step are not the baseline's in {len(different)} of "
        f"{len(compared)} tensors: {shown}",
        *alone,
    )


def exact_gradient_reasons(baseline: Result, stack: Result) -> tuple[str, ...]:
    """Return those reasons where both compute exactly, so that no rounding explains them.

    An optimizer that divides by the gradient's size, as AdamW does, hides a constant factor of the
    loss, such as an alpha / r that is forgotten, from the update.
    """
    if allowed_factor(baseline, stack) != EXACT_FACTOR:
        return ()
    return gradient_reasons({("", 0): baseline}, {("", 0): stack})


def allowed_factor(baseline: Result, stack: Result) -> float:
    """Return the factor by which norms may differ, by what differs between two runs."""
    works = baseline.experiment.scenario, stack.experiment.scenario
    allowed = allowance(baseline, stack, LIMITS)
    batches = {
        (one.train.global_batch_size, one.data.sequence_length, one.world_size) for one in works
    }
    if allowed.other_training or len(batches) > 1:
        return OTHER_WORK_FACTOR
    if allowed.plugins and allowed.tolerance > ROUNDING:
        return APPROXIMATE_FACTOR
    exact = not allowed.plugins and all(map(_is_exact, (baseline, stack)))
    return EXACT_FACTOR if exact else ROUNDED_FACTOR


def different_norms(
    baseline: Mapping[str, float | None],
    stack: Mapping[str, float | None],
    factor: float = ROUNDED_FACTOR,
) -> list[Norms]:
    """Return tensors whose norm is zero in one run alone, or differs by more than a factor.

    A norm that is negligible beside the largest of its own run counts as zero, so two of those
    never differ. An expert's may always differ by `OTHER_WORK_FACTOR`, unless all is exact.
    """
    ours, theirs = _weighty(stack), _weighty(baseline)
    pairs = [Norms(name, ours[name], theirs[name]) for name in theirs if name in ours]
    expert = max(factor, OTHER_WORK_FACTOR) if factor > EXACT_FACTOR else factor
    return [
        pair
        for pair in pairs
        if max(pair[1:]) > (expert if ONE_EXPERT.search(pair.tensor) else factor) * min(pair[1:])
    ]


def gradient_norms(result: Result) -> dict[str, float | None]:
    """Return the norms that rank 0 has read on its first step; empty where nothing was read."""
    flow = result.ranks[0].effective.gradient_flow if result.ranks else None
    return {plain_name(name): norm for name, norm in flow.gradient_norms.items()} if flow else {}


def _is_exact(run: Result) -> bool:
    """Return whether a run computes in float32 and draws nothing, as far as it was stored."""
    if not run.ranks or run.experiment.scenario.compute_dtype != "float32":
        return False
    effective = run.ranks[0].effective
    stored = effective.optimizer_progress is not None and not effective.drawn
    return stored and effective.float32_matmul_precision in (None, "highest")


def _of_one_side(baseline: Result, stack: Result) -> Iterator[str]:
    """Yield tensors that only one of two runs trains, where they train different weights."""
    base, ours = gradient_norms(baseline), gradient_norms(stack)
    if not (base and ours) or explained(baseline, stack) or restructured(baseline, stack):
        return
    for side, names in (("baseline", base.keys() - ours), ("stack", ours.keys() - base)):
        if names:
            shown = join_names(sorted(names))
            yield f"only the {side} trains {len(names)} of the tensors: {shown}"


def _weighty(norms: Mapping[str, float | None]) -> dict[str, float]:
    """Return the norms, zero in place of negligible ones."""
    least = NEGLIGIBLE * max((norm for norm in norms.values() if norm), default=0.0)
    return {name: norm if norm and norm > least else 0.0 for name, norm in norms.items()}
