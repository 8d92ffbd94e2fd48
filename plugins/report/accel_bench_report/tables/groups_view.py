"""Experiments by one setting after another: what `summary` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from accel_bench.analysis.wording import (
    count,
    mebibytes,
    plain_value,
    rate,
    ratio_interval,
    settings,
    significant,
)
from accel_bench.report.table import (
    EMPTY,
    Column,
    Report,
    Section,
    Table,
    interval_paths,
    number_column,
    paths,
    reader,
)
from accel_bench_report.tables.group_schema import (
    BestRate,
    Group,
    GroupedSummary,
    KeySummary,
    RateLoss,
)

EQUAL = (
    "times as fast: against the first value, of stacks the sessions' baseline, over pairs of "
    "experiments that differ in this key alone, with plugins of equal versions and "
    "fingerprints; an estimate, no verdict"
)
LOWEST = (
    "lowest loss: at the end of the steps that all took, and below all others, in so many of the "
    "comparisons in which all else is equal; larger batches saw more tokens by then"
)
RATES = (
    "best learning rate: the lowest mean loss of the last steps, over seeds where there are "
    "several; rates are compared where all else is equal"
)


def groups_by_key_report(document: GroupedSummary) -> Report:
    """Return a table for each key, one of the best learning rates, and what the figures mean."""
    tables = [Table(COLUMNS, one.groups, f"by {one.key}") for one in document.by]
    if document.best_rates:
        tables.append(Table(BEST, document.best_rates, "best learning rate"))
    notes = [EQUAL, LOWEST] if document.by else ["the experiments differ in no main setting"]
    notes += _ambiguous(document)
    notes += [RATES, *_warnings(document)] if document.best_rates else []
    answer = f"{count(document.experiments, 'experiment')}."
    lines = [_Line(one, group) for one in document.by for group in one.groups]
    return Report(
        [Section(answer=answer, tables=tables, notes=notes)], document, Table(FLAT, lines)
    )


def _warnings(document: GroupedSummary) -> Iterator[str]:
    """Yield where the best rate is less certain than it seems."""
    for one in document.best_rates:
        name = settings({"model": one.model, **one.others})
        if one.at_end:
            value = plain_value(one.best.learning_rate)
            yield f"{name}: {value} is at the end of the rates that were tried; try beyond it"
        if not one.separated:
            yield f"{name}: not surely the best: {_why_open(one)}"


def _ambiguous(document: GroupedSummary) -> Iterator[str]:
    """Yield which experiments are in no pair, since it is not clear in which."""
    for one in document.by:
        for group in one.groups:
            if group.ambiguous:
                yield (
                    f"{settings({one.key: group.value})}: {count(group.ambiguous, 'experiment')} "
                    "in no pair: several others would fit, and none ran in the same session alone; "
                    "choose sessions by ID or --where"
                )


def _why_open(one: BestRate) -> str:
    return (
        "each rate has one seed (`run --seeds 5` has more)"
        if one.best.seeds < 2
        else "its interval over seeds overlaps that of another rate"
    )


def _range(low: str, high: str, form: Callable[[float], str], group: Group) -> str | None:
    """Return `1,234 to 2,345`, or one of both where they are equal."""
    ends = [form(value) for name in (low, high) if (value := getattr(group, name)) is not None]
    return " to ".join(dict.fromkeys(ends)) or None


def _other_words(group: Group) -> str | None:
    words = [f"{number} {word}" for word, number in group.counts.items() if word != "measured"]
    return ", ".join(words) or None


def _lowest(group: Group) -> str | None:
    return f"{group.lowest_loss} of {group.of_losses}" if group.of_losses else None


def _loss(one: RateLoss) -> str:
    """Return a loss with its interval over seeds, or the word that stands in its place."""
    if one.loss is None:
        return one.word
    if one.low is None or one.high is None:
        return significant(one.loss, 4)
    return f"{significant(one.loss, 4)} ±{significant(one.high - one.loss, 2)}"


def _tried(row: BestRate) -> str:
    others = [one for one in row.rates if one.learning_rate != row.best.learning_rate]
    return ", ".join(f"{plain_value(one.learning_rate)}: {_loss(one)}" for one in others)


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

BEST = (
    Column("model", reader("model"), kind="name"),
    Column("device", reader("device"), kind="name", rank=2),
    Column("all else", lambda row: settings(row.others) or EMPTY, kind="name"),
    number_column("best.learning_rate", "best rate", "", plain_value),
    Column("loss", lambda row: _loss(row.best), kind="number"),
    number_column("steps", rank=3),
    Column("others", _tried, rank=1),
)
"""Columns of the table of learning rates."""


class _Line(NamedTuple):
    """A line of the CSV."""

    summary: KeySummary
    group: Group


FLAT = (
    *paths("summary", "key"),
    *paths("group", "value experiments counts slowest fastest", "{}"),
    *paths("group", "smallest_peak_bytes largest_peak_bytes pairs ambiguous"),
    *interval_paths("group", "times_as_fast"),
    *paths("group", "lowest_loss of_losses"),
)
"""Columns of the CSV."""
