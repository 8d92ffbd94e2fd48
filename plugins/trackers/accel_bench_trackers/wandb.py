"""The tracker `wandb`: runs of Weights & Biases, by default offline."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from accel_bench import Options, RunDescription, Summary
from accel_bench_trackers.tracker import (
    FOLDER,
    Tracker,
    run_name,
    step_figures,
    verdict_figures,
    verdict_texts,
)


class WandBOptions(Options):
    """Options of `wandb`: its mode, project, entity and folder."""

    mode: Literal["offline", "online"] = "offline"
    """Mode of logging: `offline` writes files for `wandb sync`; `online` uploads at once."""

    project: str | None = None
    """Name of the project; null is the name of the scenario."""

    entity: str | None = None
    """Team or user; null is the account's default."""

    folder: str | None = None
    """Folder to write to; null is `trackers` in the results folder."""


class WandB(Tracker[WandBOptions]):
    """Logs runs to Weights & Biases, offline: figures, steps, settings, and the verdict.

    System metrics and telemetry are off.
    """

    Options = WandBOptions
    requires = ("wandb>=0.19",)

    def log_run(self, run: RunDescription, results_folder: Path) -> None:
        """Log a run: settings as its configuration, steps as history, metrics as its summary."""
        config = {**run.settings, "effective": run.effective, "run": run.identity}
        scenario, session = run.identity["scenario"], run.identity["session"]
        with self._run(results_folder, scenario, session, run_name(run), config) as to:
            for step in run.steps:
                to.log(step_figures(step), step=step.step)
            to.summary.update({**run.figures, "status": run.identity["status"]})

    def log_verdict(self, summary: Summary, session: str, results_folder: Path) -> None:
        """Log the comparison of a session as a run in the session's group."""
        name = f"verdict-{session}"
        with self._run(results_folder, summary.scenario, session, name, {}) as to:
            to.summary.update({**verdict_texts(summary), **dict(verdict_figures(summary))})

    @contextmanager
    def _run(
        self, results_folder: Path, scenario: str, session: str, name: str, config: dict[str, Any]
    ) -> Iterator[Any]:
        """Open a wandb run for the block, and end wandb's process if this call started it.

        `scenario` is the default project, `session` the run's group, and `name` the run's name.
        """
        # Read when it is imported; it would start threads that send reports.
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        import wandb

        before = _is_up()
        folder = Path(self.options.folder or results_folder / FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        run = wandb.init(
            mode=self.options.mode,
            project=self.options.project or scenario,
            entity=self.options.entity,
            group=session,
            name=name,
            dir=str(folder),
            config=config,
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_code=True,
                disable_git=True,
                x_disable_meta=True,
                x_disable_stats=True,
            ),
            reinit="create_new",
        )
        try:
            yield run
        finally:
            run.finish()
            if not before:
                wandb.teardown()


def _is_up() -> bool:
    """Return whether wandb already runs in this process, so that it must be left running.

    Returns True if this version of wandb does not tell.
    """
    try:
        setup = sys.modules["wandb.sdk.wandb_setup"]._singleton
        return setup is not None and setup._connection is not None
    except (AttributeError, KeyError):
        return True
