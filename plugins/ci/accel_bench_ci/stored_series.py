"""Read what a history needs of stored runs: their columns, and one document for each experiment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement

from accel_bench.analysis.checks.audit import DEGRADING_ALONE
from accel_bench.analysis.metrics.offered_load import offered_rate
from accel_bench.result import Status
from accel_bench.scenario.experiment import Experiment
from accel_bench.store.checksums import intact
from accel_bench.store.commands import one_of_each
from accel_bench.store.database import ROWS_OF_COLUMNS, Store
from accel_bench.store.names import COMPUTED, stored_part
from accel_bench.store.schema import IMPORTED, RUNS, within_limits
from accel_bench_ci.figures import (
    METRICS,
    REQUEST_LATENCY,
    TrackedFigure,
    compared_figure,
    figure_named,
)
from accel_bench_ci.series import HistoryRun, history_run


def read_history(
    store: Store, figure: str, conditions: Sequence[ColumnElement[bool]] = ()
) -> tuple[list[HistoryRun], TrackedFigure]:
    """Return the chosen runs that were measured, with the figure. Raises StoreError.

    Damaged rows are left out.
    """
    from sqlalchemy import select

    measured = RUNS.c.audited_status != IMPORTED
    computed = [value.label(name) for name, value in COMPUTED.items()]
    query = select(*within_limits(RUNS, store.on_sqlite), *computed).where(measured, *conditions)
    rows = [row for row in store.fetch(query, ROWS_OF_COLUMNS) if intact(stored_part(row))]
    examples = one_of_each(store, rows)
    tracked = figure_named(figure, examples.values())
    experiments = {name: one.experiment for name, one in examples.items()}
    of_requests = {
        name: compared_figure(tracked, offered_rate(one.scenario)) is REQUEST_LATENCY
        for name, one in experiments.items()
    }
    known = [row for row in rows if row["experiment_id"] in experiments]
    flat = [row for row in known if not of_requests[row["experiment_id"]]]
    # What the engine says of the load stands in the documents alone.
    whole = [row["run_id"] for row in known if of_requests[row["experiment_id"]]]
    runs = [_run(row, experiments, tracked.name) for row in flat]
    return [*runs, *(history_run(one, tracked) for one in store.with_ids(whole))], tracked


def _run(row: Mapping[str, Any], experiments: Mapping[str, Experiment], figure: str) -> HistoryRun:
    status = Status(row["status"])
    names = {name for name, _ in json.loads(row["broken"] or "[]")}
    usable = status.completed and not names - DEGRADING_ALONE
    experiment = experiments[row["experiment_id"]]
    stack = experiment.stack.model_copy(update={"name": row["stack"]})
    return HistoryRun(
        run_id=row["run_id"],
        session=row["session"],
        round=row["round"],
        attempt=row["attempt"],
        started_at=row["started_at"],
        status=status,
        replaces=row["replaces"] or "",
        experiment=experiment.model_copy(update={"stack": stack}),
        value=_value(row, figure) if usable else None,
    )


def _value(row: Mapping[str, Any], figure: str) -> float | None:
    if not figure.startswith(METRICS):
        value: float | None = row[figure]
        return value
    found = json.loads(row["metrics"] or "{}").get(figure.removeprefix(METRICS))
    return float(found) if isinstance(found, int | float) else None
