"""Did a mixture of experts train the same? Rounded scores send some tokens to other experts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from accel_bench.analysis.checks.distance import NEGLIGIBLE, distance, norm_ratio_error
from accel_bench.analysis.wording import percent
from accel_bench.result import Result, TensorUpdate, WeightUpdate

PARTS = {
    "experts": re.compile(r"(^|\.)experts\."),
    "routers": re.compile(r"(^|\.)(router|gate)\."),
}
"""Names of the tensors that other tokens reach, by part."""

SIZES = {"experts": 0.03, "routers": 0.15}
"""Largest relative difference of a part's size: rounding turns its change and keeps the size.

In small Granite and Mixtral models, random and trained, in full and under LoRA, none of 917 runs of
5 seeds with other kernels, micro-batches, layouts and precisions in 16 bits changed the size of
experts by more than 2 % and of routers by more than 9 %, and none of 8 in float8 by more than 1
and 3 %. One frozen expert of eight took 4.6 to 8 % of the former, 0.75 times the experts' rate
20 %, and frozen routers 69 to 78 % of the latter. Left out are 47 runs in which weights stored in
bfloat16 rounded small changes away, a quarter and more of those of experts: that is another
training.
"""

SIZES_WHERE_DRAWN = {"experts": 0.14, "routers": 0.5}
"""The same where both runs draw dropout, which no longer shows one frozen expert.

In 31 of 32 runs of the same models with dropout of attention of 0.1 and 0.3, drawn in another order
by other micro-batches or no padding, sizes of experts changed by up to 3 % with AdamW and 10 % with
SGD, and of routers by up to 11 and 40 %. In the last one, with SGD, experts changed by 29 %, and
the whole by 44 %.
"""

WHOLE_SIZE = 0.03
"""Largest relative difference of the whole's size that rounded scores explain where sketches alone
are compared: it was 0.9 % in those runs."""

STANDARD_ERRORS = 3.0
"""How many of them sketches are allowed: of 4,000 changes of one tensor that turned by 0.35 and
kept their size, 0.5 % seemed another size, and all of 0.65 times the size did."""

ROUTED_TOLERANCE = 0.4
"""Largest distance that rounded scores explain where a mixture computes in 16 bits.

In those runs it was up to 0.35, of experts 0.47, of routers 0.9 and of all else 0.18; 18 of them
were beyond 0.2. Distance alone tells little there: tokens dropped beyond an expert's capacity made
it 0.1 to 0.31, an expert without gradient 0.16 to 0.31, two experts in each other's place 0.3 to
0.45, and the first expert of each token alone 0.34 to 0.51.
"""

ROUNDED_SCORES = (
    "rounded scores that send tokens to other experts do that; in float32 without autocast it can "
    "be told"
)


def is_mixture(*runs: Result) -> bool:
    """Return whether any of the runs trains a model with experts."""
    return any(rank.effective.experts for run in runs for rank in run.ranks[:1])


class Changes(NamedTuple):
    """The changes of weights of two runs of a mixture."""

    baseline: WeightUpdate
    stack: WeightUpdate
    exact: Mapping[str, float] | None
    """What `exact_differences` returns; without it, sketches estimate sizes and distances."""

    def part(self, name: str | None) -> Changes:
        """Return the changes of one part's tensors; None stands for all that is in no part."""
        return self._replace(baseline=_part(self.baseline, name), stack=_part(self.stack, name))

    def off(self, limit: float) -> str:
        """Return how the stack's size differs by more than a limit and what sketches leave open."""
        allowed = limit + STANDARD_ERRORS * norm_ratio_error(*self)
        ratio = distance(*self).norm_ratio
        if abs(ratio - 1) <= allowed:
            return ""
        return (
            f"{ratio:.3g} times as much as the baseline's, {percent(allowed)} more or less allowed"
        )


def rounded_scores_excuse(changes: Changes) -> str:
    """Return that rounded scores may have made the distance of two mixtures in 16 bits; empty where
    it is too large, or where sketches show the whole change to be of another size."""
    near = distance(*changes).relative <= ROUTED_TOLERANCE
    same_size = changes.exact is not None or not changes.off(WHOLE_SIZE)
    return ROUNDED_SCORES if near and same_size else ""


def size_differences(changes: Changes, drawn: bool, left_out: float) -> list[str]:
    """Return which of experts and routers changed by another size, each as a clause.

    `drawn` says that both runs draw dropout, and `left_out` is the share of steps that a gradient
    scaler left out in one of them alone. A part that hardly changed is not compared.
    """
    sizes = SIZES_WHERE_DRAWN if drawn else SIZES
    parts = {part: changes.part(part) for part in sizes}
    return [
        f"its {part} changed {off}"
        for part, one in parts.items()
        if not _is_negligible(one.baseline, changes.baseline)
        and (off := one.off(sizes[part] + left_out))
    ]


def rest_differences(changes: Changes, tolerance: float) -> list[str]:
    """Return, as a clause, that what is neither expert nor router is farther apart than allowed."""
    rest = changes.part(None)
    if _is_negligible(rest.baseline, changes.baseline):
        return []
    apart = distance(*rest).relative
    words = f"{percent(apart)} apart, {percent(tolerance)} allowed"
    return [f"what is neither expert nor router is {words}"] if apart > tolerance else []


def _part(update: WeightUpdate, part: str | None) -> WeightUpdate:
    """Return the update of one part's tensors; None stands for all that is in no part."""
    tensors = {name: one for name, one in update.tensors.items() if _part_of(name) == part}
    return update.model_copy(update={"tensors": tensors})


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
