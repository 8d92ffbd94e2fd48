"""`wandb`: runs of Weights & Biases, offline unless an option says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from accel_bench import Options, RunDescription, Summary
from accel_bench_trackers.naming import FOLDER
from accel_bench_trackers.tracker import Tracker

if TYPE_CHECKING:
    from accel_bench_trackers.wandb_impl import Target


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
    """Logs runs to Weights & Biases, offline: figures, steps, settings, and the verdict."""

    Options = WandBOptions
    requires = ("wandb>=0.19",)

    def log_run(self, run: RunDescription, results_folder: Path) -> None:
        """Log a run into the group of its session."""
        from accel_bench_trackers import wandb_impl as impl

        impl.log_run(self._target(results_folder), run)

    def log_verdict(self, summary: Summary, session: str, results_folder: Path) -> None:
        """Log the verdict as a run of its session's group."""
        from accel_bench_trackers import wandb_impl as impl

        impl.log_verdict(self._target(results_folder), session, summary)

    def _target(self, results_folder: Path) -> Target:
        from accel_bench_trackers.wandb_impl import Target

        options = self.options
        folder = Path(options.folder or results_folder / FOLDER)
        return Target(options.mode, options.project, options.entity, folder)
