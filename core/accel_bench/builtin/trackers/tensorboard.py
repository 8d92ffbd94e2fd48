"""`tensorboard`: event files that TensorBoard shows."""

from __future__ import annotations

from pathlib import Path

from accel_bench import Options, Plugin, Result, Summary, describe_run, hookimpl
from accel_bench.builtin.trackers.naming import FOLDER, run_name


class TensorBoardOptions(Options):
    """Options of `tensorboard`."""

    folder: str | None = None
    """Where to write; null is `trackers/tensorboard` in the results folder."""


class TensorBoard(Plugin[TensorBoardOptions]):
    """Logs runs as event files of TensorBoard: figures, steps, settings, and the verdict."""

    Options = TensorBoardOptions
    requires = ("tensorboard>=2.19",)

    @hookimpl
    def record_result(
        self, result: Result | None, summary: Summary | None, results_folder: Path
    ) -> None:
        """Write a folder of events for a run; at the end one for the verdict of its session."""
        from accel_bench.builtin.trackers import tensorboard_impl as impl

        folder = Path(self.options.folder or results_folder / FOLDER / "tensorboard")
        if result is not None:
            run = describe_run(result)
            impl.write_run(folder / run.identity["session"] / run_name(run), run)
            self._session = run.identity["session"]
        elif summary is not None:
            impl.write_verdict(folder / self._session / "verdict", summary)

    _session = "no-session"
