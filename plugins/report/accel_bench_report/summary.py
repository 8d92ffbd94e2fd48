"""`accel-bench results summary`: stored experiments by batch size, learning rate, hardware, ..."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from accel_bench.analysis.wording import (
    count,
    mebibytes,
    plain_value,
    rate,
    ratio_interval,
    settings,
)
from accel_bench.cli.options import Names, split_names, takes
from accel_bench.cli.output import AnyFormat
from accel_bench.report.table import (
    Column,
    Line,
    Report,
    Section,
    Table,
    columns_of,
    in_units,
    number_column,
    reader,
)
from accel_bench.scenario.uses import TOKENS
from accel_bench_report.selection import SelectionOptions
from accel_bench_report.tables.grouping import Group, GroupedSummary, KeySummary, summarize_by

EQUAL = (
    "times as fast: against the first value, of stacks the sessions' baseline, over pairs of "
    "experiments that differ in this key alone, with plugins of equal versions and "
    "fingerprints; an estimate, no verdict"
)
LOWEST = (
    "lowest loss: at the end of the steps that all took, and below all others, in so many of the "
    "comparisons in which all else is equal; larger batches saw more tokens by then"
)


@dataclass(frozen=True, kw_only=True)
class SummaryOptions(SelectionOptions):
    """Command-line options of `accel-bench results summary`."""

    group_by: Annotated[
        Names,
        typer.Option(metavar="KEY", help="Settings, `device` or `stack`; else all main ones."),
    ] = None
    output: AnyFormat = "table"


@takes(SummaryOptions)
def summary(options: SummaryOptions) -> None:
    """Summarize stored experiments by batch size, learning rate, optimizer, precision, hardware.

    Values are compared within experiments that differ in that key alone. Without --group-by there
    is a table for each main setting in which the experiments differ.
    """
    from accel_bench.cli.output import print_report

    experiments, baselines = options.read_experiments()
    document = summarize_by(experiments, split_names(options.group_by), baselines)
    counted = {row.planned.experiment.scenario.counts for row in experiments}
    print_report(groups_by_key_report(document, counted), options.output)


def groups_by_key_report(document: GroupedSummary, counted: Iterable[str] = (TOKENS,)) -> Report:
    """Return the report of `results summary`: a table for each key, with notes on their columns.

    `counted` are the units of work that experiments count, such as `tokens`.
    """
    columns = in_units(COLUMNS, counted)
    tables = [Table(columns, keyed.groups, f"by {keyed.key}") for keyed in document.by]
    notes = [EQUAL, LOWEST] if document.by else ["the experiments differ in no main setting"]
    notes += _ambiguous(document)
    headline = f"{count(document.experiments, 'experiment')}."
    lines = [Line(summary=keyed, group=group) for keyed in document.by for group in keyed.groups]
    return Report(
        [Section(headline=headline, tables=tables, notes=notes)], document, Table(FLAT, lines)
    )


def _ambiguous(document: GroupedSummary) -> Iterator[str]:
    """Yield notes on experiments that are in no pair because several experiments would match."""
    for keyed in document.by:
        for group in keyed.groups:
            if group.ambiguous:
                yield (
                    f"{settings({keyed.key: group.value})}: {count(group.ambiguous, 'experiment')} "
                    "in no pair: several others would fit, and none ran in the same session alone; "
                    "choose sessions by ID or --where"
                )


def _range(low: str, high: str, form: Callable[[float], str], group: Group) -> str | None:
    """Return a range such as `1,234 to 2,345`, or one value for equal ends; None if unknown.

    `low` and `high` name fields of the group, and `form` turns a value into text.
    """
    ends = [form(value) for name in (low, high) if (value := getattr(group, name)) is not None]
    return " to ".join(dict.fromkeys(ends)) or None


def _other_words(group: Group) -> str | None:
    words = [f"{number} {word}" for word, number in group.counts.items() if word != "measured"]
    return ", ".join(words) or None


def _lowest(group: Group) -> str | None:
    return f"{group.lowest_loss} of {group.of_losses}" if group.of_losses else None


COLUMNS = (
    Column("value", reader("value"), form=plain_value, kind="name"),
    number_column("experiments", rank=3),
    Column("tokens/s", partial(_range, "slowest", "fastest", rate), kind="number"),
    number_column("times_as_fast", "times as fast", "[95 % interval]", ratio_interval),
    number_column("pairs", rank=4),
    Column("memory", partial(_range, "smallest_peak_bytes", "largest_peak_bytes", mebibytes),
           unit="MiB", kind="number"),
    Column("lowest loss", _lowest, kind="number", rank=2),
    Column("not measured", _other_words, rank=1),
)  # fmt: skip
"""Columns of the table of one key."""


FLAT = (
    *columns_of(KeySummary, "summary"),
    *columns_of(Group, "group"),
)
"""Columns of the CSV."""
