"""Stored runs as flat rows: what `results list` prints, unfinished attempts included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

from sqlalchemy import ColumnElement

from accel_bench.analysis.tables.listing import LIST_COLUMNS, Cells, names_of
from accel_bench.documents.files import read_text
from accel_bench.errors import StoreError
from accel_bench.job import Job
from accel_bench.scenario.uses import TOKENS
from accel_bench.store.database import Row, Store
from accel_bench.store.labels import labels_of
from accel_bench.store.selection import uncollected

IN_COLUMNS = attrgetter(*LIST_COLUMNS)

MAXIMUM_JOB_BYTES = 16 * 1024 * 1024
"""A job that is larger is not read."""


def list_runs(
    store: Store,
    cut_off: Iterable[Path] = (),
    conditions: Sequence[ColumnElement[bool]] = (),
    newest: int | None = None,
) -> list[Cells]:
    """Return a row of LIST_COLUMNS for each run, corrupt ones included. Raises StoreError.

    `conditions` choose some of them, `newest` so many at most. `cut_off` are folders of attempts
    that have no result, as a kill of the program leaves them; those that are not stored follow as
    `unfinished`. Where a run has tags or notes, all rows have a column for them, and in a results
    folder one for the number by which a run can be named.
    """
    numbers = store.numbers()
    with uncollected():
        found = store.each_row(*conditions, newest=newest)
        listed = [_cells(row, numbers) for row in found]
    stored = {row["run_id"] for row in listed}
    if max(map(len, listed), default=0) > len(LIST_COLUMNS) + bool(numbers):
        names = names_of(listed)
        listed = [{name: row.get(name) for name in names} for row in listed]
    unfinished = (row for row in map(_unfinished_run, cut_off) if row["run_id"] not in stored)
    return _with_labels([*listed, *unfinished], labels_of(store))


def _with_labels(rows: list[Cells], labels: dict[str, dict[str, list[str]]]) -> list[Cells]:
    """Return the rows with `tags` and `notes`, each where any row has some."""
    for name, kind in (("tags", "tag"), ("notes", "note")) if labels else ():
        given = {row["run_id"]: labels.get(row["run_id"], {}).get(kind, []) for row in rows}
        if any(given.values()):
            rows = [{**row, name: given[row["run_id"]]} for row in rows]
    return rows


def _cells(row: Row, numbers: Mapping[str, int]) -> Cells:
    """Return the cells of a run, its number first where runs have one."""
    cells: Cells = {"number": numbers.get(row.run_id)} if numbers else {}
    cells.update(zip(LIST_COLUMNS, IN_COLUMNS(row), strict=True))
    cells["status"] = (None if row.imported else row.audited_status) or row.status
    if row.counts != TOKENS:
        own = {f"{row.counts}_per_second": cells["tokens_per_second"]}
        cells |= {"tokens_per_second": None, **own}
    return cells


def _unfinished_run(folder: Path) -> Cells:
    """Return what is known of an attempt without a result: its job, or its folder's name alone."""
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
