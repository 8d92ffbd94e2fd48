"""View of `profile --against`: the milliseconds by which two stacks differ, by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from accel_bench.analysis.metrics.breakdown import TimeChange
from accel_bench.analysis.wording import count, join_names, percent
from accel_bench.report.table import Column, Line, Report, Section, Table, columns_of, paths, reader
from accel_bench_profile.figures.modules import OUTSIDE
from accel_bench_profile.figures.waterfall import ADDS_UP
from accel_bench_profile.figures.waterfall_schema import (
    ModuleChange,
    ProfileWaterfall,
    WaterfallReport,
)

UNEXPLAINED = "unexplained"
"""Name of the bar of time outside of modules and operations."""

BAR = 12
"""Characters of the longest bar: `<` is faster, `>` slower, `=` hardly changed."""

SMALL = 0.002
"""Fraction of A's step below which changes of modules share one row."""

MOST_MODULES = 10
"""Maximum number of shown modules without a significant change."""


def waterfall_view(report: WaterfallReport, top: int = MOST_MODULES) -> Report:
    """Return the report: for each waterfall a conclusion, bars by kind, and bars by module.

    A module whose change may be noise has a bar of its own only if it is among the `top` largest
    changes.
    """
    rows = [line for waterfall in report.waterfalls for line in _lines(waterfall)]
    sections = [_section(waterfall, top) for waterfall in report.waterfalls]
    if report.missing:
        sections.append(Section(title="no waterfall", notes=report.missing))
    return Report(sections, report, Table(FLAT, rows))


def _section(one: ProfileWaterfall, top: int) -> Section:
    swept = f" ({one.sweep})" if one.sweep else ""
    most = max(abs(line.change.change) for line in _lines(one))
    kinds, modules = [(bar.kind, bar) for bar in one.kinds], _module_rows(one, top)
    rest = [(UNEXPLAINED, one.unexplained), ("measured", one.difference)]
    return Section(
        title=f"{one.scenario}{swept}: {one.a} to {one.b}",
        headline=answer(one),
        tables=[
            Table(_columns(one, "kind of operation", most), [*kinds, *rest], "by kind"),
            Table([*_columns(one, "module", most), MOSTLY], [*modules, *rest], "by module"),
        ],
        notes=list(_notes(one)),
    )


def answer(one: ProfileWaterfall) -> str:
    """Return a sentence on how B's time differs from A's, and on the modules that changed."""
    difference = one.difference
    faster = "less" if difference.change < 0 else "more"
    share = percent(abs(difference.change) / difference.a)
    said = (
        f"{one.b} takes {_ms(abs(difference.change))} ms {faster} than {one.a} for {one.unit} "
        f"({share})"
    )
    if one.rounds < 2:
        said += "; nothing is sure with one round"
    elif not difference.is_sure:
        said += ", which is within the noise of these rounds"
    sides = (("gained", _named(one, one.gained)), ("lost", _named(one, one.lost)))
    named = [f"{word}: {join_names(names, 3)}" for word, names in sides if names]
    return "; ".join([said, *(named or ["no module gained or lost for sure"])]) + "."


def _named(one: ProfileWaterfall, modules: Sequence[str]) -> list[str]:
    by_name = {change.module: change for change in one.modules}
    return [f"{_title(name)} {_signed(by_name[name].change)} ms" for name in modules]


def _title(module: str) -> str:
    return "the optimizer and what else runs in no module" if module == OUTSIDE else module


def _columns(one: ProfileWaterfall, title: str, most: float) -> list[Column]:
    def bar(row: tuple[str, TimeChange]) -> str:
        size = round(BAR * abs(row[1].change) / most) if most else 0
        return ("<" if row[1].change < 0 else ">") * size or "="

    def number(key: str, head: str, unit: str, form: Any) -> Column:
        return Column(key, lambda row: reader(key)(row[1]), head, unit, form, "number")

    return [
        Column("name", lambda row: row[0], title, kind="name"),
        number("a", one.a, "ms", _ms),
        number("b", one.b, "ms", _ms),
        number("change", "change", "ms", _signed),
        Column("interval", lambda row: _interval(row[1]), "95 % interval", "ms", kind="number"),
        Column("bar", bar, "", kind="word"),
    ]


def _module_rows(one: ProfileWaterfall, top: int) -> Iterator[tuple[str, TimeChange]]:
    """Yield name and change of each module's bar; small changes share one row.

    A module whose change may be noise has a row of its own only if it is among the `top` largest
    changes.
    """
    named = {*one.gained, *one.lost}
    rest = [
        bar
        for place, bar in enumerate(one.modules)  # the largest change first
        if bar.module not in named and (place >= top or abs(bar.change) < SMALL * one.difference.a)
    ]
    if len(rest) < 2:
        rest = []
    yield from ((bar.module, bar) for bar in one.modules if bar not in rest)
    if rest:
        a, b = sum(m.a for m in rest), sum(m.b for m in rest)
        hardly = all(abs(bar.change) < SMALL * one.difference.a for bar in rest)
        what = "that hardly change" if hardly else "that change less"
        yield f"{count(len(rest), 'module')} {what}", TimeChange.over((a, b))


def _lines(one: ProfileWaterfall) -> Iterator[Line]:
    """Yield a CSV line for each bar."""
    line = partial(Line, waterfall=one)
    yield from (line(by="kind", name=bar.kind, change=bar) for bar in one.kinds)
    yield from (line(by="module", name=bar.module, change=bar) for bar in one.modules)
    yield line(by="rest", name=UNEXPLAINED, change=one.unexplained)
    yield line(by="measured", name="measured", change=one.difference)


def _notes(one: ProfileWaterfall) -> Iterator[str]:
    yield adding_up(one)
    yield (
        f"measured: windows that nothing recorded, {one.rounds} interleaved "
        f"{'round' if one.rounds == 1 else 'rounds'}; the parts are in the proportions of recorded "
        f"steps, which took {one.inflation.a:.2f} times ({one.a}) and {one.inflation.b:.2f} times "
        f"({one.b}) as long"
    )
    yield (
        f"recording an event costs {1e6 * one.event_seconds:.1f} us, by how much longer recorded "
        "steps took; that is taken off"
    )
    yield from one.notes
    if one.folders:
        yield f"traces: {', '.join(one.folders)} (tensorboard --logdir, or ui.perfetto.dev)"


def adding_up(one: ProfileWaterfall) -> str:
    """Return a sentence on how much of the difference the parts explain."""
    rest = f"{_signed(one.unexplained.change)} ms lie in no module and no operation"
    if one.explained is None:
        return f"no difference that has to be explained; {rest}"
    if one.rounds < 2:
        return f"one round has no interval: take more with --rounds; {rest}"
    if not one.difference.is_sure:
        return f"the difference is not sure: take more rounds with --rounds; {rest}"
    if one.explained >= 1 - ADDS_UP:
        return f"the parts explain {percent(one.explained)} of the difference"
    return (
        f"the parts do not explain all of the difference: {rest}, in the loop around the model, "
        "its batches, or the profiler"
    )


def _mostly(row: tuple[str, TimeChange]) -> str:
    change = row[1]
    if not isinstance(change, ModuleChange):
        return ""
    kind = next(iter(change.kinds), "")
    direction = next(iter(change.directions), "")
    return ", ".join(filter(None, (kind, direction, change.mostly)))


MOSTLY = Column("mostly", _mostly, "mostly", kind="text")


def _interval(change: TimeChange) -> str | None:
    if change.low is None or change.high is None:
        return None
    return f"{_signed(change.low)} to {_signed(change.high)}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f}" if abs(seconds) < 0.1 else f"{1000 * seconds:,.1f}"


def _signed(seconds: float) -> str:
    text = _ms(abs(seconds))
    return text if not float(text.replace(",", "")) else f"{'-' if seconds < 0 else '+'}{text}"


FLAT = (
    *columns_of(ProfileWaterfall, "waterfall", names="scenario sweep a b unit rounds"),
    *paths("", "by name"),
    *columns_of(TimeChange, "change", "{}_seconds"),
)
"""CSV columns: a row for each bar."""
