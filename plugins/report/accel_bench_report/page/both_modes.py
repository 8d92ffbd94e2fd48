"""Tables of training and inference of one model side by side, for pages with both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from accel_bench.analysis.device_kinds import devices_of
from accel_bench.analysis.schema import ExperimentSummary
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.wording import (
    label,
    mebibytes,
    milliseconds,
    rate_interval,
    ratio_interval,
    with_spread,
)
from accel_bench.report.table import Column, Line, Table, number_column, reader
from accel_bench_report.page.scenario import ScenarioPage

MEANING = (
    "Rows of one name stand together: what a stack's plugins change may differ between training "
    "and inference. Times as fast is against the baseline of the same mode. Rows that have no "
    "rank in their scenario are left out."
)

Place = tuple[str, str]
"""A model's id, and the kind of device on which it ran."""


def both_modes_tables(pages: Sequence[ScenarioPage]) -> list[Table]:
    """Return a table for each model and device with both training and inference on the pages."""
    tables = []
    for title, rows in _rows(pages):
        used = [column for column in COLUMNS if any(map(column.cell, rows))]
        tables.append(Table(used, rows, title))
    if tables:
        tables[-1] = replace(tables[-1], notes=[MEANING])
    return tables


def _rows(pages: Sequence[ScenarioPage]) -> Iterator[tuple[str, list[Line]]]:
    """Yield title and rows for each pair of a training and an inference scenario of one model.

    A row has the attributes `stack`, a name, and `training` and `inference`, summaries or None.
    """
    by_place: dict[Place, dict[str, list[tuple[str, dict[str, ExperimentSummary]]]]] = {}
    for page in pages:
        for place, mode, stacks in _of_page(page):
            by_place.setdefault(place, {}).setdefault(mode, []).append(
                (page.summary.scenario, stacks)
            )
    for (model, device), modes in by_place.items():
        for trained, training in modes.get("train", ()):
            for asked, inference in modes.get("inference", ()):
                names = dict.fromkeys((*training, *inference))
                rows = [
                    Line(stack=name, training=training.get(name), inference=inference.get(name))
                    for name in names
                ]
                yield f"{model} on {device}: {trained} and {asked}", rows


def _of_page(page: ScenarioPage) -> Iterator[tuple[Place, str, dict[str, ExperimentSummary]]]:
    """Yield the ranked rows of a page for each combination of model, device and mode.

    Each tuple is (model, device), the mode, and rows by stack and sweep point, baseline first.
    """
    by_mode: dict[tuple[Place, str], dict[str, ExperimentSummary]] = {}
    rows = [row for row in page.rows if not row.why_not_ranked and row.last_run is not None]
    rows.sort(key=lambda row: row.summary.stack != page.summary.baseline)
    for row in rows:
        scenario = row.runs.planned.experiment.scenario
        (device, *_) = devices_of(list(row.runs.completed.values()))
        key = (scenario.model.id, device.label), scenario.mode
        name = label(row.summary)
        by_mode.setdefault(key, {})[name] = row.summary
    for (place, mode), stacks in by_mode.items():
        yield place, mode, stacks


def _first_token(row: Line) -> str | None:
    known = {metric.name: metric.value for metric in row.inference.metrics} if row.inference else {}
    values = [known.get(f"time_to_first_token_p{percent}") for percent in (50, 99)]
    return None if None in values else "/".join(f"{value:.3g}" for value in values)


def _ratio(mode: str) -> Column:
    """Return the column of a mode's speed relative to the baseline's; its cells are empty where
    another quantity than speed is compared."""

    def cell(row: Line) -> Interval | None:
        summary: ExperimentSummary | None = getattr(row, mode)
        return summary.ratio if summary and summary.quantity.of_speed else None

    return Column(f"{mode}.ratio", cell, "times as fast", mode, ratio_interval, kind="number")


COLUMNS = (
    Column("stack", reader("stack"), kind="name"),
    number_column("training.tokens_per_second", "training", "tokens/s", rate_interval),
    _ratio("training"),
    number_column("training.peak_memory_bytes", "memory", "training, MiB", mebibytes),
    number_column("inference.tokens_per_second", "inference", "new tokens/s", rate_interval),
    number_column(
        "inference.request_seconds", "median request", "ms", partial(with_spread, form=milliseconds)
    ),
    _ratio("inference"),
    Column("first token", _first_token, "", "ms p50/p99", kind="number"),
    number_column("inference.peak_memory_bytes", "memory", "inference, MiB", mebibytes),
)
"""Columns of the tables of training and inference."""
