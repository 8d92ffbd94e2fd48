"""What the document says of an ablation ladder: for each item what it adds, and what it is missed
for."""

from __future__ import annotations

from accel_bench.analysis.checks.convergence import LossWord
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.documents.base import Frozen, JsonValue


class MemoryChange(Frozen):
    """Difference of two peaks in bytes: the mean over pairs, with a 95 % t interval."""

    bytes: float
    """Mean of the paired differences; negative is less."""

    low: float | None
    """Lower end; null with one pair."""

    high: float | None
    """Upper end; null with one pair."""


class LadderFigure(Frozen):
    """One stack held against its neighbour on the ladder: an estimate, not a verdict."""

    stack: str | None
    """Name of the stack; null where the plan has none."""

    against: str | None
    """Name of the neighbour."""

    pairs: int = 0
    """Rounds in which both completed."""

    ratio: Interval | None = None
    """Speed of the stack over the neighbour's, with a 95 % interval over pairs."""

    reason: str = ""
    """Why there is no ratio, where there is none."""

    memory: MemoryChange | None = None
    """Peak memory of the stack less the neighbour's; null where it was not measured alike."""

    loss_verdict: LossWord = "not tested"
    """Whether the loss curves of the two are the same."""

    loss_difference: float | None = None
    """Largest relative difference of the smoothed loss curves; 0.01 is 1 %."""

    loss_tolerance: float | None = None
    """What was allowed: the largest that a plugin of the stack with the item declares."""

    loss_reason: str = ""
    """Why the loss verdict is not `equivalent`, where it is not."""


class LadderStep(Frozen):
    """One item of the ladder at one sweep point."""

    sweep: dict[str, JsonValue]
    """Values of the swept keys."""

    number: int
    """Place of the item, from 1."""

    item: str
    """Its label."""

    ratio: Interval | None
    """Speed of the item's rung over the baseline's, as in its row; its verdict stands there."""

    adds: LadderFigure
    """The rung that ends with this item, against the rung before."""

    left_out: LadderFigure
    """Everything without this item, against everything: below 1 it is missed."""
