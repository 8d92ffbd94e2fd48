"""Did a mixture of experts train the same? Rounded scores send some tokens to other experts."""

from __future__ import annotations

import math
import re

from accel_bench.analysis.checks.distance import NEGLIGIBLE, Changes
from accel_bench.analysis.wording import percent
from accel_bench.result import Result, TensorUpdate, WeightUpdate

PARTS = {
    "experts": re.compile(r"(^|\.)experts\."),
    "routers": re.compile(r"(^|\.)(router|gate)\."),
}
"""Names of the tensors that other tokens reach, by part."""

SIZES = {"experts": 0.03, "routers": 0.15}
"""Largest relative difference of a part's size: rounding turns its change and keeps the size.
docs/verdicts.md has the evidence for all limits."""

SIZES_WHERE_DRAWN = {"experts": 0.14, "routers": 0.5}
"""The same where both runs draw dropout, which no longer shows one frozen expert."""

WHOLE_SIZE = 0.03
"""The same of the whole, where rounded scores explain a distance and only sketches are compared."""

STANDARD_ERRORS = 3.0
"""How many of them sketches are allowed."""

ROUTED_TOLERANCE = 0.4
"""Largest distance that rounded scores explain where a mixture computes in 16 bits. Distance alone
tells little there: trainings without an expert are as near."""

ROUNDED_SCORES = (
    "rounded scores that send tokens to other experts do that; in float32 without autocast it can "
    "be told"
)


def is_mixture(*runs: Result) -> bool:
    """Return whether any of the runs trains a model with experts."""
    return any(rank.effective.experts for run in runs for rank in run.ranks[:1])


def rounded_scores_excuse(changes: Changes) -> str:
    """Return that rounded scores may have made the distance of two mixtures in 16 bits; empty where
    it is too large, or where sketches show the whole change to be of another size."""
    near = changes.distance.relative <= ROUTED_TOLERANCE
    same_size = changes.exact is not None or not _off(changes, WHOLE_SIZE)
    return ROUNDED_SCORES if near and same_size else ""


def size_differences(changes: Changes, drawn: bool, left_out: float) -> list[str]:
    """Return which of experts and routers changed by another size, each as a clause.

    `drawn` says that both runs draw dropout, and `left_out` is the share of steps that a gradient
    scaler left out in one of them alone. A part that hardly changed is not compared.
    """
    sizes = SIZES_WHERE_DRAWN if drawn else SIZES
    parts = {part: _part(changes, part) for part in sizes}
    return [
        f"its {part} changed {off}"
        for part, one in parts.items()
        if not _is_negligible(one.baseline, changes.baseline)
        and (off := _off(one, sizes[part] + left_out))
    ]


def rest_differences(changes: Changes, tolerance: float) -> list[str]:
    """Return, as a clause, that what is neither expert nor router is farther apart than allowed."""
    rest = _part(changes, None)
    if _is_negligible(rest.baseline, changes.baseline):
        return []
    apart = rest.distance.relative
    words = f"{percent(apart)} apart, {percent(tolerance)} allowed"
    return [f"what is neither expert nor router is {words}"] if apart > tolerance else []


def _off(changes: Changes, limit: float) -> str:
    """Return how the stack's size differs by more than a limit and what sketches leave open."""
    allowed = limit + STANDARD_ERRORS * changes.norm_ratio_error
    ratio = changes.distance.norm_ratio
    if abs(ratio - 1) <= allowed:
        return ""
    return f"{ratio:.3g} times as much as the baseline's, {percent(allowed)} more or less allowed"


def _part(changes: Changes, part: str | None) -> Changes:
    """Return the changes of one part's tensors; None stands for all that is in no part."""

    def of(update: WeightUpdate) -> WeightUpdate:
        tensors = {name: one for name, one in update.tensors.items() if _part_of(name) == part}
        return update.model_copy(update={"tensors": tensors})

    return changes._replace(baseline=of(changes.baseline), stack=of(changes.stack))


def _part_of(tensor: str) -> str | None:
    return next((part for part, names in PARTS.items() if names.search(tensor)), None)


def _is_negligible(part: WeightUpdate, whole: WeightUpdate) -> bool:
    """Return whether a part changed no more than rounding does, or has no tensors."""
    largest = max((_change(one) for one in whole.tensors.values()), default=0.0)
    return all(_change(one) <= NEGLIGIBLE * largest for one in part.tensors.values())


def _change(tensor: TensorUpdate) -> float:
    """Return the root mean square change of a tensor's elements."""
    norm = math.hypot(*tensor.sketch) if tensor.norm is None else tensor.norm
    return norm / math.sqrt(tensor.elements)
