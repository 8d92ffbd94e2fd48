"""`mlflow`: runs of MLflow, in a database of the results folder or on a server."""

from __future__ import annotations

from pathlib import Path

from accel_bench import Options, Plugin, Result, Summary, describe_run, hookimpl
from accel_bench.builtin.trackers.naming import FOLDER


class MLflowOptions(Options):
    """Options of `mlflow`."""

    tracking_uri: str | None = None
    """Where MLflow keeps runs; null is what MLFLOW_TRACKING_URI says, else a SQLite file
    `trackers/mlflow.db` in the results folder."""

    experiment: str | None = None
    """Name of the experiment; null is that of the scenario."""


class MLflow(Plugin[MLflowOptions]):
    """Logs runs to MLflow: figures, steps, settings, and the verdict as a run of its own."""

    Options = MLflowOptions
    requires = ("mlflow-skinny>=3",)
    _session = ""

    @hookimpl
    def record_result(
        self, result: Result | None, summary: Summary | None, results_folder: Path
    ) -> None:
        """Log a run; at the end the verdict of its session."""
        from accel_bench.builtin.trackers import mlflow_impl as impl

        place = impl.Place(self.options.tracking_uri, results_folder / FOLDER)
        if result is not None:
            run = describe_run(result)
            self._session = run.identity["session"]
            impl.log_run(place, self.options.experiment or run.identity["scenario"], run)
        elif summary is not None:
            name = self.options.experiment or summary.scenario
            impl.log_verdict(place, name, self._session, summary)
