"""Did a mixture of experts train the same? Rounded scores send some tokens to other experts."""

from __future__ import annotations

import re
from collections.abc import Mapping

from accel_bench.analysis.checks.distance import Distance, distance
from accel_bench.analysis.wording import percent
from accel_bench.result import Result, WeightUpdate

PARTS = {
    "experts": re.compile(r"(^|\.)experts\."),
    "routers": re.compile(r"(^|\.)(router|gate)\."),
}
"""Names of the tensors that other tokens reach, by part."""

SIZES = {"experts": 0.03, "routers": 0.15}
"""Largest relative difference of a part's size: rounding turns its change and keeps the size.

In small Granite and Mixtral models, random and trained, of over 500 runs of 5 seeds with other
kernels, micro-batches, layouts and precisions in 16 bits none changed the size of experts by more
than 2 % and of routers by more than 8 %. One frozen expert of eight took 4.6 to 8 % of the former,
0.75 times the experts' rate 20 %, and frozen routers 69 to 78 % of the latter.
"""

ROUTED_TOLERANCE = 0.4
"""Largest distance that rounded scores explain where a mixture computes in 16 bits.

In those runs it was up to 0.35, of experts 0.47, of routers 0.9 and of all else 0.15; 18 of them
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


def part_differences(
    baseline: WeightUpdate,
    stack: WeightUpdate,
    exact: Mapping[str, float] | None,
    tolerance: float,
) -> list[str]:
    """Return how parts of two mixtures changed as no rounding explains, each a sentence's part.

    Sizes are compared where they are exact. What is neither expert nor router may be as far apart
    as a model without experts.
    """
    found = []
    for part, limit in SIZES.items() if exact is not None else ():
        one = _of_part(baseline, stack, exact, part)
        if one and abs(one.norm_ratio - 1) > limit:
            times = f"{one.norm_ratio:.3g} times as much as the baseline's"
            found.append(f"its {part} changed {times}, {percent(limit)} more or less allowed")
    rest = _of_part(baseline, stack, exact, None)
    if rest and rest.relative > tolerance:
        apart = f"{percent(rest.relative)} apart, {percent(tolerance)} allowed"
        found.append(f"what is neither expert nor router is {apart}")
    return found


def _of_part(
    baseline: WeightUpdate,
    stack: WeightUpdate,
    exact: Mapping[str, float] | None,
    part: str | None,
) -> Distance | None:
    """Return the distance of a part's tensors, of none for all others; None if none changed."""
    before, after = (
        update.model_copy(
            update={"tensors": {k: v for k, v in update.tensors.items() if _part(k) == part}}
        )
        for update in (baseline, stack)
    )
    found = distance(before, after, exact) if before.tensors else None
    return found if found and found.baseline else None


def _part(tensor: str) -> str | None:
    return next((part for part, names in PARTS.items() if names.search(tensor)), None)
