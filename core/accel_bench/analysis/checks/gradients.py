"""Do a stack's first gradients look like the baseline's? A cut that leaves traces shows here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from accel_bench.analysis.statistics.verdict import RoundKey
from accel_bench.analysis.wording import join_names
from accel_bench.result import Result

FACTOR = 5.0
"""Norms that differ by more than this factor are of other gradients.

In a small llama, four bits and adapters drawn in another order moved single norms by up to 2.2.
"""

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
    """Return why a stack did not train as its baseline did: one sentence, or none.

    Runs of the same round are compared, since they see the same first batch. Tensors that only one
    of the two has are left out.
    """
    different: dict[str, Norms] = {}
    compared: set[str] = set()
    for key in sorted(set(baseline) & set(runs)):
        base, stack = gradient_norms(baseline[key]), gradient_norms(runs[key])
        compared |= set(base) & set(stack)
        different |= {norms.tensor: norms for norms in different_norms(base, stack)}
    if not different:
        return ()
    shown = join_names(
        [f"{n.tensor} {n.stack:.2g} against {n.baseline:.2g}" for n in different.values()]
    )
    return (
        f"gradient norms of the first step are not the baseline's in {len(different)} of "
        f"{len(compared)} tensors: {shown}",
    )


def different_norms(
    baseline: Mapping[str, float | None], stack: Mapping[str, float | None]
) -> list[Norms]:
    """Return tensors whose norm is zero in one run alone, or differs by more than `FACTOR`.

    A norm that is negligible beside the largest of its own run counts as zero, so two of those
    never differ.
    """
    ours, theirs = _weighty(stack), _weighty(baseline)
    pairs = [Norms(name, ours[name], theirs[name]) for name in theirs if name in ours]
    return [pair for pair in pairs if max(pair[1:]) > FACTOR * min(pair[1:])]


def gradient_norms(result: Result) -> dict[str, float | None]:
    """Return the norms that rank 0 has read on its first step; empty where nothing was read."""
    flow = result.ranks[0].effective.gradient_flow if result.ranks else None
    return flow.gradient_norms if flow else {}


def _weighty(norms: Mapping[str, float | None]) -> dict[str, float]:
    """Return the norms, zero in place of negligible ones."""
    least = NEGLIGIBLE * max((norm for norm in norms.values() if norm), default=0.0)
    return {name: norm if norm and norm > least else 0.0 for name, norm in norms.items()}
