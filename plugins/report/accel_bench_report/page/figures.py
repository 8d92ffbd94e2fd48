"""Plots of the ranked rows of a page; captions say which rows are missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from accel_bench.analysis.metrics.utilization import peak_flops_of, utilization
from accel_bench.analysis.statistics.estimators import Interval, positive_interval
from accel_bench.analysis.wording import group_label, label, rate_unit, too_wide
from accel_bench.report.views.run_table import speed_unit
from accel_bench.result import EARLIEST
from accel_bench.scenario.uses import CALLS
from accel_bench_report.page.plots import (
    MOST_POINTS,
    Plot,
    Point,
    Series,
    curves,
    dated,
    pareto,
    scatter,
    strips,
)
from accel_bench_report.page.scenario import ScenarioPage
from accel_bench_report.page.sweeps import MOST_SERIES, left_out, named_for_plots, sweep_plots
from accel_bench_report.sweep import scaling_of
from accel_bench_report.tables.overview import OverviewRow

if TYPE_CHECKING:
    from accel_bench_report.page.model import RowView
    from accel_bench_report.tables.scaling import ScalingPoint

MOST_HISTORIES = 6
"""Maximum number of scenarios with a plot of their history."""

MEMORY_UNITS = {"rss_above_imports": "host MiB above imports", "allocated": "MiB of tensors"}
"""Units of peak memory by kind of memory."""

EACH = "Each dot is a process, the bar the 95 % interval of the estimate at its mark."


def figures_of(one: ScenarioPage, rows: Sequence[RowView]) -> list[Plot]:
    """Return the plots of the scenario with the page data `one`, except plots without data."""
    ranked, end = named_for_plots([row for row in rows if not row.why])
    shown = ranked[:MOST_SERIES]
    end += left_out(len(ranked))
    plots = [*_speed(one, shown, end), *_ratio(shown, one.summary.baseline, end)]
    trained = [row for row in shown if row.row.summary.counts != CALLS]
    return [
        *plots,
        *_loss(trained, end),
        *_efficiency(trained, end),
        *_steps(trained, end),
        *_validation(one, shown),
        *_memory(one, ranked),
        *_scaling(one, shown),
        *sweep_plots(one, ranked),
    ]


def history_of(rows: Sequence[OverviewRow], numbers: Mapping[str, int]) -> list[Plot]:
    """Return a plot of speed over time for each scenario with several commands, newest first.

    `numbers` maps stacks to their colour numbers on the page.
    """
    plots = []
    several = [row for row in rows if len(row.speeds) > 1 and row.newest != EARLIEST]
    scenarios = dict.fromkeys(
        row.scenario for row in sorted(several, key=lambda row: row.newest, reverse=True)
    )
    for scenario in list(scenarios)[:MOST_HISTORIES]:
        own = [row for row in several if row.scenario == scenario]
        series = [
            Series(
                _series_name(row, own),
                numbers.get(row.stack, 0),
                [(_seconds(started_at), speed) for started_at, speed in row.speeds],
            )
            for row in own[:MOST_SERIES]
        ]
        longest = max(len(row.speeds) for row in own)
        thin = f" Of {longest} commands {MOST_POINTS} are drawn." if longest > MOST_POINTS else ""
        caption = (
            "Each dot is the median of a command's processes. Versions may have "
            f"changed between them: no verdict rests on this.{thin}{left_out(len(own))}"
        )
        plots.append(dated(f"{scenario} over time", caption, series, rate_unit([own[0].counts])))
    return plots


def hardware_of(rows: Sequence[OverviewRow], numbers: Mapping[str, int]) -> Iterator[Plot]:
    """Yield a plot of step time for each scenario that ran on several kinds of hardware.

    `numbers` maps stacks to their colour numbers on the page.
    """
    timed = sorted((row for row in rows if row.device and row.step_seconds), key=lambda r: r.device)
    for scenario in list(dict.fromkeys(row.scenario for row in timed))[:MOST_HISTORIES]:
        own = [row for row in timed if row.scenario == scenario]
        devices = list(dict.fromkeys(row.device for row in own))
        if len(devices) < 2:
            continue
        series = [
            Series(
                _series_name(row, own),
                numbers.get(row.stack, 0),
                [(1000 * seconds, 0.0) for seconds in row.step_seconds],
                shape=devices.index(row.device),
            )
            for row in own[:MOST_SERIES]
        ]
        caption = (
            "Each dot is the median step of a command's processes. Versions may differ between "
            f"machines: no verdict rests on this.{left_out(len(own))}"
        )
        yield strips(f"{scenario} by hardware", caption, series, "milliseconds a step")


def _series_name(row: OverviewRow, rows: Sequence[OverviewRow]) -> str:
    """Return the name of a row's line in a plot: stack, sweep point, and the device if several."""
    devices = {other.device for other in rows}
    return " ".join(filter(None, (row.stack, row.point, row.device if len(devices) > 1 else "")))


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


def _speed(one: ScenarioPage, rows: Sequence[RowView], end: str) -> Iterator[Plot]:
    series = [
        Series(
            row.name,
            row.number,
            [(speed.tokens_per_second, 0.0) for speed in row.row.runs.speeds.values()],
            _band(row.row.summary.tokens_per_second),
            shape=row.shape,
        )
        for row in rows
    ]
    if series:
        unit = speed_unit(one.summary)
        what = "Real tokens" if unit == "tokens/s" else unit.removesuffix("/s").capitalize()
        end = _too_wide(row.row.summary.tokens_per_second for row in rows) + end
        yield strips("Speed", f"{what} per second, global. {EACH}{end}", series, unit)


def _ratio(rows: Sequence[RowView], baseline: str, end: str) -> Iterator[Plot]:
    """Yield the plot of ratios to the baseline, a dot for each round; no plot without ratios.

    `end` has the last sentences of the caption.
    """
    bases = {
        row.row.runs.planned.experiment.point: row.row.runs for row in rows if row.stack == baseline
    }
    series = []
    for row in rows:
        runs, ratio = row.row.runs, row.row.summary.ratio
        base = bases.get(runs.planned.experiment.point)
        if base is None or row.stack == baseline or ratio is None:
            continue
        seconds, others = base.quantity.costs, runs.quantity.costs
        values = [seconds[key] / others[key] for key in others if key in seconds]
        dots = [(value, 0.0) for value in values]
        series.append(Series(row.name, row.number, dots, _band(ratio), shape=row.shape))
    if series:
        times = rows[0].row.summary.words.times
        by = rows[0].row.summary.quantity.by
        caption = (
            f"{times.capitalize()} as {baseline}{by}: each dot is a round, the bar the verdict's "
            f"interval.{_too_wide(row.row.summary.ratio for row in rows)}{end}"
        )
        yield strips(times.capitalize(), caption, series, f"{times} as {baseline}", line=1.0)


def _loss(rows: Sequence[RowView], end: str) -> Iterator[Plot]:
    series = []
    for row in rows:
        first = next(iter(row.row.runs.speeds.values()), None)
        losses = enumerate(first.losses) if first else ()
        points = [(float(step), x) for step, x in losses if x is not None and math.isfinite(x)]
        if len(points) > 1:
            series.append(Series(row.name, row.number, points, shape=row.shape))
    if series:
        caption = "The first round of each stack, warm-up included; lines that cover one another "
        yield curves("Loss", f"{caption}are equal.{end}", series, ("step", "loss"))


def _efficiency(rows: Sequence[RowView], end: str) -> Iterator[Plot]:
    """Yield the plot of the MFU of each run, for stacks with known FLOPs and known peak FLOP/s.

    `end` has the last sentences of the caption.
    """
    series = []
    for row in rows:
        runs = row.row.runs.completed.values()
        used = [utilization(run, peak_flops_of(run)) for run in runs]
        values = [100 * usage.mfu.causal for usage in used if usage and usage.mfu]
        if values:
            dots = [(value, 0.0) for value in values]
            band = _band(positive_interval(values))
            series.append(Series(row.name, row.number, dots, band, shape=row.shape))
    if series:
        caption = f"Model FLOP/s over the device's dense peak (MFU), attention causal. {EACH}{end}"
        yield strips("Efficiency", caption, series, "% MFU")


def _steps(rows: Sequence[RowView], end: str) -> Iterator[Plot]:
    """Yield the plot of milliseconds of each step of a stack's first run, on the slowest rank.

    `end` has the last sentences of the caption.
    """
    series = []
    for row in rows:
        run = next(iter(row.row.runs.completed.values()), None)
        windows = [rank.window for rank in run.ranks if rank.window] if run else []
        seconds: dict[float, float] = {}
        for sample in (sample for window in windows for sample in window.samples):
            seconds[sample.step] = max(sample.seconds, seconds.get(sample.step, 0.0))
        if len(seconds) > 1:
            points = [(step, 1000 * seconds[step]) for step in sorted(seconds)]
            series.append(Series(row.name, row.number, points, shape=row.shape))
    if series:
        caption = f"The measured window of the first round of each stack, without warm-up.{end}"
        yield curves("Time of each step", caption, series, ("step", "milliseconds"))


def _validation(one: ScenarioPage, rows: Sequence[RowView]) -> Iterator[Plot]:
    """Yield the plot of validation loss against seconds of training, a line for each stack."""
    numbers = {row.stack: row.number for row in rows}
    series = []
    for learned in one.learning.experiments if one.learning else ():
        known = [(point.seconds, point.loss) for point in learned.curve if point.loss is not None]
        if learned.loss_kind == "validation" and learned.stack in numbers and len(known) > 1:
            name = label(learned)
            series.append(Series(name, numbers[learned.stack], known))
    if series:
        caption = (
            "On samples that are not trained on, the mean over runs; seconds are those of training "
            f"steps.{left_out(len(series))}"
        )
        axes = ("seconds of training", "validation loss")
        yield curves("Validation loss", caption, series[:MOST_SERIES], axes)


def _memory(one: ScenarioPage, rows: Sequence[RowView]) -> Iterator[Plot]:
    """Yield the plot of throughput against memory, with its Pareto frontier."""
    points = [
        (row, (summary.peak_memory_bytes / 2**20, summary.tokens_per_second.median))
        for row in rows[: 4 * MOST_SERIES]
        if (summary := row.row.summary).peak_memory_bytes and summary.tokens_per_second
    ]
    if len(points) < 2:
        return
    series = [Series(row.name, row.number, [point], shape=row.shape) for row, point in points]
    frontier = pareto(point for _, point in points)
    caption = "Up is faster, left needs less memory. " + (
        "The dashed line joins the stacks that no other beats in both."
        if len(frontier) > 1
        else f"No other beats {points[[p for _, p in points].index(frontier[0])][0].name} in both."
    )
    kinds = {row.row.summary.peak_memory_kind for row, _ in points}
    memory = memory_unit(kinds.pop() if len(kinds) == 1 else "")
    names = (f"peak memory, {memory}", speed_unit(one.summary))
    yield scatter("Speed and memory", caption, series[:MOST_SERIES], names, frontier)


def memory_unit(kind: str | None) -> str:
    """Return the unit of peak memory, such as `MiB of tensors`; `MiB` for an unknown kind."""
    return MEMORY_UNITS.get(kind or "", "MiB")


def _scaling(one: ScenarioPage, rows: Sequence[RowView]) -> Iterator[Plot]:
    """Yield a plot of speed over devices, and one of step time divided by the fewest devices'."""
    caption = "Measured points alone; what is estimated for more devices stands in its table."
    series = [*_over_devices(one, rows, lambda point: point.figure.tokens_per_second)]
    if series:
        yield curves("Scaling", caption, series, ("devices", "tokens/s"), dots=True)
    if series := [*_over_devices(one, rows, lambda point: point.relative_step_seconds)]:
        caption = "Elapsed time of a step over that of the fewest devices: 1 is as long."
        names = ("devices", "relative elapsed time")
        yield curves("Elapsed time", caption, series, names, dots=True)


def _over_devices(
    one: ScenarioPage, rows: Sequence[RowView], read: Callable[[ScalingPoint], Interval | None]
) -> Iterator[Series]:
    """Yield for each scaled stack a line over numbers of devices; `read` returns the y values."""
    numbers = {row.stack: row.number for row in rows}
    for scaling in scaling_of(one.summary):
        known = ((float(point.figure.world_size), read(point)) for point in scaling.points)
        points: list[Point] = [(size, figure.median) for size, figure in known if figure]
        if len(points) > 1:
            name = group_label(scaling.stack, scaling.sweep)
            yield Series(name, numbers.get(scaling.stack, 0), points)


def _too_wide(intervals: Iterable[Interval | None]) -> str:
    """Return a caption's sentence about intervals too wide to draw; empty if there are none."""
    left_out = any(interval is not None and too_wide(interval) for interval in intervals)
    return " Intervals that reach to twice the estimate are left out." if left_out else ""


def _band(interval: Interval | None) -> tuple[float, float, float] | None:
    """Return an estimate with its lower and upper end; None for an unknown or too wide interval."""
    if interval is None or interval.low is None or interval.high is None or too_wide(interval):
        return None
    return interval.median, interval.low, interval.high
