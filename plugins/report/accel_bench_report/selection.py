"""Command-line options that select stored experiments or runs, and read them from the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from accel_bench.cli.options import DEFAULT_RESULTS, Names, ResultsOption, Where

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from accel_bench.analysis.aggregate import ExperimentRuns
    from accel_bench.result import Result
    from accel_bench.store.database import Store


@dataclass(frozen=True, kw_only=True)
class ExperimentOptions:
    """Options that select stored experiments by name."""

    experiments: Annotated[
        Names,
        typer.Argument(
            metavar="ID",
            help="Runs, experiments or sessions; their beginning or number will do. Without any, "
            "all.",
        ),
    ] = None
    results: ResultsOption = DEFAULT_RESULTS

    def conditions(self, store: Store) -> list[ColumnElement[bool]]:
        """Return the SQL conditions that select the runs; an empty list selects all runs.

        Raises StoreError for an unknown id.
        """
        from accel_bench.store.schema import RUNS

        names = self.experiments or ()
        ids = {run.experiment.id for name in names for run in store.find(name)}
        return [RUNS.c.experiment_id.in_(sorted(ids))] if names else []

    def read_experiments(self) -> tuple[list[ExperimentRuns], dict[str, str]]:
        """Return the selected experiments, and the names of baselines by session id.

        Raises StoreError for an unknown id, or a store that cannot be read.
        """
        from accel_bench.runner.interrupted import open_results
        from accel_bench.store.selection import select_experiments

        with open_results(self.results) as store:
            return select_experiments(store, *self.conditions(store))


@dataclass(frozen=True, kw_only=True)
class SelectionOptions(ExperimentOptions):
    """Options that select stored runs."""

    where: Where = None

    def conditions(self, store: Store) -> list[ColumnElement[bool]]:
        """Return the SQL conditions that select the runs; an empty list selects all runs.

        Raises StoreError for an unknown id or an invalid condition.
        """
        from accel_bench.store.queries import condition_of

        given = [condition_of(store, self.where)] if self.where is not None else []
        return [*given, *super().conditions(store)]

    def read_with_baselines(self) -> tuple[list[Result], dict[str, str]]:
        """Return the selected runs, and the names of baselines by session id.

        Raises StoreError for an unknown id or condition, or a store that cannot be read.
        """
        from accel_bench.runner.interrupted import open_results

        with open_results(self.results) as store:
            results = store.results(*self.conditions(store))
            sessions = store.sessions({run.session for run in results})
        return results, {session.id: session.baseline for session in sessions}
