"""What `regressions` returns: rows that two sets of runs have, figure by figure."""

from __future__ import annotations

from typing import Literal, TypeAlias

from accel_bench.analysis.checks.comparability import Difference
from accel_bench.analysis.schema import Document
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.documents.base import Frozen, JsonValue

State: TypeAlias = Literal[
    "compared", "new", "missing", "newly failing", "newly saturated", "newly passing", "failing"
]
FigureVerdict: TypeAlias = Literal[
    "better", "worse", "different", "same", "inconclusive", "unknown"
]


class ReferenceFigure(Frozen):
    """One figure of one row on both sides: medians over runs."""

    name: str
    unit: str
    better: str
    reference: float | None
    current: float | None

    ratio: Interval | None = None
    """Current over reference, with Welch's 95 % interval; null unless both are positive."""

    p_value: float | None = None
    """Chance of such a ratio if nothing changed, by Welch's t test, adjusted by Holm's method for
    all rows and figures; null with fewer than two runs on a side."""

    verdict: FigureVerdict
    """`same` within the tolerance; `inconclusive` with a single run on a side, or a p-value above
    0.05; `worse` too, without a ratio, for the latency of requests that pile up in the current runs
    alone, at the same rate."""

    reason: str = ""
    """Why it is not compared, where requests arrive at a rate; else empty."""

    outlier: bool = False
    """Whether the ratio stands out from those of the other rows."""


class ReferenceRow(Frozen):
    """One key in both sets."""

    key: dict[str, JsonValue]
    state: State
    """`newly saturated` where requests pile up in a current run, and in none of the reference at
    the same rate."""

    reference_runs: tuple[str, ...]
    """Ids of runs that count."""

    current_runs: tuple[str, ...]

    reference_status: str
    """How they ended, each ending once; empty without runs."""

    current_status: str
    imported: bool = False
    """Whether either side was measured by another program."""

    figures: tuple[ReferenceFigure, ...] = ()
    reasons: tuple[str, ...] = ()
    """Why the current runs failed, where they did."""

    differing: tuple[Difference, ...] = ()
    """Arguments and facts of the environment that differ, except those of all rows."""

    @property
    def worse(self) -> bool:
        """Whether something looks worse than in the reference."""
        newly = self.state in ("newly failing", "newly saturated")
        return newly or any(one.verdict == "worse" for one in self.figures)


class ReferenceComparison(Document):
    """The document of `accel-bench results regressions`."""

    reference: str
    """What was compared with."""

    tolerance: float
    aliases: dict[str, str]
    rows: tuple[ReferenceRow, ...]

    differing: tuple[Difference, ...]
    """What differs in every row that both sets have, in the same way."""

    worse: int
    """Rows in which something looks worse."""

    exit_code: int
    """1 where there are any, else 0."""
