"""Everything that stands in columns of stored runs, a flat row each, by the names of conditions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, select

from accel_bench.analysis.tables.listing import Cells
from accel_bench.store.checksums import intact
from accel_bench.store.database import ROWS_OF_COLUMNS, Store
from accel_bench.store.labels import labels_of
from accel_bench.store.names import COMPUTED, LABEL_KINDS, known_names, stored_part
from accel_bench.store.schema import (
    CHRONOLOGICAL,
    COLUMN_OF,
    EXPORTED,
    IMPORTED,
    ORIGIN,
    RUNS,
    within_limits,
)


def run_columns(
    store: Store, conditions: Sequence[ColumnElement[bool]] = (), newest: int | None = None
) -> list[Cells]:
    """Return a row for each run, oldest first; a corrupt one has its id and that status alone.

    Documents and samples are not read. `conditions` choose some runs, `newest` so many at most.
    """
    computed = (value.label(name) for name, value in COMPUTED.items())
    query = select(*within_limits(RUNS, store.on_sqlite), *computed).where(*conditions)
    query = query.order_by(*(column.desc() for column in CHRONOLOGICAL)).limit(newest)
    labels = labels_of(store)
    found = [_cells(row, labels) for row in store.fetch(query, ROWS_OF_COLUMNS)]
    return found[::-1]


def _cells(row: Mapping[str, Any], labels: Mapping[str, Mapping[str, list[str]]]) -> Cells:
    if not intact(stored_part(row)):
        return {"run_id": str(row["run_id"]), "status": "corrupt"}
    cells = {name: row[_column(name)] for name in known_names()}
    options = json.loads(row["options"] or "{}")
    metrics = json.loads(row["metrics"] or "{}")
    given = labels.get(row["run_id"], {})
    cells |= {name: given[kind] for name, kind in LABEL_KINDS.items() if kind in given}
    cells["provenance"] = _provenance(row, options)
    cells |= {key: value for key, value in options.items() if not key.startswith("provenance.")}
    return cells | {f"metrics.{name}": value for name, value in metrics.items()}


def _column(name: str) -> str:
    return "audited_status" if name == "status" else COLUMN_OF.get(name, name)


def _provenance(row: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Return `measured`, `exported`, or `imported` with the format."""
    if row["audited_status"] == IMPORTED:
        return f"{IMPORTED} {options.get('provenance.format', '')}".rstrip()
    return EXPORTED if options.get(ORIGIN) == EXPORTED else "measured"
