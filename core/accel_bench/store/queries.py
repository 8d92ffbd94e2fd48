"""Queries on stored runs: runs that match a condition, and figures of groups of runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Text,
    case,
    func,
    literal,
    literal_column,
    select,
)

from accel_bench.errors import StoreError, StoreUnavailableError, did_you_mean
from accel_bench.result import Status
from accel_bench.store.database import Store
from accel_bench.store.filter import parse_condition
from accel_bench.store.names import (
    LABEL_KINDS,
    Field,
    LabelField,
    column_field,
    json_field,
    known_names,
)
from accel_bench.store.rows import intact
from accel_bench.store.schema import RUNS, within_limits

COMPLETED = tuple(status.value for status in Status if status.completed)
"""Statuses of runs whose figures are used."""

GROUP_FIGURES = (
    ("tokens_per_second", ("mean", "min", "max")),
    ("median_step_seconds", ("mean",)),
    ("peak_memory_bytes", ("max",)),
    ("last_loss", ("mean",)),
    ("mfu", ("mean",)),
)
"""Figures of a group, computed over its completed runs."""


def condition_of(store: Store, text: str) -> ColumnElement[bool]:
    """Return the SQL condition of a text for `--where`. Raises StoreError for an invalid text."""
    return parse_condition(text, lambda name: field_of(store, name))


def field_of(store: Store, name: str) -> Field:
    """Return the field of a column, option or metric. Raises StoreError for an unknown name."""
    field = column_field(name)
    if field is not None:
        return field
    option = json_field(name, store.on_sqlite)
    if option is not None:
        option = option if store.on_sqlite else _of_readable_runs(store, name, option)
        if list(store.fetch(select(RUNS.c.run_id).where(option.is_known()).limit(1))):
            return option
    hint = did_you_mean(name, {*known_names(), *LABEL_KINDS})
    raise StoreError(f"no stored run has a column or an option {name!r}{hint}")


def model_ids(store: Store) -> set[str]:
    """Return the ids of the models of all stored runs."""
    rows = store.fetch(select(RUNS.c.model_id).distinct())
    return {row["model_id"] for row in rows if row["model_id"]}


def _of_readable_runs(store: Store, name: str, option: Field) -> Field:
    """Return the field `option` called `name`, null for runs whose JSON PostgreSQL cannot parse. If
    a query on the field fails, all rows are read once to find those runs."""
    try:
        list(store.fetch(select(func.count()).where(option.is_known())))
    except StoreUnavailableError:
        return json_field(name, store.on_sqlite, leave_out_damaged(store, [])) or option
    return option


def group_runs(
    store: Store, names: Sequence[str], conditions: Sequence[ColumnElement[bool]] = ()
) -> list[dict[str, Any]]:
    """Return a row for each combination of values of the columns or options `names`: the values,
    the counts of all and of completed runs, and figures of completed runs. Raises StoreError for an
    unknown name, and for tags and notes."""
    fields = [field_of(store, name) for name in names]
    if not fields:
        raise StoreError("runs are grouped by at least one column, such as stack")
    for field in fields:
        if isinstance(field, LabelField):
            raise StoreError(
                f"runs cannot be grouped by {field.name}, of which one may have several"
            )
    labels = [f"key_{number}" for number in range(len(fields))]
    keys = [field.value.label(label) for field, label in zip(fields, labels, strict=True)]
    completed = RUNS.c.audited_status.in_(COMPLETED)
    query = (
        select(
            *keys,
            func.count().label("runs"),
            func.count(case((completed, literal(1)))).label("completed"),
            *_figures(completed),
        )
        .where(*conditions)
        .group_by(*labels)
    )
    rows = [_named(dict(row), fields) for row in store.fetch(query)]
    return sorted(rows, key=lambda row: list(map(_place, list(row.values())[: len(fields)])))


def leave_out_damaged(store: Store, conditions: list[ColumnElement[bool]]) -> list[str]:
    """Extend `conditions` to exclude runs whose columns do not match their checksum; return the ids
    of these runs. An id that is not UTF-8 is compared by its bytes."""
    rows = store.fetch(select(*within_limits(RUNS, store.on_sqlite)).where(*conditions))
    ids = [str(row["run_id"]) for row in rows if not intact(row)]
    odd = [run_id for run_id in ids if not _is_utf8(run_id)]
    raw = (run_id.encode("utf8", "surrogateescape").hex() for run_id in odd)
    # Only SQLite has such ids.
    same = [literal_column(f"CAST(X'{digits}' AS TEXT)", Text) for digits in raw]
    plain = [run_id for run_id in ids if _is_utf8(run_id)]
    conditions += [RUNS.c.run_id.not_in(some) for some in (plain, same) if some]
    return ids


def _is_utf8(text: str) -> bool:
    return text.encode("utf8", "replace").decode() == text


def _named(row: dict[str, Any], fields: Sequence[Field]) -> dict[str, Any]:
    """Return a group's row with field names as keys, and values in the form that people read."""
    keys = {
        "status" if field.name == "audited_status" else field.name: field.shown(
            row.pop(f"key_{number}")
        )
        for number, field in enumerate(fields)
    }
    return keys | row


def _place(key: Any) -> tuple[str, Any]:
    kind = "none" if key is None else "text" if isinstance(key, str) else "number"
    return kind, "" if key is None else key


def _figures(completed: ColumnElement[bool]) -> Iterator[ColumnElement[Any]]:
    functions: dict[str, Any] = {"mean": func.avg, "min": func.min, "max": func.max}
    for name, kinds in GROUP_FIGURES:
        value = case((completed, RUNS.c[name]))
        for kind in kinds:
            yield functions[kind](value).label(f"{name}_{kind}")
