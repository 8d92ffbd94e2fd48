"""`mlflow`: runs of MLflow, in a database of the results folder or on a server."""

from __future__ import annotations

from pathlib import Path

from accel_bench import Options, RunDescription, Summary
from accel_bench_trackers.naming import FOLDER
from accel_bench_trackers.tracker import Tracker


class MLflowOptions(Options):
    """Options of `mlflow`."""

    tracking_uri: str | None = None
    """Address at which MLflow keeps runs; null is what MLFLOW_TRACKING_URI says, else a SQLite file
    `trackers/mlflow.db` in the results folder."""

    experiment: str | None = None
    """Name of the experiment; null is that of the scenario."""


class MLflow(Tracker[MLflowOptions]):
    """Logs runs to MLflow: figures, steps, settings, and the verdict as a run of its own."""

    Options = MLflowOptions
    requires = ("mlflow-skinny>=3",)

    def log_run(self, run: RunDescription, results_folder: Path) -> None:
        """Log a run of MLflow in the experiment of its scenario."""
        from accel_bench_trackers import mlflow_impl as impl

        experiment = self.options.experiment or run.identity["scenario"]
        impl.log_run(
            impl.Place(self.options.tracking_uri, results_folder / FOLDER), experiment, run
        )

    def log_verdict(self, summary: Summary, session: str, results_folder: Path) -> None:
        """Log the verdict as a run of its own."""
        from accel_bench_trackers import mlflow_impl as impl

        experiment = self.options.experiment or summary.scenario
        place = impl.Place(self.options.tracking_uri, results_folder / FOLDER)
        impl.log_verdict(place, experiment, session, summary)
