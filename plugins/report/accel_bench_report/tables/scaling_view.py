"""Tables of scaling over devices: measured, fitted and estimated figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from accel_bench.analysis.schema import Summary
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.wording import (
    count,
    group_label,
    grouped_by_reason,
    interval_text,
    label,
    milliseconds,
    percent,
    rate,
    rate_interval,
    ratio_interval,
)
from accel_bench.report.table import (
    Column,
    Line,
    Report,
    Section,
    Table,
    columns_of,
    in_units,
    number_column,
    one_or_list,
    reader,
)
from accel_bench_report.tables.points import PointFigure
from accel_bench_report.tables.scaling import Projection, Scaling, ScalingPoint, SerialShare

WIDTH = 80
"""Width of the text in characters if the output is no terminal."""

STAYS = {
    "strong": "strong scaling, the global batch stays",
    "weak": "weak scaling, each device's batch stays",
    "mixed": "neither strong nor weak scaling, both batches change",
}
"""Names of the kinds of scaling."""


def scaling_report(found: Sequence[tuple[Summary, Sequence[Scaling]]]) -> Report:
    """Return the report of `scaling`: a section for each scenario in `found`.

    JSON has the summaries of `run`, and CSV a line for each measurement and each estimate.
    """
    rows = []
    for summary, scalings in found:
        for scaling in scalings:
            line = partial(Line, summary=summary, scaling=scaling)
            rows += [line(point=point, projection=None) for point in scaling.points]
            rows += [line(point=None, projection=projection) for projection in scaling.projections]
    return Report(
        sections=[_section(summary, scalings) for summary, scalings in found],
        document=one_or_list([summary for summary, _ in found]),
        flat=Table(FLAT, rows),
        width=WIDTH,
    )


def scaling_tables(scalings: Sequence[Scaling]) -> list[Table]:
    """Return for each stack a table of measurements, followed by a table of estimates."""
    return [table for scaling in scalings for table in _tables(scaling)]


def pairing(rows: Sequence[PointFigure]) -> list[str]:
    """Return sentences on whether ratios are paired by round, and on why ratios are missing."""
    others = [row for row in rows if row.sweep != row.reference]
    notes = [(label(row), row.verdict_reason) for row in others if row.verdict_reason]
    for row in rows:
        if row.ratio is not None:
            pairs = f"paired within {count(row.rounds, 'round')}"
            alone = "unpaired: its runs and the reference's are of different times or nodes"
            notes.append((label(row), pairs if row.paired else alone))
    return grouped_by_reason(notes)


def _section(summary: Summary, scalings: Sequence[Scaling]) -> Section:
    bad = [row for row in summary.experiments if row.reasons]
    notes = [f"{label(row)}: {'; '.join(row.reasons)}" for row in bad]
    nothing = [] if scalings else ["nothing to compare: all points have as many devices"]
    return Section(
        title=summary.scenario,
        tables=scaling_tables(scalings),
        notes=[*nothing, *summary.notices, *notes, *summary.noise],
    )


def _tables(scaling: Scaling) -> Iterator[Table]:
    name = group_label(scaling.stack, scaling.sweep)
    figures = [point.figure for point in scaling.points]
    notes = [*pairing(figures), _share(scaling)]
    if scaling.serial_share and scaling.serial_share_reason:
        notes.append(f"no estimates: {scaling.serial_share_reason}")
    columns = in_units(COLUMNS, [scaling.counts])
    yield Table(columns, scaling.points, f"{name}: {STAYS[scaling.kind]}", notes)
    if scaling.projections:
        share = scaling.serial_share
        law = f"by {share.law}'s law; intervals are those of the serial share" if share else ""
        columns = in_units(ESTIMATED, [scaling.counts])
        yield Table(columns, scaling.projections, f"{name}: estimated, not measured ({law})")


def _share(scaling: Scaling) -> str:
    """Return a sentence with the serial share of the time, or the reason for having none."""
    share = scaling.serial_share
    if share is None:
        return f"no serial share: {scaling.serial_share_reason}"
    interval = Interval(median=share.share, low=share.low, high=share.high)
    text = f"serial share, an estimate by {share.law}'s law: {percent(share.share)} of the time at "
    text += f"the smallest point ({interval_text(interval, percent)})"
    if share.sizes < 3:
        return f"{text}; two sizes fix the law, and nothing checks it"
    return f"{text}; the law is at most {percent(share.largest_deviation)} off what was measured"


def _devices(point: ScalingPoint) -> str:
    if point.devices_by_node:
        return f"{sum(point.devices_by_node)} ({' + '.join(map(str, point.devices_by_node))})"
    total = point.devices * point.nodes
    return f"{total} ({point.nodes} x {point.devices})" if point.nodes > 1 else str(total)


def _batch(point: ScalingPoint) -> str:
    parts = [str(point.micro_batch_size)]
    parts += [f"x {point.gradient_accumulation}"] if point.gradient_accumulation > 1 else []
    return " ".join([*parts, f"= {point.global_batch_size}"])


def _percent(interval: Interval) -> str:
    """Return a percentage with its interval, such as `81.2 [78.0, 84.4]`."""
    ends = [end for end in (interval.low, interval.high) if end is not None]
    first, *others = (f"{100 * value:.3g}" for value in (interval.median, *ends))
    return f"{first} [{', '.join(others)}]" if others else first


COLUMNS = (
    Column("devices", _devices, kind="name"),
    Column("batch", _batch, unit="each = all", kind="number", rank=1),
    number_column("figure.tokens_per_second", "speed", "tokens/s", rate_interval),
    number_column("figure.tokens_per_second_per_device.median", "per device", "", rate, 3),
    number_column("figure.ratio", "speed-up", "[95 %]", ratio_interval),
    number_column("efficiency", "efficiency", "% [95 %]", _percent),
    number_column("step_seconds.median", "step", "ms", milliseconds, 2),
    number_column("relative_step_seconds", "relative", "step", ratio_interval, 4),
)
"""Columns of the table of measurements."""

ESTIMATED = (
    Column("devices", reader("world_size"), kind="name"),
    number_column("tokens_per_second", "speed", "estimated tokens/s", rate_interval),
    number_column("speedup", "speed-up", "estimated", ratio_interval),
    number_column("efficiency", "efficiency", "estimated %", _percent),
)
"""Columns of the table of estimates."""


OF_POINT = (
    "sweep tag world_size tokens_per_second tokens_per_second_per_device paired rounds "
    "verdict_reason"
)
"""Fields of a sweep point that a CSV row has."""

FLAT = (
    *columns_of(Summary, "summary", names="scenario"),
    *columns_of(Scaling, "scaling", names="stack kind counts"),
    *columns_of(PointFigure, "point.figure", names=OF_POINT),
    *columns_of(PointFigure, "point.figure", "speedup", "ratio"),
    *columns_of(ScalingPoint, "point", without="figure"),
    *columns_of(SerialShare, "scaling.serial_share", "estimated_serial_{}"),
    *columns_of(Projection, "projection", "estimated_at_{}", "world_size"),
    *columns_of(Projection, "projection", "estimated_{}", without="estimated world_size"),
)
"""CSV columns; estimates have their own rows and columns."""
