"""`wandb`: runs of Weights & Biases, offline unless an option says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from accel_bench import Options, Plugin, Result, Summary, describe_run, hookimpl
from accel_bench.builtin.trackers.naming import FOLDER


class WandBOptions(Options):
    """Options of `wandb`."""

    mode: Literal["offline", "online"] = "offline"
    """`offline` writes files, which `wandb sync` sends; `online` sends at once."""

    project: str | None = None
    """Name of the project; null is that of the scenario."""

    entity: str | None = None
    """Team or user; null is the default of the account."""

    folder: str | None = None
    """Where to write; null is `trackers` in the results folder."""


class WandB(Plugin[WandBOptions]):
    """Logs runs to Weights & Biases, offline: figures, steps, settings, and the verdict."""

    Options = WandBOptions
    requires = ("wandb>=0.19",)
    _session = ""

    @hookimpl
    def record_result(
        self, result: Result | None, summary: Summary | None, results_folder: Path
    ) -> None:
        """Log a run into the group of its session; at the end the verdict."""
        from accel_bench.builtin.trackers import wandb_impl as impl

        options = self.options
        folder = Path(options.folder or results_folder / FOLDER)
        target = impl.Target(options.mode, options.project, options.entity, folder)
        if result is not None:
            run = describe_run(result)
            self._session = run.identity["session"]
            impl.log_run(target, run)
        elif summary is not None:
            impl.log_verdict(target, self._session, summary)
