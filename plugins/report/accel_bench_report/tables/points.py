"""Comparison of sweep points: the same stack at different values of the swept keys."""

from __future__ import annotations

from collections.abc import Sequence

from accel_bench.analysis.aggregate import SEED_KEYS, ExperimentRuns, by_point, obstacle
from accel_bench.analysis.metrics.offered_load import NO_LATENCY, load_obstacle
from accel_bench.analysis.pairing import shares_rounds
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.statistics.verdict import (
    ESTIMATE,
    UNPAIRED,
    Comparison,
    compare,
)
from accel_bench.documents.base import JsonValue
from accel_bench.scenario.uses import TOKENS


class PointFigure(Comparison):
    """Speed of a stack at one sweep point divided by its speed at another, without a verdict.

    The ratio compares global speeds or, if requests arrive at a rate, median request latencies.
    `rounds` counts pairs, or unpaired runs of this point.
    """

    stack: str
    """Name of the stack."""

    sweep: dict[str, JsonValue]
    """Values of the swept keys."""

    tag: str = ""
    """Name of the sweep point."""

    reference: dict[str, JsonValue]
    """Values of the swept keys at the reference point."""

    world_size: int
    """Number of ranks."""

    counts: str = TOKENS
    """Unit of work counted as tokens: `calls` for an operation called on its own."""

    tokens_per_second: Interval | None = None
    """Real tokens per second, global."""

    tokens_per_second_per_device: Interval | None = None
    """Tokens per second divided by the number of ranks."""

    ratio_per_device: Interval | None = None
    """Speed per device divided by the reference point's."""

    paired: bool = False
    """True if the ratio is paired by round; else it is a Welch interval of unpaired runs."""


def compare_points(rows: Sequence[ExperimentRuns], reference: str = "") -> tuple[PointFigure, ...]:
    """Return each stack's speed at each sweep point relative to its speed at the reference point.

    `reference` is the tag of the reference point, by default the first. The tuple is empty if
    nothing is swept, or seeds alone.
    """
    points = by_point(rows)
    if len(points) < 2 or set(SEED_KEYS).issuperset(rows[0].planned.experiment.sweep):
        return ()
    named = (own for own in points if own[0].planned.experiment.tag == reference)
    base = next(named, points[0]) if reference else points[0]
    bases = {row.planned.experiment.stack.name: row for row in base}
    pairs = ((row, bases.get(row.planned.experiment.stack.name)) for row in rows)
    return tuple(against(row, base) for row, base in pairs if base is not None)


def against(row: ExperimentRuns, base: ExperimentRuns) -> PointFigure:
    """Return the ratio of an experiment's speed to the speed of `base`, without a verdict.

    The result has a reason in place of the ratio if the two experiments cannot be compared.
    """
    here, there = row.planned.experiment, base.planned.experiment
    size = here.scenario.world_size
    speed = row.tokens_per_second
    paired = shares_rounds(row, base)
    reason = obstacle(row, base, "the reference point")
    reason = reason or load_obstacle(base.load, row.load, any_rate=True)
    policy = ESTIMATE if paired else UNPAIRED
    ratio = None if reason else compare(base.compared_seconds, row.compared_seconds, policy).ratio
    per_device = there.scenario.world_size / size
    return PointFigure(
        stack=here.stack.name,
        sweep=here.sweep,
        tag=here.tag,
        reference=there.sweep,
        world_size=size,
        counts=here.scenario.counts,
        tokens_per_second=speed,
        tokens_per_second_per_device=speed and speed.mapped(lambda value: value / size),
        ratio=ratio,
        ratio_per_device=ratio and ratio.mapped(lambda value: value * per_device),
        paired=paired and ratio is not None,
        rounds=len(set(base.speeds) & set(row.speeds)) if paired else len(row.speeds),
        verdict_reason=reason or ("" if ratio else NO_LATENCY),
    )
