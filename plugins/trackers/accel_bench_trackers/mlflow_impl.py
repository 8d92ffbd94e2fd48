"""Log to MLflow by its client, which has no state of the process."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from accel_bench import RunDescription, Summary
from accel_bench_trackers.naming import (
    run_name,
    step_figures,
    verdict_figures,
    verdict_texts,
)

MOST_METRICS, MOST_PARAMS = 1000, 100
"""What MLflow takes in one call."""

MOST_LETTERS = 5000
"""Letters of a value that every store of MLflow takes."""

PREFIX = "accel_bench."
"""Begins the tags that say which run it is."""


class Place(NamedTuple):
    """Place at which runs are logged."""

    uri: str | None
    folder: Path

    def client(self) -> MlflowClient:
        """Return a client; a file of SQLite is made where no other place is named."""
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        uri = self.uri or os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            self.folder.mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{self.folder / 'mlflow.db'}"
        return MlflowClient(uri)

    def experiment(self, client: MlflowClient, name: str) -> str:
        """Return the id of an experiment, which is made where it is not there."""
        found = client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        on_server = self.uri or os.environ.get("MLFLOW_TRACKING_URI")
        artifacts = None if on_server else (self.folder / "mlflow-artifacts").as_uri()
        return str(client.create_experiment(name, artifact_location=artifacts))


def log_run(place: Place, experiment: str, run: RunDescription) -> None:
    """Log a run: settings as parameters, figures and steps as metrics, the rest as tags."""
    client = place.client()
    found = client.create_run(
        place.experiment(client, experiment),
        tags=_tags(run.identity) | _tags(run.effective, "effective."),
        run_name=run_name(run),
    )
    now = int(time.time() * 1000)
    metrics = [Metric(name, value, now, 0) for name, value in run.figures.items()]
    metrics += [
        Metric(name, value, now, step.step)
        for step in run.steps
        for name, value in step_figures(step).items()
    ]
    params = [Param(name, str(value)[:MOST_LETTERS]) for name, value in run.settings.items()]
    _log(client, found.info.run_id, metrics, params)
    ok = run.identity["status"] in ("ok", "degraded")
    client.set_terminated(found.info.run_id, "FINISHED" if ok else "FAILED")


def log_verdict(place: Place, experiment: str, session: str, summary: Summary) -> None:
    """Log the comparison of a session as a run of its own."""
    client = place.client()
    tags = _tags({**verdict_texts(summary), "session": session})
    found = client.create_run(
        place.experiment(client, experiment), tags=tags, run_name=f"verdict-{session}"
    )
    now = int(time.time() * 1000)
    metrics = [Metric(name, value, now, 0) for name, value in verdict_figures(summary)]
    _log(client, found.info.run_id, metrics, [])
    client.set_terminated(found.info.run_id, "FINISHED")


def _log(
    client: MlflowClient, run_id: str, metrics: Sequence[Metric], params: Sequence[Param]
) -> None:
    for start in range(0, len(metrics), MOST_METRICS):
        client.log_batch(run_id, metrics=metrics[start : start + MOST_METRICS])
    for start in range(0, len(params), MOST_PARAMS):
        client.log_batch(run_id, params=params[start : start + MOST_PARAMS])


def _tags(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    return {f"{PREFIX}{prefix}{name}": str(value)[:MOST_LETTERS] for name, value in values.items()}
