"""Waterfalls as bars: the time difference between the steps of two stacks, by phase."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from accel_bench.analysis.metrics.breakdown import Phases, TimeChange
from accel_bench.analysis.metrics.throughput import unit_of
from accel_bench.analysis.schema import ExperimentSummary
from accel_bench.analysis.wording import milliseconds

if TYPE_CHECKING:
    from accel_bench_report.page.model import RowView

PHASES = ("data", "forward", "backward", "optimizer")
"""Phases of a step that engines mark, in order."""

IDLE = "idle and other"
"""Name of time outside all phases: waiting, and host work between phases."""


MOST_ROWS = 12
"""Maximum number of rows with bars; the table has all rows."""


class Waterfall(NamedTuple):
    """Time difference between the steps of stacks A and B, by phase."""

    a: float
    """Milliseconds per unit of A in its measured window."""

    b: float
    """Milliseconds per unit of B in its measured window."""

    bars: dict[str, TimeChange]
    """Milliseconds per unit of A and B by phase; they add up to `a` and `b`."""

    unit: str
    """Unit of work: a step, or 1,000 tokens."""

    tokens: float
    """Real tokens in one unit."""

    compile_seconds: float
    """Compilation seconds of B minus A's, once per run."""

    @property
    def compile_text(self) -> str:
        """Compilation seconds as text with their unit."""
        return f"{self.compile_seconds:.3g} s"


def waterfall(a: ExperimentSummary, b: ExperimentSummary) -> Waterfall | None:
    """Return the time difference of two stacks by phase; None if one lacks phases, tokens or speed.

    Times are of the measured window, divided in proportion to the phases of steps after it.
    The unit is a step if steps of both have equally many real tokens, else 1,000 tokens.
    """
    if not (a.phases and b.phases and a.tokens and b.tokens):
        return None
    if not (a.tokens_per_second and b.tokens_per_second):
        return None
    tokens, unit = unit_of([row.tokens.per_step_global.real for row in (a, b) if row.tokens])
    totals = [1000 * tokens / row.tokens_per_second.median for row in (a, b)
              if row.tokens_per_second]  # fmt: skip
    parts = [_parts(p, t) for p, t in zip((a.phases, b.phases), totals, strict=True)]
    bars = {name: TimeChange.over((parts[0][name], parts[1][name])) for name in (*PHASES, IDLE)}
    return Waterfall(
        a=totals[0],
        b=totals[1],
        bars={name: bar for name, bar in bars.items() if bar.a or bar.b},
        unit=unit,
        tokens=tokens,
        compile_seconds=_compiling(b) - _compiling(a),
    )


def _parts(phases: Phases, total: float) -> dict[str, float]:
    """Return milliseconds by phase, which add up to `total`, the milliseconds of a unit of work.

    Medians of phases may slightly exceed the median of the step; their shares are scaled down.
    """
    known = {name: getattr(phases, name) or 0.0 for name in PHASES}
    whole = max(phases.step_seconds, sum(known.values()))
    shares = {name: seconds / whole for name, seconds in known.items()}
    shares[IDLE] = max(0.0, 1.0 - sum(shares.values()))
    return {name: share * total for name, share in shares.items()}


def _compiling(row: ExperimentSummary) -> float:
    return (row.start_up.compile_seconds if row.start_up else None) or 0.0


class BarView(NamedTuple):
    """One bar of a waterfall, with its position in percent of the chart's width."""

    name: str
    left: str
    width: str
    value: str
    kind: str = ""
    colour: int | None = None
    """Colour number of a bar of a whole step; None for a phase."""


class WaterfallView(NamedTuple):
    """Waterfall from the baseline's step time to a row's step time, ready for rendering."""

    row: RowView
    fall: Waterfall
    bars: Sequence[BarView]

    added: str
    """Compilation time beyond the baseline's, per unit, spread over the tokens of a job."""

    both: str


def waterfalls(rows: Sequence[RowView], baseline: str, tokens: float) -> list[WaterfallView]:
    """Return waterfalls of ranked rows; compile time is spread over a job of `tokens` tokens."""
    pairs = [(row, fall) for row in rows if (fall := row.row.waterfall)]
    return [_view(row, fall, baseline, tokens) for row, fall in pairs[:MOST_ROWS]]


def _view(row: RowView, fall: Waterfall, baseline: str, tokens: float) -> WaterfallView:
    added = 1000 * fall.compile_seconds * fall.tokens / tokens
    bars = list(_bars(row, fall, baseline))
    return WaterfallView(row, fall, bars, _added(added), f"{_ms(fall.b + added)} ms")


def _bars(row: RowView, fall: Waterfall, baseline: str) -> Iterator[BarView]:
    heights = list(accumulate((bar.change for bar in fall.bars.values()), initial=fall.a))
    most = max(*heights, fall.b)
    yield BarView(baseline, "0", share_of(fall.a, most), f"{_ms(fall.a)} ms", colour=0)
    for (name, bar), ends in zip(fall.bars.items(), pairwise(heights), strict=True):
        low, high = sorted(ends)
        kind = "less" if bar.change <= 0 else "worse"
        width = share_of(high - low, most)
        yield BarView(name, share_of(low, most), width, _added(bar.change), kind)
    yield BarView(row.stack, "0", share_of(fall.b, most), f"{_ms(fall.b)} ms", colour=row.colour)


def _added(value: float) -> str:
    """Return milliseconds as text with their sign and unit."""
    sign = "" if abs(value) < 0.01 else "-" if value < 0 else "+"
    return f"{sign}{_ms(abs(value))} ms"


def _ms(value: float) -> str:
    if value < 1:
        return f"{value:.2f}" if value >= 0.01 else "<0.01" if value else "0"
    return milliseconds(value / 1000)


def share_of(value: float, most: float) -> str:
    """Return the width of a bar of `value` as text, in percent of the longest bar, `most`."""
    return f"{max(0.0, 100 * value / most):.2f}" if most else "0"
