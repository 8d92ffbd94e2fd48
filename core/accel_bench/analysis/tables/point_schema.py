"""The document of sweep points compared with one another."""

from __future__ import annotations

from typing import Literal, TypeAlias

from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.scenario.uses import TOKENS

Better: TypeAlias = Literal["higher", "lower", "neither"]
"""The better one of two values of a figure."""


class PointFigure(Frozen):
    """A stack at one sweep point against itself at another: an estimate, not a verdict."""

    stack: str
    """Name of the stack."""

    sweep: dict[str, JsonValue]
    """Values of the swept keys."""

    tag: str = ""
    """Name of the sweep point."""

    reference: dict[str, JsonValue]
    """Values of the swept keys at the point that it is compared with."""

    world_size: int
    """Number of ranks."""

    counts: str = TOKENS
    """What is counted as tokens: calls, where an operation is called on its own."""

    tokens_per_second: Interval | None = None
    """Real tokens per second, global."""

    tokens_per_second_per_device: Interval | None = None
    """The same divided by the number of ranks."""

    ratio: Interval | None = None
    """Global speed over that of the reference, with a 95 % interval; where requests arrive at a
    rate, the reference's latency of the median request over this one's."""

    ratio_per_device: Interval | None = None
    """Speed per device over that of the reference."""

    paired: bool = False
    """True if the ratio is of pairs within rounds; else it is Welch's of unpaired runs."""

    rounds: int = 0
    """Pairs, or unpaired runs of this point."""

    reason: str = ""
    """Why there is no ratio, where there is none."""
