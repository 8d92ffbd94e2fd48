"""The tracker `mlflow`: runs of MLflow, in a database of the results folder or on a server."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel_bench import Options, RunDescription, Summary
from accel_bench_trackers.tracker import (
    FOLDER,
    Tracker,
    run_name,
    step_figures,
    verdict_figures,
    verdict_texts,
)

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

MOST_METRICS, MOST_PARAMS = 1000, 100
"""Maximum metrics and parameters in one call to MLflow."""

MOST_LETTERS = 5000
"""Maximum characters of a value that every MLflow store accepts."""

PREFIX = "accel_bench."
"""Prefix of the MLflow tags that identify a run."""


class MLflowOptions(Options):
    """Options of `mlflow`: its store and experiment."""

    tracking_uri: str | None = None
    """Address of MLflow's store; null is MLFLOW_TRACKING_URI if set, else a SQLite file
    `trackers/mlflow.db` in the results folder."""

    experiment: str | None = None
    """Name of the experiment; null is the name of the scenario."""


class MLflow(Tracker[MLflowOptions]):
    """Logs runs to MLflow: figures, steps, settings, and the verdict as a run of its own.

    It uses MLflow's client class, which changes no state of the process.
    """

    Options = MLflowOptions
    requires = ("mlflow-skinny>=3",)

    def log_run(self, run: RunDescription, results_folder: Path) -> None:
        """Log a run: settings as parameters, figures and steps as metrics, and the rest as tags."""
        from mlflow.entities import Param

        client, experiment = self._experiment(results_folder / FOLDER, run.identity["scenario"])
        tags = _tags(run.identity) | _tags(run.effective, "effective.")
        run_id = client.create_run(experiment, tags=tags, run_name=run_name(run)).info.run_id
        steps = [(figure, step.step) for step in run.steps for figure in step_figures(step).items()]
        _log_figures(client, run_id, [*((figure, 0) for figure in run.figures.items()), *steps])
        params = [Param(name, str(value)[:MOST_LETTERS]) for name, value in run.settings.items()]
        for start in range(0, len(params), MOST_PARAMS):
            client.log_batch(run_id, params=params[start : start + MOST_PARAMS])
        ok = run.identity["status"] in ("ok", "degraded")
        client.set_terminated(run_id, "FINISHED" if ok else "FAILED")

    def log_verdict(self, summary: Summary, session: str, results_folder: Path) -> None:
        """Log the comparison of a session as a separate MLflow run.

        `session` is the session's id.
        """
        client, experiment = self._experiment(results_folder / FOLDER, summary.scenario)
        tags, name = _tags({**verdict_texts(summary), "session": session}), f"verdict-{session}"
        run_id = client.create_run(experiment, tags=tags, run_name=name).info.run_id
        _log_figures(client, run_id, [(metric, 0) for metric in verdict_figures(summary)])
        client.set_terminated(run_id, "FINISHED")

    def _experiment(self, folder: Path, scenario: str) -> tuple[MlflowClient, str]:
        """Return a client and the id of the MLflow experiment, which is created if missing.

        `folder` is the folder of the default store, and `scenario` the experiment's default name.
        """
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        uri = self.options.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        artifacts = None
        if not uri:
            folder.mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{folder / 'mlflow.db'}"
            artifacts = (folder / "mlflow-artifacts").as_uri()
        client, name = MlflowClient(uri), self.options.experiment or scenario
        if named := client.get_experiment_by_name(name):
            return client, str(named.experiment_id)
        return client, str(client.create_experiment(name, artifact_location=artifacts))


def _log_figures(
    client: MlflowClient, run_id: str, figures: Sequence[tuple[tuple[str, float], int]]
) -> None:
    """Log metrics to an MLflow run; a figure is ((metric name, value), step number)."""
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    metrics = [Metric(name, value, now, step) for (name, value), step in figures]
    for start in range(0, len(metrics), MOST_METRICS):
        client.log_batch(run_id, metrics=metrics[start : start + MOST_METRICS])


def _tags(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    return {f"{PREFIX}{prefix}{name}": str(value)[:MOST_LETTERS] for name, value in values.items()}
