"""Where the time goes: from the step of one stack to that of another, part by part, as bars."""

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
"""Parts of a step that engines mark, in their order."""

IDLE = "idle and other"
"""What no mark covers: waiting, and the host's own work between the parts."""


MOST_ROWS = 12
"""Rows that have bars; the table has all."""


class Waterfall(NamedTuple):
    """Parts of a step in which B gains or loses time against A."""

    a: float
    """Milliseconds of the unit that A takes in its window."""

    b: float
    """The same of B."""

    bars: dict[str, TimeChange]
    """Milliseconds of the unit by part of a step; they add up to both."""

    unit: str
    """What the milliseconds are for."""

    tokens: float
    """Real tokens of the unit."""

    compile_seconds: float
    """What B spends in the compiler once, more than A; below 0 it saves that."""

    @property
    def compile_text(self) -> str:
        """These seconds as people read them."""
        return f"{self.compile_seconds:.3g} s"


def waterfall(a: ExperimentSummary, b: ExperimentSummary) -> Waterfall | None:
    """Return the way from A's time to B's, or None where either is not split into phases.

    The time is that of the window, by the speeds of the table; its parts are in the proportion of
    the split steps, which follow the window. Where a step of both holds as many real tokens, the
    unit is a step, else 1,000 tokens.
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
    """Return milliseconds by part; medians of phases may exceed the step's by a little."""
    known = {name: getattr(phases, name) or 0.0 for name in PHASES}
    whole = max(phases.step_seconds, sum(known.values()))
    shares = {name: seconds / whole for name, seconds in known.items()}
    shares[IDLE] = max(0.0, 1.0 - sum(shares.values()))
    return {name: share * total for name, share in shares.items()}


def _compiling(row: ExperimentSummary) -> float:
    return (row.start_up.compile_seconds if row.start_up else None) or 0.0


class BarView(NamedTuple):
    """One bar of a waterfall; its place in percent of the track."""

    name: str
    left: str
    width: str
    value: str
    kind: str = ""
    colour: int | None = None
    """Colour of a whole step; parts of one have none."""


class WaterfallView(NamedTuple):
    """From the baseline's time to a row's."""

    row: RowView
    fall: Waterfall
    bars: Sequence[BarView]

    added: str
    """Time in the compiler, more than the baseline's, spread over the tokens of a job."""

    both: str


def waterfalls(rows: Sequence[RowView], baseline: str, tokens: float) -> list[WaterfallView]:
    """Return a waterfall for each ranked row that has one; compiling is spread over `tokens`."""
    found = [(row, fall) for row in rows if (fall := row.row.waterfall)]
    return [_view(row, fall, baseline, tokens) for row, fall in found[:MOST_ROWS]]


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
    """Return milliseconds that something adds or saves, with their sign."""
    sign = "" if abs(value) < 0.01 else "-" if value < 0 else "+"
    return f"{sign}{_ms(abs(value))} ms"


def _ms(value: float) -> str:
    if value < 1:
        return f"{value:.2f}" if value >= 0.01 else "<0.01" if value else "0"
    return milliseconds(value / 1000)


def share_of(value: float, most: float) -> str:
    """Return the width of a bar in percent of the longest one."""
    return f"{max(0.0, 100 * value / most):.2f}" if most else "0"
