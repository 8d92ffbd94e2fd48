"""Pivot: experiments with different settings or sweep points, arranged in one table.

Each experiment has its own cell: if the keys of rows and columns do not separate experiments,
further keys in which they differ become row keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from accel_bench.analysis.aggregate import ExperimentRuns, collect_experiments
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.tables.experiment_keys import (
    FIRST_KEYS,
    Keys,
    differing,
    telling_apart,
)
from accel_bench.analysis.tables.listing import provenance_of
from accel_bench.analysis.wording import grouped_by_reason, plain_value, rate_unit, settings
from accel_bench.documents.base import JsonValue
from accel_bench.documents.canonical import canonical_json
from accel_bench.errors import StoreError
from accel_bench.result import Result, Status
from accel_bench_report.tables.expenses import Terms, cost_notes
from accel_bench_report.tables.figures import (
    TIMES_AS_FAST,
    Figure,
    find_figures,
    stated_figure,
)
from accel_bench_report.tables.keyed import (
    Keyed,
    Values,
    common_baseline,
    find_key,
    in_order,
    values_of,
    varying,
    with_keys,
)
from accel_bench_report.tables.pivot_schema import Pivot, PivotCell, PivotValue
from accel_bench_report.tables.points import PointFigure, against

MEASURED = "measured"
"""Word under which `Pivot.counts` counts the cells that have figures."""

MAIN_KEYS = (
    "model.id",
    "device",
    "stack",
    "world_size",
    "data.sequence_length",
    "train.micro_batch_size",
    "train.gradient_accumulation",
    "train.learning_rate",
    "optimizer.use",
    "compute_dtype",
)
"""Settings that a pivot lists if equal everywhere, and that a summary groups by if not."""

STACK = "stack"
"""Key of the stack's name, of which the baseline comes first."""

NO_MONEY = Terms()
"""Terms without price and number of tokens."""


NO_BASELINES: Mapping[str, str] = MappingProxyType({})
"""Empty mapping of sessions to baselines."""


class Layout(NamedTuple):
    """Keys and figures of a pivot table."""

    rows: Sequence[str] = ()
    """Keys of the rows; by default those in which the experiments differ."""

    columns: Sequence[str] = ()
    """Keys of the columns."""

    values: Sequence[str] = ()
    """Names of figures; by default those in `USUAL` that any cell has."""

    reference: Mapping[str, JsonValue] | None = None
    """Key values of the reference cell of comparisons, other keys being equal. If None, stacks are
    compared with their baseline, or else values of the last key with its first value."""

    baselines: Mapping[str, str] = NO_BASELINES
    """Names of baseline stacks by session."""


USUAL = (
    "tokens_per_second",
    "tokens_per_hour",
    "samples_per_second",
    "steps_per_second",
    "time_to_first_token_p50",
    "inter_token_latency_p50",
    TIMES_AS_FAST,
    "mfu",
    "peak_memory_bytes",
    "last_loss",
    "dollars_per_million_tokens",
    "hours",
    "dollars",
)
"""Default figures of a table; those without any value are left out."""


def pivot(
    results: Sequence[Result],
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    values: Sequence[str] = (),
    terms: Terms = NO_MONEY,
) -> Pivot:
    """Return the experiments of results, arranged in one table by the keys `rows` and `columns`.

    `values` are the names of the figures in its cells. Raises StoreError for unknown names.
    """
    return pivot_experiments(collect_experiments(results), Layout(rows, columns, values), terms)


def pivot_experiments(
    experiments: Iterable[ExperimentRuns], layout: Layout, terms: Terms = NO_MONEY
) -> Pivot:
    """Return experiments arranged in one table, which does not depend on their order.

    Raises StoreError if the layout names an unknown key, value or figure.
    """
    keyed = with_keys(experiments)
    row_keys, column_keys, added = _axes(keyed, layout)
    axes = (*row_keys, *column_keys)
    by_row, by_column = in_order(keyed, axes), in_order(keyed, column_keys)
    known = {key: [value for (value,) in values_of(by_row, [key])] for key in row_keys}
    known |= {key: [value for (value,) in values_of(by_column, [key])] for key in column_keys}
    baseline = common_baseline(keyed, layout.baselines)
    reference = _reference(known, layout.reference, baseline) if keyed else {}
    bases = _bases(by_row, axes, reference)
    figures = find_figures(layout.values or USUAL, (entry.row for entry in keyed))
    cells = [
        _cell(entry.row, (entry.at(row_keys), entry.at(column_keys)), base, figures, terms)
        for entry, base in zip(by_row, bases, strict=True)
    ]
    shown = [figure for figure in figures if layout.values or _is_known(figure, cells)]
    counted = {entry.row.planned.experiment.scenario.counts for entry in keyed}
    return Pivot(
        row_keys=row_keys,
        column_keys=column_keys,
        added_keys=added,
        shared=_shared([entry.keys for entry in keyed], axes),
        rows=values_of(by_row, row_keys),
        columns=values_of(by_column, column_keys),
        values=tuple(
            PivotValue(name=f.name, unit=rate_unit(counted, f.unit), better=f.better) for f in shown
        ),
        cells=tuple(cells),
        counts=dict(sorted(Counter(cell.word or MEASURED for cell in cells).items())),
        reference=reference,
        terms=terms,
        notes=tuple(_notes(by_row, axes, terms)),
    )


def _axes(
    experiments: Sequence[Keyed], layout: Layout
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return row keys, column keys, and those row keys that were added to separate experiments."""
    keys = [entry.keys for entry in experiments]
    known = {name for own in keys for name in own}
    rows = list(dict.fromkeys(find_key(name, known) for name in layout.rows))
    columns = list(dict.fromkeys(find_key(name, known) for name in layout.columns))
    if both := [key for key in rows if key in columns]:
        raise StoreError(f"{both[0]} cannot be a key of rows and of columns")
    swept = sorted({key for entry in experiments for key in entry.row.planned.experiment.sweep})
    if not rows:
        rows = [key for key in varying(experiments, (*FIRST_KEYS, *swept)) if key not in columns]
    added = telling_apart(keys, (*rows, *columns), swept)
    return (*rows, *added), tuple(columns), tuple(added)


def _reference(
    known: Mapping[str, Sequence[JsonValue]],
    named: Mapping[str, JsonValue] | None,
    baseline: str | None,
) -> dict[str, JsonValue]:
    """Return the key values of the reference cells, with which other cells are compared.

    `known` are the values of each key, and `named` the values that `--against` gives. Without
    `named` the reference is the baseline if stacks differ, else the first value of the last varying
    key. Raises StoreError for a key that is unknown or given twice, or an unknown value.
    """
    if not named:
        several = [key for key, values in known.items() if len(values) > 1]
        if STACK in several and baseline is not None:
            return {STACK: baseline}
        last = (several or list(known))[-1:]
        return {key: known[key][0] for key in last}
    missing = "--against: of --rows and --columns no key is"
    chosen: dict[str, JsonValue] = {}
    for name, value in named.items():
        key = find_key(name, known, missing)
        if key in chosen:
            raise StoreError(f"--against: {key} is given twice; a cell has one value of it")
        chosen[key] = value
    return {key: _one_of(key, value, known[key]) for key, value in chosen.items()}


def _one_of(key: str, value: JsonValue, known: Sequence[JsonValue]) -> JsonValue:
    """Return the value in `known` that equals `value`, given by `--against`; 1 does not equal true.

    Raises StoreError for a value that the table lacks.
    """
    for choice in known:
        if choice == value and isinstance(choice, bool) == isinstance(value, bool):
            return choice
    shown = ", ".join(map(plain_value, known))
    raise StoreError(f"no experiment of the table has {key}={plain_value(value)}; known: {shown}")


def _bases(
    experiments: Sequence[Keyed], axes: Sequence[str], reference: Mapping[str, JsonValue]
) -> Iterator[ExperimentRuns | None]:
    """Yield for each experiment the one in its reference cell, to compare it with, or None."""
    places = {canonical_json(entry.at(axes)): entry.row for entry in experiments}
    for entry in experiments:
        at = Keyed({**entry.keys, **reference}, entry.row).at(axes)
        yield places.get(canonical_json(at))


def _cell(
    row: ExperimentRuns,
    place: tuple[Values, Values],
    base: ExperimentRuns | None,
    figures: Sequence[Figure],
    terms: Terms,
) -> PivotCell:
    word, compared, missing = cell_word(row), None, ""
    if any(figure.name == TIMES_AS_FAST for figure in figures):
        compared = against(row, base) if base is not None else None
        missing = "the reference was not measured"
    return PivotCell(
        row=place[0],
        column=place[1],
        experiment_id=row.planned.experiment.id,
        stack=row.planned.experiment.stack.name,
        status=row.ending.status,
        word=word,
        origin=_origin(row),
        reasons=row.ending.reasons,
        runs=len(row.completed),
        figures={}
        if word
        else {figure.name: _figure(figure, row, compared, terms) for figure in figures},
        paired=bool(compared and compared.paired),
        why_not_compared=compared.verdict_reason if compared else missing,
    )


def cell_word(row: ExperimentRuns) -> str:
    """Return the word in a cell without figures, such as `OOM`; empty for a cell with figures."""
    if row.ending.status is Status.OOM:
        return "OOM"
    if not row.ending.status.completed:
        return str(row.ending.status.value)
    if row.failed_audit:
        return "audit failed"
    return "" if row.imported or row.speeds else "not measured"


def _origin(row: ExperimentRuns) -> str:
    runs = list(row.counted.values())
    return provenance_of(runs[-1]) if runs else MEASURED


def _figure(
    figure: Figure, row: ExperimentRuns, compared: PointFigure | None, terms: Terms
) -> Interval | None:
    if row.imported:
        stated = stated_figure(row, figure.name)
        return None if stated is None else Interval(median=stated, low=None, high=None)
    if figure.name == TIMES_AS_FAST:
        return compared.ratio if compared else None
    return figure.compute(row, terms)


def _is_known(figure: Figure, cells: Sequence[PivotCell]) -> bool:
    return any(cell.figures.get(figure.name) is not None for cell in cells)


def _shared(keys: Sequence[Keys], axes: Sequence[str]) -> dict[str, JsonValue]:
    """Return the main settings that are equal in all experiments and are no keys of the table.

    `keys` are the settings of each experiment, and `axes` the keys of rows and columns.
    """
    several = {*differing(keys), *axes}
    return {key: keys[0].get(key) for key in MAIN_KEYS if keys and key not in several}


def _notes(experiments: Sequence[Keyed], axes: Sequence[str], terms: Terms) -> Iterator[str]:
    """Yield reasons for cells without figures, and caveats of costs."""
    notes = []
    for entry in experiments:
        name, row = settings(dict(zip(axes, entry.at(axes), strict=True))), entry.row
        if not row.usable:
            notes += [(name, reason) for reason in row.ending.reasons]
        elif terms.rate:
            notes += [(name, note) for note in cost_notes(row, terms.rate, terms.instances)]
    yield from grouped_by_reason(notes)
