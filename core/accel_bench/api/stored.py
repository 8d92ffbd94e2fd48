"""Python interface to stored results."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from accel_bench.analysis.compare import ExperimentComparison, compare_stored
from accel_bench.api.frame import to_frame
from accel_bench.documents.program import DEFAULT_RESULTS, RESULTS
from accel_bench.documents.redaction import Redactor
from accel_bench.result import Result
from accel_bench.runner.interrupted import open_results
from accel_bench.store import database
from accel_bench.store.listing import run_columns
from accel_bench.store.queries import condition_of, group_runs, leave_out_damaged
from accel_bench.store.schema import RUNS
from accel_bench.store.selection import select_pairs

if TYPE_CHECKING:
    import pandas
    from sqlalchemy import ColumnElement

LOGGER = logging.getLogger("accel_bench")


class StoredResults:
    """Stored runs of a results folder or a database; each call reads them anew."""

    def __init__(self, place: str) -> None:
        self.place = place
        """Path of the results folder, or address of the database."""

    def frame(
        self,
        where: str | None = None,
        *,
        group_by: Sequence[str] = (),
        newest: int | None = None,
    ) -> pandas.DataFrame:
        """Return a DataFrame with a row for each run; with `group_by` one for each group of runs.

        Columns are named as in conditions: settings (`train.learning_rate`), the effective
        configuration (`effective.optimizer`), measured values with their units
        (`tokens_per_second`), options of plugins, and metrics (`metrics.NAME`). An unknown value is
        missing. A run that was damaged on the disk has the status `corrupt` and no measured values.

        `where` is a condition as in `accel-bench results list --where`. `newest` limits the rows to
        that many newest runs; it has no effect with `group_by`. `group_by` names columns; the
        measured values of groups are over completed runs.

        Raises StoreError if the results cannot be read, or for an unknown name in the condition,
        AccelBenchError if pandas is not installed.
        """
        with open_results(self.place) as store:
            conditions = _conditions(store, where)
            if not group_by:
                return to_frame(run_columns(store, conditions, newest))
            if damaged := leave_out_damaged(store, conditions):
                LOGGER.warning("left out as corrupt: %s", ", ".join(damaged))
            return to_frame(group_runs(store, list(group_by), conditions))

    def select(self, identifier: str | None = None, *, where: str | None = None) -> list[Result]:
        """Return stored runs, their samples included: all runs, or those that fit both arguments.

        `identifier` is the id of a run, an experiment or a session, or the beginning of an id;
        `where` is a condition as in `accel-bench results list --where`. Raises StoreError if the
        results cannot be read, or for an unknown id.
        """
        with open_results(self.place) as store:
            conditions = _conditions(store, where)
            if identifier is not None:
                conditions.append(RUNS.c.run_id.in_(store.run_ids(identifier)))
            return store.results(*conditions)

    def compare(
        self, a: str, b: str, *, other: StoredResults | None = None
    ) -> tuple[ExperimentComparison, ...]:
        """Return the comparison of stack or run `b` with `a` at each of their common sweep points.

        `a` and `b` are a stack's name, SESSION/STACK, or the beginning of an id. `other` is the
        store of `b`, by default this one. Raises StoreError for an unknown or ambiguous name.
        """
        with ExitStack() as stack:
            store = stack.enter_context(open_results(self.place))
            second = stack.enter_context(open_results(other.place)) if other else None
            pairs = select_pairs(a, b, store, second)
        return tuple(compare_stored(left, right) for left, right in pairs)

    def __len__(self) -> int:
        with open_results(self.place) as store:
            return store.count()

    def __repr__(self) -> str:
        return f"<StoredResults of {Redactor.of_this_process().redact(self.place)}>"


def open_store(place: str | os.PathLike[str] | None = None) -> StoredResults:
    """Return the results of a folder, or of a database by its address.

    The default is the environment variable ACCEL_BENCH_RESULTS, else `accel_bench_results`. Raises
    StoreError if there are no results.
    """
    stored = StoredResults(place_of(place))
    with database.open_store(stored.place, write=False):
        return stored


def place_of(place: str | os.PathLike[str] | None) -> str:
    """Return a results folder or a database's address: `place`; for None the environment variable
    ACCEL_BENCH_RESULTS, else `accel_bench_results`."""
    return os.environ.get(RESULTS, DEFAULT_RESULTS) if place is None else os.fspath(place)


def _conditions(store: database.Store, where: str | None) -> list[ColumnElement[bool]]:
    return [] if where is None else [condition_of(store, where)]
