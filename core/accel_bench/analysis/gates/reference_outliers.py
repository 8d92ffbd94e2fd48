"""Rows whose ratio to the reference stands out from those of the other rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from accel_bench.analysis.gates.reference_schema import ReferenceFigure, ReferenceRow
from accel_bench.analysis.statistics.steps import MAD_TO_SIGMA

FEWEST_ROWS = 5
"""Rows without which none stands out from the others."""

DEVIATIONS = 3.5
"""Robust standard deviations by which the ratio of an outlier is away from that of other rows."""


def with_outliers(rows: Sequence[ReferenceRow], tolerance: float) -> list[ReferenceRow]:
    """Mark figures whose ratio stands out: where all rows moved alike, none of them does."""
    logs: dict[str, list[float]] = {}
    for row in rows:
        for one in row.figures:
            if one.ratio is not None:
                logs.setdefault(one.name, []).append(math.log(one.ratio.median))
    limits = {name: _limits(values, tolerance) for name, values in logs.items()}

    def marked(one: ReferenceFigure) -> ReferenceFigure:
        low, high = limits.get(one.name, (-math.inf, math.inf))
        out = one.ratio is not None and not low <= math.log(one.ratio.median) <= high
        return one.model_copy(update={"outlier": out})

    return [row.model_copy(update={"figures": tuple(map(marked, row.figures))}) for row in rows]


def _limits(values: Sequence[float], tolerance: float) -> tuple[float, float]:
    if len(values) < FEWEST_ROWS:
        return -math.inf, math.inf
    middle = median(values)
    spread = MAD_TO_SIGMA * median(abs(value - middle) for value in values)
    allowed = max(DEVIATIONS * spread, math.log1p(tolerance))
    return middle - allowed, middle + allowed
