"""Plots of speed over a swept number, such as the micro-batch size: a line for each stack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from accel_bench.analysis.wording import join_names, plain_value
from accel_bench.documents.base import JsonValue
from accel_bench.documents.canonical import canonical_json
from accel_bench.report.views.run_table import speed_unit
from accel_bench_report.page.plots import Plot, Series, curves
from accel_bench_report.page.scenario import ScenarioPage

if TYPE_CHECKING:
    from accel_bench_report.page.model import RowView

DEVICES = "resources.devices"
"""Swept key that is left out, since scaling has its own plot."""

MOST_SERIES = 16
"""Maximum number of series in a plot; more are indistinguishable."""

Sweep = Mapping[str, JsonValue]


def named_for_plots(rows: Sequence[RowView]) -> tuple[list[RowView], str]:
    """Return rows with names short enough for plots, and a sentence for the caption.

    With several sweep points, a name is the stack's name with the swept values, without keys.
    """
    sweeps = [row.row.summary.sweep for row in rows]
    keys = [key for key in dict.fromkeys(name for sweep in sweeps for name in sweep)
            if len({canonical_json(sweep.get(key)) for sweep in sweeps}) > 1]  # fmt: skip
    if not keys:
        return [*rows], ""
    points = list(dict.fromkeys(canonical_json(dict(sweep)) for sweep in sweeps))
    named = [
        replace(row, name=_with_values(row.stack, sweep, keys),
                shape=points.index(canonical_json(dict(sweep))))
        for row, sweep in zip(rows, sweeps, strict=True)
    ]  # fmt: skip
    return named, f" {_legend(keys)}"


def _with_values(stack: str, sweep: Sweep, keys: Sequence[str]) -> str:
    return f"{stack} {', '.join(plain_value(sweep.get(key)) for key in keys)}".rstrip()


def _legend(keys: Sequence[str]) -> str:
    return f"Behind each stack stands its {join_names(keys)}."


def left_out(series: int) -> str:
    """Return a caption's sentence on how many of `series` series a plot omits; empty for none."""
    more = series - MOST_SERIES
    return f" {more} more series are left out." if more > 0 else ""


def sweep_plots(one: ScenarioPage, rows: Sequence[RowView]) -> Iterator[Plot]:
    """Yield a plot of speed for each swept key whose values are numbers."""
    sweeps = [row.row.summary.sweep for row in rows]
    done: set[str] = {DEVICES}
    for key in _numeric_keys(sweeps):
        if key in done:
            continue
        tied = _tied(key, sweeps)
        done |= tied
        lines = list(_lines(rows, key, tied))
        if lines:
            more = left_out(len(lines))
            if others := [name for sweep in sweeps for name in sweep if name not in tied]:
                more = f" {_legend(list(dict.fromkeys(others)))}{more}"
            caption = f"A dot is the estimate at a sweep point; lines only join them.{more}"
            axes = (key, speed_unit(one.summary))
            yield curves(f"Speed over {key}", caption, lines[:MOST_SERIES], axes, dots=True)


def _numeric_keys(sweeps: Sequence[Sweep]) -> list[str]:
    """Return the swept keys with several values, all of them numbers."""
    values: dict[str, list[JsonValue]] = {}
    for sweep in sweeps:
        for key, value in sweep.items():
            values.setdefault(key, []).append(value)
    return [
        key
        for key, known in values.items()
        if len({*map(str, known)}) > 1
        and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)
    ]


def _tied(key: str, sweeps: Sequence[Sweep]) -> set[str]:
    """Return `key` and the swept keys zipped to it: those whose value is determined by the value
    of `key`."""
    names = {name for sweep in sweeps for name in sweep}
    values = {name: {canonical_json([sweep.get(key), sweep.get(name)]) for sweep in sweeps}
              for name in names}  # fmt: skip
    return {name for name in names if len(values[name]) == len(values[key])}


def _lines(rows: Sequence[RowView], key: str, tied: set[str]) -> Iterator[Series]:
    """Yield a line over `key` for each stack and each combination of the other swept values.

    `tied` are `key` and the keys zipped to it.
    """
    grouped: dict[tuple[str, str], list[RowView]] = {}
    for row in rows:
        sweep = row.row.summary.sweep
        others = {name: value for name, value in sweep.items() if name not in tied}
        grouped.setdefault((row.stack, canonical_json(others)), []).append(row)
    choices = list(dict.fromkeys(choice for _, choice in grouped))
    for (stack, choice), own in grouped.items():
        points = [
            (float(str(row.row.summary.sweep[key])), speed.median)
            for row in own
            if key in row.row.summary.sweep and (speed := row.row.summary.tokens_per_second)
        ]
        if len(points) > 1:
            rest = {n: v for n, v in own[0].row.summary.sweep.items() if n not in tied}
            shape = choices.index(choice)
            name = _with_values(stack, rest, list(rest))
            yield Series(name, own[0].number, sorted(points), shape=shape)
