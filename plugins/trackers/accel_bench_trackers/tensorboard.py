"""The tracker `tensorboard`: event files for TensorBoard."""

from __future__ import annotations

from pathlib import Path

from accel_bench import Options, RunDescription, Summary
from accel_bench_trackers.tracker import FOLDER, Tracker, run_name


class TensorBoardOptions(Options):
    """Options of `tensorboard`: the folder of event files."""

    folder: str | None = None
    """Folder to write to; null is `trackers/tensorboard` in the results folder."""


class TensorBoard(Tracker[TensorBoardOptions]):
    """Logs runs as event files of TensorBoard: figures, steps, settings, and the verdict."""

    Options = TensorBoardOptions
    requires = ("tensorboard>=2.19",)

    def log_run(self, run: RunDescription, results_folder: Path) -> None:
        """Write an event folder for a run, in the folder of the run's session."""
        from accel_bench_trackers import tensorboard_impl as impl

        own = self._folder(results_folder) / run.identity["session"] / run_name(run)
        impl.write_run(own, run)
        if run.series:
            impl.write_series(own / "series", run)

    def log_verdict(self, summary: Summary, session: str, results_folder: Path) -> None:
        """Write an event folder for the verdict of a session."""
        from accel_bench_trackers import tensorboard_impl as impl

        impl.write_verdict(self._folder(results_folder) / session / "verdict", summary)

    def _folder(self, results_folder: Path) -> Path:
        return Path(self.options.folder or results_folder / FOLDER / "tensorboard")
