"""Tables of a pivot, for `results pivot` and for the sweep points of `run`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.tables.listing import names_of
from accel_bench.analysis.wording import (
    count,
    mebibytes,
    percent,
    plain_value,
    rate,
    ratio_interval,
    settings,
    significant,
    usd,
    with_spread,
)
from accel_bench.report.table import EMPTY, Column, Report, Section, Table, keyed
from accel_bench.scenario.uses import TOKENS
from accel_bench_report.tables.expenses import EXCLUDED
from accel_bench_report.tables.keyed import Values
from accel_bench_report.tables.pivot_schema import Pivot, PivotCell, PivotValue

Row = tuple[Values, dict[Values, PivotCell]]
"""Row of a pivot: values of its keys, and its cells by column values."""

LESS = {"samples_per_second": 100, "steps_per_second": 101, "tokens_per_hour": 102}
"""Display ranks of figures that repeat another figure; others rank as requested."""

MIB = ("bytes per device", "bytes per process")
"""Units of memory that are printed in MiB."""


def pivot_report(made: Pivot) -> Report:
    """Return the report of a pivot: one table with a column for each figure.

    With column keys, it has a table for each figure.
    """
    section = Section(headline=_answer(made), tables=pivot_tables(made), notes=list(_notes(made)))
    return Report([section], made, _flat(made))


def pivot_tables(made: Pivot, title: str = "") -> list[Table]:
    """Return the tables of a pivot alone, without headline and notes."""
    rows = list(made.by_row())
    keys = [_key_column(made, number) for number in range(len(made.row_keys))]
    if not rows:
        return []
    if not made.column_keys:
        figures = [
            _column(value, _title(value), _unit(value), (), LESS.get(value.name, number))
            for number, value in enumerate(made.values)
        ]
        return [Table([*keys, *figures], rows, title)]
    tables = []
    for value in made.values:
        columns = enumerate(made.columns)
        cells = [_column(value, _headed(made, at), "", at, number) for number, at in columns]
        heading = f"{_title(value)} [{_unit(value)}]".removesuffix(" []")
        tables.append(Table([*keys, *cells], rows, heading))
    return tables


def _answer(made: Pivot) -> str:
    """Return a sentence with the number of experiments and their common settings."""
    total = len(made.cells)
    words = [f"{number} {word}" for word, number in made.counts.items()]
    counted = f" ({', '.join(words)})" if set(made.counts) != {"measured"} else ""
    shared = {key: value for key, value in made.shared.items() if value is not None}
    alike = f"; all with {settings(shared)}" if shared else ""
    return f"{count(total, 'experiment')}{counted}{alike}."


def _notes(made: Pivot) -> Iterator[str]:
    if made.added_keys:
        yield f"rows differ in {', '.join(made.added_keys)} too: no cell mixes experiments"
    if any(value.name == "times_as_fast" for value in made.values):
        yield (
            f"times as fast: against {settings(made.reference)}, all else in the table being "
            "equal; speed alone, as estimates with 95 % intervals and no verdicts"
        )
        ratios = [cell for cell in made.cells if cell.figures.get("times_as_fast")]
        paired = sum(cell.paired for cell in ratios)
        if paired < len(ratios):
            ratio = count(len(ratios), "ratio")
            yield f"{paired} of {ratio} of pairs within rounds, the others unpaired"
    if any(value.name.startswith("mfu_6n") for value in made.values):
        yield "6N: 6 FLOPs for each weight that a token meets, trained or not, without attention"
    if made.terms.rate:
        yield made.terms.rate.note
        yield f"tokens are real ones, without padding; it is {EXCLUDED}"
    if made.terms.tokens:
        what = "hours and USD" if made.terms.rate else "hours"
        yield f"{what}: for {made.terms.tokens:,.0f} tokens"
    yield from _missing_terms(made)
    yield from made.notes


def _missing_terms(made: Pivot) -> Iterator[str]:
    """Yield notes on figures that are unknown because an option, such as `--price`, is missing."""
    names = [value.name for value in made.values]
    for option, given, figures in (
        ("--tokens", made.terms.tokens, ("hours", "dollars")),
        ("--price or --instance", made.terms.rate, ("dollars_per_million_tokens", "dollars")),
    ):
        if not given and (empty := [name for name in figures if name in names]):
            yield f"{' and '.join(empty)}: not known without {option}"


def _key_column(made: Pivot, number: int) -> Column:
    """Return the column of row key `number`, titled by the key's last part if that is unique."""
    last = [key.rpartition(".")[2] for key in made.row_keys]
    key = made.row_keys[number]
    title = last[number] if last.count(last[number]) == 1 else key
    title = key.rpartition(".")[0] if title in ("id", "use") else title
    return Column(
        key,
        lambda row: row[0][number],
        title.replace("_", " "),
        form=plain_value,
        kind="name",
    )


def _column(value: PivotValue, title: str, unit: str, column: Values, rank: int) -> Column:
    """Return the column of a figure at the values `column` of the column keys.

    Columns of higher `rank` are left out first where there is no room.
    """
    return Column(
        f"{value.name} {title}",
        lambda row: row[1].get(column),
        title,
        unit,
        form=partial(cell_text, value),
        kind="number",
        rank=rank,
    )


def cell_text(value: PivotValue, cell: PivotCell) -> str:
    """Return a cell's figure with its interval, or the word in its place."""
    if cell.word:
        return cell.word
    interval = cell.figures.get(value.name)
    if interval is None:
        return EMPTY
    mark = "" if cell.origin == "measured" else f" ({cell.origin})"
    return f"{_form(value)(interval)}{mark}"


def _form(value: PivotValue) -> Callable[[Interval], str]:
    """Return the formatter of a figure's interval, by its unit."""
    if value.unit == "times":
        return ratio_interval
    unit = value.unit.partition(" or ")[0].replace(_counted(value), "tokens")
    return partial(with_spread, form=FORMS.get(unit, _short))


def _short(value: float) -> str:
    return rate(value) if abs(value) >= 100 or value == int(value) else significant(value, 4)


FORMS: dict[str, Callable[[float], str]] = {
    "tokens/s": rate,
    "tokens/s per device": rate,
    "tokens/h": lambda value: f"{rate(value / 1e6)} M" if value >= 1e6 else rate(value),
    "samples/s": rate,
    "steps/s": rate,
    "h": rate,
    "of peak": percent,
    "of peak, 6N": percent,
    "USD": usd,
    "USD/1M tokens": usd,
    **dict.fromkeys(MIB, mebibytes),
}
"""Formatters of figures by unit."""


def _unit(value: PivotValue) -> str:
    says_it = value.name.endswith(("_per_second", "_per_hour", "_per_device"))
    if says_it and " or " not in value.unit:
        return ""
    return value.unit.replace("bytes", "MiB") if value.unit in MIB else value.unit


def _title(value: PivotValue) -> str:
    """Return a figure's title with the unit of work that it counts, such as `calls` for
    `tokens`."""
    name = value.name.removesuffix("_bytes").replace("tokens", _counted(value))
    return name.replace("_", " ")


def _counted(value: PivotValue) -> str:
    """Return the unit of work in a figure, such as `calls`; `tokens` for several units or none."""
    of_tokens = "tokens" in value.name and " or " not in value.unit
    return value.unit.removeprefix("USD/1M ").partition("/")[0] if of_tokens else TOKENS


def _headed(made: Pivot, values: Values) -> str:
    """Return a column's header: the values of its keys with the keys' names; a single key `id` or
    `use` has no name."""
    if len(values) == 1:
        key = made.column_keys[0].rpartition(".")[2].replace("_", " ")
        return plain_value(values[0]) if key in ("id", "use") else f"{key} {plain_value(values[0])}"
    last = (key.rpartition(".")[2] for key in made.column_keys)
    return ", ".join(f"{key} {plain_value(value)}" for key, value in zip(last, values, strict=True))


def _flat(made: Pivot) -> Table:
    """Return the CSV table: a line per experiment with its settings, status, figures and
    intervals."""
    lines = [_line((*made.row_keys, *made.column_keys), cell, made.values) for cell in made.cells]
    return keyed(names_of(lines) or OF_CELL, lines)


def _line(axes: Sequence[str], cell: PivotCell, values: Sequence[PivotValue]) -> dict[str, Any]:
    at = dict(zip(axes, (*cell.row, *cell.column), strict=True))
    ended = {name: getattr(cell, name) for name in OF_CELL if name not in at}
    figures = {
        f"{value.name}{suffix}": getattr(cell.figures.get(value.name), end, None)
        for value in values
        for end, suffix in (("median", ""), ("low", "_low"), ("high", "_high"))
    }
    return {**at, **ended, **figures}


OF_CELL = ("experiment_id", "stack", "status", "word", "origin", "runs", "paired")
"""Fields of a cell that are CSV columns."""
