"""`wandb`: runs of Weights & Biases, offline unless an option says otherwise."""

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
    """Options of `wandb`."""

    mode: Literal["offline", "online"] = "offline"
    """`offline` writes files, which `wandb sync` sends; `online` sends at once."""

    project: str | None = None
    """Name of the project; null is that of the scenario."""

    entity: str | None = None
    """Team or user; null is the default of the account."""

    folder: str | None = None
    """Folder to write to; null is `trackers` in the results folder."""


class WandB(Tracker[WandBOptions]):
    """Logs runs to Weights & Biases, offline: figures, steps, settings, and the verdict.

    Nothing of the machine is sampled, and nothing is reported home.
    """

    Options = WandBOptions
    requires = ("wandb>=0.19",)

    def log_run(self, run: RunDescription, results_folder: Path) -> None:
        """Log a run: settings as its configuration, steps as history, figures as its summary."""
        config = {**run.settings, "effective": run.effective, "run": run.identity}
        scenario, session = run.identity["scenario"], run.identity["session"]
        with self._run(results_folder, scenario, session, run_name(run), config) as to:
            for step in run.steps:
                to.log(step_figures(step), step=step.step)
            to.summary.update({**run.figures, "status": run.identity["status"]})

    def log_verdict(self, summary: Summary, session: str, results_folder: Path) -> None:
        """Log the comparison of a session as a run of its group."""
        name = f"verdict-{session}"
        with self._run(results_folder, summary.scenario, session, name, {}) as to:
            to.summary.update({**verdict_texts(summary), **dict(verdict_figures(summary))})

    @contextmanager
    def _run(
        self, results_folder: Path, scenario: str, session: str, name: str, config: dict[str, Any]
    ) -> Iterator[Any]:
        """Open a run and end it with the block, and wandb's own process where none was before."""
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
    """Return whether wandb serves this process already: it is the caller's, and stays up.

    Where a version does not tell, it stays up too, and ends with the process.
    """
    try:
        setup = sys.modules["wandb.sdk.wandb_setup"]._singleton
        return setup is not None and setup._connection is not None
    except (AttributeError, KeyError):
        return True
