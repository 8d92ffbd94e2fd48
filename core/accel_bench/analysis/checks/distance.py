"""Distance between two runs' changes of weights: exact if stored, else estimated by sketches.

A sketch of a tensor is a list of sums of its elements with random signs. The sum of its squares
estimates the tensor's squared L2 norm.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from accel_bench.result import Result, TensorUpdate, WeightUpdate

ONE_EXPERT = re.compile(r"\.experts\.\d+\.")
"""Pattern of the tensor names of single experts, whose few tokens rounding may reroute."""

PARTS = {
    "experts": re.compile(r"(^|\.)experts\."),
    "routers": re.compile(r"(^|\.)(router|gate)\."),
}
"""Patterns of the tensor names of a mixture of experts that rerouted tokens affect, by part."""

UNMOVED = 1e-2
"""Fraction of the baseline's change below which a tensor counts as unmoved."""

NEGLIGIBLE = 1e-3
"""Fraction of the largest root mean square change below which a change counts as rounding."""


class Distance(NamedTuple):
    """L2 norms of two changes of the same weights, and of the difference of the two changes."""

    baseline: float
    """L2 norm of the baseline's change."""

    stack: float
    apart: float
    """L2 norm of the difference of the two changes."""

    @property
    def relative(self) -> float:
        return self.apart / self.baseline

    @property
    def norm_ratio(self) -> float:
        return self.stack / self.baseline

    @property
    def cosine(self) -> float | None:
        """Cosine between the two changes, or None if the stack changed no weight."""
        if not self.stack:
            return None
        product = (self.baseline**2 + self.stack**2 - self.apart**2) / 2
        return max(-1.0, min(1.0, product / (self.baseline * self.stack)))


def exact_differences(baseline: Result, stack: Result) -> Mapping[str, float] | None:
    """Return exact L2 norms, by tensor, of the differences between two runs' changes of weights;
    None if the stored changes were not compared."""
    ids = baseline.run_id, stack.run_id
    exact = stack.update_distances.get(ids[0]) or baseline.update_distances.get(ids[1])
    updates = [run.ranks[0].update for run in (baseline, stack) if run.ranks]
    tensors = [update.tensors for update in updates if update]
    if not exact or len(tensors) < len(ids):
        return None
    norms = all(tensor.norm is not None for side in tensors for tensor in side.values())
    return exact if norms and exact.keys() >= tensors[0].keys() & tensors[1].keys() else None


class Changes(NamedTuple):
    """Changes of weights of two runs; a missing tensor counts as unchanged."""

    baseline: WeightUpdate
    stack: WeightUpdate
    exact: Mapping[str, float] | None = None
    """Exact distances by tensor; None if sketches estimate them."""

    @property
    def distance(self) -> Distance:
        """Distance between the two changes over all tensors."""
        names = dict.fromkeys((*self.baseline.tensors, *self.stack.tensors))
        parts = map(self._of_tensor, names)
        return Distance(*(math.hypot(*values) for values in zip(*parts, strict=True)))

    @property
    def norm_ratio_error(self) -> float:
        """Standard error of `Distance.norm_ratio`, from the scatter over sketches; 0 if exact."""
        if self.exact is not None:
            return 0.0
        ratio = self.distance.norm_ratio
        numbers = [
            (before**2, after**2)
            for name, tensor in self.baseline.tensors.items()
            if name in self.stack.tensors
            for before, after in zip(tensor.sketch, self.stack.tensors[name].sketch, strict=True)
        ]
        apart = math.hypot(*(after - ratio**2 * before for before, after in numbers))
        total = sum(before for before, _ in numbers)
        return apart / (2 * ratio * total) if ratio * total else 0.0

    @property
    def unmoved(self) -> list[str]:
        """Names of the tensors that moved in the baseline and not in the stack.

        Tensors of single experts are left out, since rounding may reroute their few tokens.
        """
        parts = {
            name: (self._of_tensor(name), before.elements)
            for name, before in self.baseline.tensors.items()
            if not ONE_EXPERT.search(name)
        }
        largest = max(
            (part.baseline / math.sqrt(size) for part, size in parts.values()), default=0.0
        )
        return [
            name
            for name, (part, size) in parts.items()
            if part.baseline / math.sqrt(size) > NEGLIGIBLE * largest
            and part.stack < UNMOVED * part.baseline
        ]

    def part(self, part: str | None) -> Changes:
        """Return the changes of one group of tensors in PARTS; None selects tensors of no group."""

        def of(update: WeightUpdate) -> WeightUpdate:
            tensors = {
                name: tensor for name, tensor in update.tensors.items() if _part_of(name) == part
            }
            return update.model_copy(update={"tensors": tensors})

        return self._replace(baseline=of(self.baseline), stack=of(self.stack))

    def is_negligible(self, whole: Changes) -> bool:
        """Return whether the baseline hardly changed these tensors, compared with all (`whole`)."""
        largest = max((_change(tensor) for tensor in whole.baseline.tensors.values()), default=0.0)
        return all(
            _change(tensor) <= NEGLIGIBLE * largest for tensor in self.baseline.tensors.values()
        )

    def _of_tensor(self, name: str) -> Distance:
        baseline, stack = self.baseline.tensors.get(name), self.stack.tensors.get(name)
        if self.exact is not None:
            before, after = ((side.norm or 0.0) if side else 0.0 for side in (baseline, stack))
            return Distance(before, after, self.exact.get(name, max(before, after)))
        ours = baseline.sketch if baseline else (0.0,) * len(stack.sketch if stack else ())
        theirs = stack.sketch if stack else (0.0,) * len(ours)
        return Distance(math.hypot(*ours), math.hypot(*theirs), math.dist(ours, theirs))


def _part_of(tensor: str) -> str | None:
    return next((part for part, names in PARTS.items() if names.search(tensor)), None)


def _change(tensor: TensorUpdate) -> float:
    """Return the root mean square change of a tensor's elements."""
    norm = math.hypot(*tensor.sketch) if tensor.norm is None else tensor.norm
    return norm / math.sqrt(tensor.elements)
