"""The base of the trackers in the box: log runs, then the verdict of their session."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from accel_bench import Options, Plugin, Result, RunDescription, Summary, describe_run, hookimpl

OptionsT = TypeVar("OptionsT", bound=Options)


class Tracker(Plugin[OptionsT]):
    """Logs each stored run, and at the end the verdict of its session."""

    _session = "no-session"
    """Session of the newest run; a summary does not name its own."""

    @hookimpl
    def record_result(
        self, result: Result | None, summary: Summary | None, results_folder: Path
    ) -> None:
        """Log a run; at the end the verdict of its session."""
        if result is not None:
            run = describe_run(result)
            self._session = run.identity["session"]
            self.log_run(run, results_folder)
        elif summary is not None:
            self.log_verdict(summary, self._session, results_folder)

    def log_run(self, run: RunDescription, results_folder: Path) -> None:
        """Log a run that is stored."""
        raise NotImplementedError

    def log_verdict(self, summary: Summary, session: str, results_folder: Path) -> None:
        """Log the comparison of a session."""
        raise NotImplementedError
