"""Comparison of a stack's first gradients with the baseline's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from accel_bench.analysis.checks.distance import ONE_EXPERT
from accel_bench.analysis.checks.verdict_rules import (
    Pair,
    computes_exactly,
    gradient_norms,
    limit_of,
)
from accel_bench.analysis.statistics.verdict import RoundKey
from accel_bench.analysis.wording import join_names
from accel_bench.result import Result

NEGLIGIBLE = 1e-4
"""Fraction of a run's largest gradient norm below which a norm counts as rounding."""


def gradient_reasons(
    baseline: Mapping[RoundKey, Result], runs: Mapping[RoundKey, Result]
) -> tuple[str, ...]:
    """Return sentences on differences of first gradients between a stack's `runs` and the baseline.

    Runs of the same round are compared, since they see the same first batch.
    """
    different: dict[str, tuple[float, float]] = {}
    compared: set[str] = set()
    alone: dict[str, None] = {}
    for key in sorted(set(baseline) & set(runs)):
        pair = baseline[key], runs[key]
        base, stack = map(gradient_norms, pair)
        compared |= set(base) & set(stack)
        factors = limit_of("gradient norms", pair), limit_of("norms of an expert", pair)
        different |= different_norms(base, stack, *factors)
        alone |= dict.fromkeys(_of_one_side(pair))
    if not different:
        return tuple(alone)
    shown = join_names(
        [f"{name} {ours:.2g} against {theirs:.2g}" for name, (ours, theirs) in different.items()]
    )
    return (
        f"gradient norms of the first step are not the baseline's in {len(different)} of "
        f"{len(compared)} tensors: {shown}",
        *alone,
    )


def exact_gradient_reasons(baseline: Result, stack: Result) -> tuple[str, ...]:
    """Return sentences on different first gradients of two runs that should have equal gradients.

    Other runs give no sentences. Gradients show errors that updates hide: AdamW, for example,
    divides by the gradient's size, so a constant factor of the loss, such as a missing alpha / r,
    does not change the update.
    """
    if not computes_exactly((baseline, stack)):
        return ()
    return gradient_reasons({("", 0): baseline}, {("", 0): stack})


def different_norms(
    baseline: Mapping[str, float | None],
    stack: Mapping[str, float | None],
    factor: float,
    of_expert: float,
) -> dict[str, tuple[float, float]]:
    """Return the norms of stack and baseline by tensor, for tensors whose norms differ.

    Norms differ if only one is zero, or if their ratio exceeds `factor` (`of_expert` for tensors of
    a single expert). Norms that are tiny relative to their run's largest norm count as zero.
    """
    ours, theirs = _without_negligible(stack), _without_negligible(baseline)
    pairs = {name: (ours[name], theirs[name]) for name in theirs if name in ours}
    return {
        name: pair
        for name, pair in pairs.items()
        if max(pair) > (of_expert if ONE_EXPERT.search(name) else factor) * min(pair)
    }


def _of_one_side(pair: Pair) -> Iterator[str]:
    """Yield a sentence for a run that alone trains more of the tensors than a rule allows."""
    base, ours = map(gradient_norms, pair)
    if not (base and ours):
        return
    for side, names in (("baseline", base.keys() - ours), ("stack", ours.keys() - base)):
        if len(names) > limit_of("tensors of one side", pair):
            shown = join_names(sorted(names))
            yield f"only the {side} trains {len(names)} of the tensors: {shown}"


def _without_negligible(norms: Mapping[str, float | None]) -> dict[str, float]:
    least = NEGLIGIBLE * max((norm for norm in norms.values() if norm), default=0.0)
    return {name: norm if norm and norm > least else 0.0 for name, norm in norms.items()}
