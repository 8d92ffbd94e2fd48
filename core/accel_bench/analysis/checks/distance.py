"""How far are two changes of weights apart? Exactly where that is stored, else by sketches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from accel_bench.analysis.checks.trained import ONE_EXPERT
from accel_bench.result import Result, TensorUpdate, WeightUpdate

UNMOVED = 1e-2
"""A tensor did not move when its change is less than this fraction of the baseline's."""

NEGLIGIBLE = 1e-3
"""Fraction of the largest root mean square change below which a tensor's change is rounding."""


class Distance(NamedTuple):
    """How far two changes of the same tensors are apart."""

    baseline: float
    """L2 norm of the baseline's change."""

    stack: float
    apart: float
    """L2 norm of their difference."""

    @property
    def relative(self) -> float:
        return self.apart / self.baseline

    @property
    def norm_ratio(self) -> float:
        return self.stack / self.baseline

    @property
    def cosine(self) -> float | None:
        """Return the cosine by the law of cosines; None where the stack's change is 0."""
        if not self.stack:
            return None
        product = (self.baseline**2 + self.stack**2 - self.apart**2) / 2
        return max(-1.0, min(1.0, product / (self.baseline * self.stack)))


def exact_differences(baseline: Result, stack: Result) -> Mapping[str, float] | None:
    """Return the exact L2 norms of the differences between two runs' changes, by tensor.

    None where their files were not compared, so that only sketches are there.
    """
    ids = baseline.run_id, stack.run_id
    found = stack.update_distances.get(ids[0]) or baseline.update_distances.get(ids[1])
    updates = [run.ranks[0].update for run in (baseline, stack) if run.ranks]
    tensors = [update.tensors for update in updates if update]
    if not found or len(tensors) < len(ids):
        return None
    norms = all(one.norm is not None for side in tensors for one in side.values())
    return found if norms and found.keys() >= tensors[0].keys() & tensors[1].keys() else None


def distance(
    baseline: WeightUpdate, stack: WeightUpdate, exact: Mapping[str, float] | None = None
) -> Distance:
    """Return how far two updates are apart; a tensor that one side lacks did not change there.

    `exact` is what `exact_differences` returns; without it, sketches estimate the distance.
    """
    parts = [
        _distance(baseline.tensors.get(name), stack.tensors.get(name), name, exact)
        for name in dict.fromkeys((*baseline.tensors, *stack.tensors))
    ]
    return Distance(*(math.hypot(*values) for values in zip(*parts, strict=True)))


def norm_ratio_error(
    baseline: WeightUpdate, stack: WeightUpdate, exact: Mapping[str, float] | None = None
) -> float:
    """Return the standard error of `Distance.norm_ratio`, by how the ratio scatters over the
    numbers of the sketches; 0 where norms are exact."""
    if exact is not None:
        return 0.0
    ratio = distance(baseline, stack).norm_ratio
    numbers = [
        (before**2, after**2)
        for name, one in baseline.tensors.items()
        if name in stack.tensors
        for before, after in zip(one.sketch, stack.tensors[name].sketch, strict=True)
    ]
    apart = math.hypot(*(after - ratio**2 * before for before, after in numbers))
    total = sum(before for before, _ in numbers)
    return apart / (2 * ratio * total) if ratio * total else 0.0


def unmoved_tensors(
    baseline: WeightUpdate, stack: WeightUpdate, exact: Mapping[str, float] | None = None
) -> list[str]:
    """Return the names of tensors that moved in the baseline and did not in the stack.

    Those of single experts are left out: rounding may send the few tokens of one elsewhere.
    """
    parts = {
        name: (_distance(before, stack.tensors.get(name), name, exact), before.elements)
        for name, before in baseline.tensors.items()
        if not ONE_EXPERT.search(name)
    }
    largest = max((part.baseline / math.sqrt(size) for part, size in parts.values()), default=0.0)
    return [
        name
        for name, (part, size) in parts.items()
        if part.baseline / math.sqrt(size) > NEGLIGIBLE * largest
        and part.stack < UNMOVED * part.baseline
    ]


def _distance(
    baseline: TensorUpdate | None,
    stack: TensorUpdate | None,
    name: str,
    exact: Mapping[str, float] | None,
) -> Distance:
    if exact is not None:
        before, after = ((side.norm or 0.0) if side else 0.0 for side in (baseline, stack))
        return Distance(before, after, exact.get(name, max(before, after)))
    ours = baseline.sketch if baseline else (0.0,) * len(stack.sketch if stack else ())
    theirs = stack.sketch if stack else (0.0,) * len(ours)
    return Distance(math.hypot(*ours), math.hypot(*theirs), math.dist(ours, theirs))
