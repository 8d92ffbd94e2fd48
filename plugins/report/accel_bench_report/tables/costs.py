"""The cost of each experiment: the document and the table of `results cost`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.metrics.hourly_rate import HourlyRate
from accel_bench.analysis.metrics.utilization import devices_used
from accel_bench.analysis.schema import Document, ExperimentRow
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.tables.experiment_keys import tell_apart
from accel_bench.analysis.wording import (
    grouped_by_reason,
    label,
    rate_interval,
    usd,
    with_spread,
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
    paths,
    reader,
)
from accel_bench_report.tables.expenses import EXCLUDED, Terms, cost_notes, machines_paid
from accel_bench_report.tables.figures import FIGURES, paid_speed


class ExperimentCost(ExperimentRow):
    """Cost of training with one experiment, at the price of a machine."""

    scenario: str
    """Name of the scenario."""

    device: str | None
    """Name of the device that the runs used, as the driver gives it."""

    devices_used: int | None
    """Number of distinct devices that the ranks used; on a CPU the number of ranks."""

    instances: int
    """Number of rented machines."""

    usd_per_hour: float
    """Dollars per hour of all rented machines."""

    usd_per_million_tokens: Interval | None
    """Dollars per million real tokens, with the interval of the throughput; the price is exact."""

    usd_for_tokens: Interval | None
    """Dollars for `for_tokens` tokens; null without a number of tokens."""

    notes: tuple[str, ...]
    """Caveats of this cost, a sentence each."""


class CostDocument(Document):
    """The JSON document of `accel-bench results cost`."""

    tariff: HourlyRate
    """Price of the machine."""

    for_tokens: float | None
    """Number of tokens to train on; null if none was given."""

    excluded: str = EXCLUDED
    """Expenses that no cost contains, a sentence each."""

    experiments: tuple[ExperimentCost, ...]
    """Costs of the experiments, in the order of their first runs."""


def cost_of_experiments(
    experiments: Sequence[ExperimentRuns],
    tariff: HourlyRate,
    for_tokens: float | None = None,
    instances: int | None = None,
) -> CostDocument:
    """Return the cost of every experiment at the price `tariff`.

    `for_tokens` is the number of tokens to train on; None leaves the dollars of a job out.
    `instances` is the number of machines; None derives it from the devices.
    """
    rows = tuple(_row(row, tariff, for_tokens, instances) for row in tell_apart(experiments))
    return CostDocument(tariff=tariff, for_tokens=for_tokens, experiments=rows)


def _row(
    measured: ExperimentRuns, tariff: HourlyRate, for_tokens: float | None, instances: int | None
) -> ExperimentCost:
    experiment, last = measured.planned.experiment, measured.last
    used = devices_used(last)
    device = last.ranks[0].device if last and last.ranks else None
    machines = machines_paid(measured, tariff, instances)
    terms = Terms(rate=tariff, tokens=for_tokens, instances=instances)
    return ExperimentCost(
        experiment_id=experiment.id,
        scenario=experiment.scenario.name,
        stack=experiment.stack.name,
        sweep=experiment.sweep,
        apart=dict(measured.apart),
        status=measured.ending.status,
        runs=len(measured.speeds),
        counts=experiment.scenario.counts,
        device=device.name or None if device else None,
        devices_used=used,
        instances=machines,
        usd_per_hour=tariff.usd_per_hour * machines,
        tokens_per_second=paid_speed(measured),
        usd_per_million_tokens=FIGURES["dollars_per_million_tokens"].compute(measured, terms),
        usd_for_tokens=FIGURES["dollars"].compute(measured, terms),
        notes=tuple(cost_notes(measured, tariff, instances)),
    )


def cost_report(document: CostDocument) -> Report:
    """Return the report of costs: a table, then the price, excluded expenses and caveats."""
    rows = document.experiments
    columns = [c for c in COLUMNS if document.for_tokens or c.key != "usd_for_tokens"]
    columns = in_units(columns, (row.counts for row in rows))
    section = Section(tables=[Table(columns, rows)], notes=list(_notes(document)))
    lines = [Line(row=row, document=document) for row in rows]
    return Report([section], document, Table(FLAT if lines else (), lines))


def _notes(document: CostDocument) -> Iterator[str]:
    yield document.tariff.note
    if document.for_tokens:
        yield f"USD in all: for {document.for_tokens:,.0f} tokens"
    yield f"tokens are real ones, without padding; it is {document.excluded}"
    yield from grouped_by_reason(
        [(label(row), note) for row in document.experiments for note in row.notes]
    )


def _usd(interval: Interval) -> str:
    return with_spread(interval, usd)


COLUMNS = (
    Column("stack", label, kind="name"),
    Column("experiment_id", reader("experiment_id"), "experiment", kind="word", rank=2),
    Column("status", reader("status"), kind="word"),
    number_column("runs", "runs", "", str, rank=3),
    number_column("tokens_per_second", "speed", "tokens/s", rate_interval),
    number_column("instances", "machines", "", str, rank=1),
    number_column("usd_per_hour", "price", "USD/hour", lambda price: f"{price:,.4g}", rank=1),
    number_column("usd_per_million_tokens", "cost", "USD/1M tokens", _usd),
    number_column("usd_for_tokens", "in all", "USD", _usd),
)
"""Columns of the printed table; the last is shown only with a number of tokens."""

FLAT = (
    *columns_of(ExperimentCost, "row"),
    *paths("document.tariff", "kind instance provider region date stale source", "tariff_{}"),
    *paths("document", "for_tokens"),
)
"""CSV columns of `results cost`; the price is repeated on each line."""
