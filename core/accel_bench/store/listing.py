"""Stored runs as flat rows: what `results list` prints, unfinished attempts included."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from accel_bench.analysis.listing import LIST_COLUMNS, Cells
from accel_bench.documents.files import read_text
from accel_bench.errors import StoreError
from accel_bench.job import Job
from accel_bench.store.database import Row, Store

MAXIMUM_JOB_BYTES = 16 * 1024 * 1024
"""A job that is larger is not read."""


def list_runs(store: Store, cut_off: Iterable[Path] = ()) -> list[Cells]:
    """Return a row of LIST_COLUMNS for each run, corrupt ones included. Raises StoreError.

    `cut_off` are folders of attempts that have no result, as a kill of the program leaves them;
    those that are not stored follow as `unfinished`.
    """
    listed = list(map(_cells, store.rows()))
    stored = {row["run_id"] for row in listed}
    unfinished = map(_unfinished_run, cut_off)
    return listed + [row for row in unfinished if row["run_id"] not in stored]


def _cells(row: Row) -> Cells:
    cells = {name: getattr(row, name) for name in LIST_COLUMNS}
    return cells | {"status": row.audited_status or row.status}


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
