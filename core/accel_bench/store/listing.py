"""Table rows of stored runs, with few or with all columns, and changes to their tags and notes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from accel_bench.analysis.tables.listing import LIST_COLUMNS, Cells, names_of
from accel_bench.documents.files import read_text
from accel_bench.documents.redaction import Redactor
from accel_bench.errors import StoreError
from accel_bench.job import Job
from accel_bench.scenario.uses import TOKENS
from accel_bench.store.database import ROWS_OF_COLUMNS, Store
from accel_bench.store.names import COMPUTED, LABEL_KINDS, known_names
from accel_bench.store.records import label_columns
from accel_bench.store.rows import ListedRun, intact, provenance_of
from accel_bench.store.schema import CHRONOLOGICAL, COLUMN_OF, LABELS, RUNS, within_limits

IN_COLUMNS = attrgetter(*LIST_COLUMNS)

MAXIMUM_JOB_BYTES = 16 * 1024 * 1024
"""Largest size of a job's file that is read, in bytes."""

MOST_CORRUPT = 1000
"""Largest number of corrupt runs in a table for people; programs get all."""

TAG_LETTERS, NOTE_LETTERS = 100, 10_000
"""Largest lengths of a tag and of a note, in characters."""


def list_runs(
    store: Store,
    cut_off: Iterable[Path] = (),
    conditions: Sequence[ColumnElement[bool]] = (),
    newest: int | None = None,
    most_corrupt: float = math.inf,
) -> tuple[list[Cells], int]:
    """Return a row of LIST_COLUMNS for each run, and the number of corrupt runs left out.

    `conditions` and `newest` limit the runs, `most_corrupt` limits the corrupt runs. `cut_off` are
    folders of interrupted attempts, listed last as `unfinished`. Columns for tags, notes and the
    runs' numbers are added to all rows if any run has them. Raises StoreError for unreadable
    results.
    """
    numbers = store.numbers()
    rows, left_out = store.list_rows(*conditions, newest=newest, most_corrupt=most_corrupt)
    listed = [_cells(row, numbers) for row in rows]
    names = names_of(listed)
    listed = [{name: row.get(name) for name in names} for row in listed]
    unfinished = list(map(_unfinished_run, cut_off))
    stored = set(store.present([str(row["run_id"]) for row in unfinished]))
    listed += [row for row in unfinished if row["run_id"] not in stored]
    return _with_labels(listed, labels_of(store)), left_out


def _with_labels(rows: list[Cells], labels: dict[str, dict[str, list[str]]]) -> list[Cells]:
    """Return rows with the tags and notes in `labels`; a column without any text is left out."""
    for name, kind in LABEL_KINDS.items() if labels else ():
        given = {row["run_id"]: labels.get(row["run_id"], {}).get(kind, []) for row in rows}
        if any(given.values()):
            rows = [{**row, name: given[row["run_id"]]} for row in rows]
    return rows


def _cells(row: ListedRun, numbers: Mapping[str, int]) -> Cells:
    """Return the table row of a run, with its number first if runs have numbers."""
    cells: Cells = {"number": numbers.get(row.run_id)} if numbers else {}
    cells.update(zip(LIST_COLUMNS, IN_COLUMNS(row), strict=True))
    cells["status"] = (None if row.imported else row.audited_status) or row.status
    if row.counts != TOKENS:
        own = {f"{row.counts}_per_second": cells["tokens_per_second"]}
        cells |= {"tokens_per_second": None, **own}
    return cells


def _unfinished_run(folder: Path) -> Cells:
    """Return the table row of an attempt without a result, from the job file in its folder."""
    cells: Cells = {**dict.fromkeys(LIST_COLUMNS), "run_id": folder.name, "status": "unfinished"}
    try:
        text = read_text(folder / "job.json", MAXIMUM_JOB_BYTES, StoreError, "")
        job = Job.model_validate_json(text)
    except (StoreError, ValueError):  # killed while it was written, or from another version
        return cells
    return cells | {
        "run_id": job.run_id,
        "experiment_id": job.experiment.id,
        "scenario": job.experiment.scenario.name,
        "stack": job.experiment.stack.name,
        "sweep": job.experiment.sweep,
        "tag": job.experiment.tag,
        "round": job.round,
        "attempt": job.attempt,
    }


def run_columns(
    store: Store, conditions: Sequence[ColumnElement[bool]] = (), newest: int | None = None
) -> list[Cells]:
    """Return a row of all columns for each run, oldest first; a corrupt run has only id and status.

    Documents and samples are not read. `conditions` and `newest` limit the runs.
    """
    computed = (value.label(name) for name, value in COMPUTED.items())
    query = select(*within_limits(RUNS, store.on_sqlite), *computed).where(*conditions)
    query = query.order_by(*(column.desc() for column in CHRONOLOGICAL)).limit(newest)
    labels = labels_of(store)
    rows = [_all_cells(row, labels) for row in store.fetch(query, ROWS_OF_COLUMNS)]
    return rows[::-1]


def _all_cells(row: Mapping[str, Any], labels: Mapping[str, Mapping[str, list[str]]]) -> Cells:
    if not intact(row):
        return {"run_id": str(row["run_id"]), "status": "corrupt"}
    cells = {name: row[_column(name)] for name in known_names()}
    options = json.loads(row["options"] or "{}")
    metrics = json.loads(row["metrics"] or "{}")
    given = labels.get(row["run_id"], {})
    cells |= {name: given[kind] for name, kind in LABEL_KINDS.items() if kind in given}
    cells["provenance"] = provenance_of(row)
    cells |= {key: value for key, value in options.items() if not key.startswith("provenance.")}
    return cells | {f"metrics.{name}": value for name, value in metrics.items()}


def _column(name: str) -> str:
    return "audited_status" if name == "status" else COLUMN_OF.get(name, name)


def add_labels(store: Store, identifier: str, kind: str, texts: Sequence[str]) -> list[str]:
    """Add tags or notes to the runs whose id, experiment or session is `identifier`; keep other
    labels. `kind` is `tag` or `note`. Returns the ids of the runs. Raises StoreError for an unknown
    id, or for an empty or too long text."""
    kept = [_checked(kind, text) for text in texts]
    run_ids = store.run_ids(identifier)
    rows = [label_columns(run, kind, text) for run in run_ids for text in kept]
    database = sqlite if store.on_sqlite else postgresql
    with store.changing() as connection:
        connection.execute(database.insert(LABELS).on_conflict_do_nothing(), rows)
    return run_ids


def remove_labels(store: Store, identifier: str, kind: str, texts: Sequence[str]) -> list[str]:
    """Remove tags or notes from the runs whose id, experiment or session is `identifier`. `kind` is
    `tag` or `note`. Returns the ids of the runs. Raises StoreError for an unknown id."""
    run_ids = store.run_ids(identifier)
    mine = (LABELS.c.run_id.in_(run_ids), LABELS.c.kind == kind, LABELS.c.text.in_(list(texts)))
    with store.changing() as connection:
        connection.execute(delete(LABELS).where(*mine))
    return run_ids


def labels_of(
    store: Store, run_ids: Sequence[str] | None = None
) -> dict[str, dict[str, list[str]]]:
    """Return the labels `{run id: {"tag": [...], "note": [...]}}` of runs; None means all runs."""
    query = select(LABELS.c.run_id, LABELS.c.kind, LABELS.c.text)
    if run_ids is not None:
        query = query.where(LABELS.c.run_id.in_(list(run_ids)))
    labels: dict[str, dict[str, list[str]]] = {}
    for row in store.fetch(query.order_by(LABELS.c.added_at, LABELS.c.text)):
        labels.setdefault(row["run_id"], {}).setdefault(row["kind"], []).append(row["text"])
    return labels


def _checked(kind: str, text: str) -> str:
    """Return a tag or note without secrets. Raises StoreError if it is empty or too long."""
    limit = TAG_LETTERS if kind == "tag" else NOTE_LETTERS
    kept = Redactor.of_this_process().redact(text.replace("\0", "").strip())
    if not kept or len(kept) > limit:
        raise StoreError(
            f"a {kind} has from 1 to {limit} letters, and {text[:40]!r} has none or more"
        )
    return kept
