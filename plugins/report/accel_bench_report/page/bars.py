"""Bars of a page: where the time of a step goes, and what holds the memory at the peak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from accel_bench.analysis.wording import milliseconds, percent, size
from accel_bench_report.page.memory_parts import IMPORTS, MemoryAtPeak
from accel_bench_report.page.waterfall import Waterfall

if TYPE_CHECKING:
    from accel_bench_report.page.model import RowView

MOST_ROWS = 12
"""Rows that have bars; the table has all."""


class BarView(NamedTuple):
    """One bar of a waterfall; its place in percent of the track."""

    name: str
    left: str
    width: str
    value: str
    kind: str = ""
    colour: int | None = None

    @property
    def total(self) -> bool:
        """True if it is a whole step, not a part of one."""
        return self.colour is not None


class WaterfallView(NamedTuple):
    """From the baseline's time to a row's."""

    row: RowView
    unit: str
    tokens: float
    window: float
    bars: Sequence[BarView]

    compile: float
    """Seconds in the compiler, more than the baseline; 0 where neither compiled."""

    compile_text: str
    added: str
    both: str


class PartView(NamedTuple):
    """One kind of memory."""

    name: str
    size: str
    width: str
    shade: int


class MemoryView(NamedTuple):
    """Memory of one row at its peak."""

    row: RowView
    text: str
    parts: Sequence[PartView]
    """Kinds beside what the imports took."""


def waterfalls(rows: Sequence[RowView], baseline: str, tokens: float) -> list[WaterfallView]:
    """Return a waterfall for each ranked row that has one; compiling is spread over `tokens`."""
    found = [(row, row.row.waterfall) for row in rows if row.row.waterfall]
    return [_view(row, fall, baseline, tokens) for row, fall in found[:MOST_ROWS] if fall]


def _view(row: RowView, fall: Waterfall, baseline: str, tokens: float) -> WaterfallView:
    added = 1000 * fall.compile_seconds * fall.tokens / tokens
    return WaterfallView(
        row=row,
        unit=f"for {fall.unit}",
        tokens=fall.tokens,
        window=fall.b,
        bars=list(_bars(row, fall, baseline)),
        compile=fall.compile_seconds,
        compile_text=f"{fall.compile_seconds:.3g} s",
        added=_added(added),
        both=f"{_ms(fall.b + added)} ms",
    )


def _bars(row: RowView, fall: Waterfall, baseline: str) -> Iterator[BarView]:
    most = max(_reach(fall))
    yield BarView(baseline, "0", _share(fall.a, most), f"{_ms(fall.a)} ms", colour=0)
    at = fall.a
    for bar in fall.bars:
        low, high = sorted((at, at + bar.change))
        kind = "less" if bar.change <= 0 else "worse"
        width = _share(high - low, most)
        yield BarView(bar.name, _share(low, most), width, _added(bar.change), kind)
        at += bar.change
    yield BarView(row.stack, "0", _share(fall.b, most), f"{_ms(fall.b)} ms", colour=row.colour)


def _reach(fall: Waterfall) -> Iterator[float]:
    """Yield every height that the way from A to B has."""
    at = fall.a
    yield from (fall.a, fall.b)
    for bar in fall.bars:
        at += bar.change
        yield at


def _added(value: float) -> str:
    """Return milliseconds that something adds or saves, with their sign."""
    sign = "" if abs(value) < 0.01 else "-" if value < 0 else "+"
    return f"{sign}{_ms(abs(value))} ms"


def _ms(value: float) -> str:
    return (
        "0"
        if value == 0
        else "<0.01"
        if value < 0.01
        else f"{value:.2f}"
        if value < 1
        else milliseconds(value / 1000)
    )


def _share(value: float, most: float) -> str:
    return f"{max(0.0, 100 * value / most):.2f}" if most else "0"


def memory_views(rows: Sequence[RowView]) -> tuple[list[MemoryView], str]:
    """Return the memory of each completed row on one scale, and what the bars leave out.

    A bar begins after the imports, which take as much with every stack, and more than small models.
    """
    found = [(row, row.row.memory) for row in rows if row.row.memory and not row.row.why_not_ranked]
    shown = [(row, memory) for row, memory in found[:MOST_ROWS] if memory]
    most = max((_drawn(memory) for _, memory in shown), default=0)
    note = f"The longest bar is {size(most)}." if any(one.capacity for _, one in shown) else ""
    if any(memory.imports for _, memory in shown):
        note = f"A bar begins after the imports. {note}".rstrip()
    return [_memory_view(row, memory, most) for row, memory in shown], note


def _drawn(memory: MemoryAtPeak) -> int:
    return memory.peak - memory.imports


def _memory_view(row: RowView, memory: MemoryAtPeak, most: int) -> MemoryView:
    whole = ", the whole process" if memory.place == "host" else ""
    imports = f", {size(memory.imports)} of it imports" if memory.imports else ""
    left = ""
    if memory.headroom is not None and memory.capacity:
        share = percent(memory.headroom / memory.capacity)
        left = f", {size(memory.headroom)} ({share}) of the {memory.place}'s left"
    drawn = [part for part in memory.parts if part.name != IMPORTS]
    parts = [
        PartView(
            part.name,
            size(part.bytes),
            _share(part.bytes, most),
            round(30 + 70 * (number + 1) / len(drawn)),
        )
        for number, part in enumerate(drawn)
    ]
    return MemoryView(row, f"{size(memory.peak)} at the peak{whole}{imports}{left}", parts)
