"""Base class of the included trackers, and the figures that they log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from accel_bench import (
    ExperimentSummary,
    Options,
    Plugin,
    Result,
    RunDescription,
    Step,
    Summary,
    conclusion,
    describe_run,
    hookimpl,
)

OptionsT = TypeVar("OptionsT", bound=Options)

FOLDER = "trackers"
"""Name of the folder for trackers' files in the results folder."""


class Tracker(Plugin[OptionsT]):
    """Logs each stored run, and at the end the verdict of its session."""

    _session = "no-session"
    """Id of the newest run's session, since a summary has no session id."""

    @hookimpl
    def record_result(
        self, result: Result | None, summary: Summary | None, results_folder: Path
    ) -> None:
        """Log the stored run `result`, or at a session's end the verdict in `summary`."""
        if result is not None:
            run = describe_run(result)
            self._session = run.identity["session"]
            self.log_run(run, results_folder)
        elif summary is not None:
            self.log_verdict(summary, self._session, results_folder)

    def log_run(self, run: RunDescription, results_folder: Path) -> None:
        """Log a stored run to the tracker's program."""
        raise NotImplementedError

    def log_verdict(self, summary: Summary, session: str, results_folder: Path) -> None:
        """Log the comparison of the session with the id `session` to the tracker's program."""
        raise NotImplementedError


def run_name(run: RunDescription) -> str:
    """Return a run's name in the tracker, made of stack, sweep point, round and run id."""
    identity = run.identity
    point = f"-{identity['tag']}" if identity.get("tag") else ""
    return f"{identity['stack']}{point}-round{identity['round'] + 1}-{identity['run_id']}"


def step_figures(step: Step) -> dict[str, float]:
    """Return a step's tokens, seconds and loss by name, with another name for warm-up seconds."""
    values: dict[str, float] = {"step.real_tokens": step.real_tokens}
    values["step.seconds" if step.measured else "step.warmup_seconds"] = step.seconds
    if step.loss is not None:
        values["step.loss"] = step.loss
    return values


WINDOW_TAGS = ("Wall Time", "Elapsed Time", "Elements per Second")
"""Profilers' tags of a measured step: seconds, seconds since the window began, and tokens/s."""


def window_scalars(steps: Iterable[Step]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the number of each measured step, with its values under the tags of `WINDOW_TAGS`."""
    elapsed = 0.0
    for step in steps:
        if step.measured:
            elapsed += step.seconds
            rate = step.real_tokens / step.seconds if step.seconds else 0.0
            scalars = (step.seconds, elapsed, rate)
            yield step.step, dict(zip(WINDOW_TAGS, scalars, strict=True))


def verdict_figures(summary: Summary) -> Iterator[tuple[str, float]]:
    """Yield named numbers of each row of a summary: speed, ratio to the baseline, interval ends.

    A name begins with the row's stack. The interval is that of the ratio.
    """
    for row in summary.experiments:
        name = row_name(row)
        speed, ratio = row.tokens_per_second, row.ratio
        if speed is not None:
            yield f"{name}.tokens_per_second", speed.median
        if ratio is not None:
            what = "speed_ratio" if row.quantity.of_speed else f"times_as_good.{row.quantity.name}"
            yield f"{name}.{what}", ratio.median
            for end, value in (("low", ratio.low), ("high", ratio.high)):
                if value is not None:
                    yield f"{name}.{what}_{end}", value


def row_name(row: ExperimentSummary) -> str:
    """Return a row's name: its stack, and its sweep point if there are several, as `STACK.TAG`."""
    return f"{row.stack}.{row.tag}" if row.tag else row.stack


def verdict_texts(summary: Summary) -> dict[str, str]:
    """Return a summary's `conclusion`, `baseline`, and status and verdict by `verdict.ROW`."""
    rows = {f"verdict.{row_name(row)}": _words(row) for row in summary.experiments}
    return {"conclusion": conclusion(summary), "baseline": summary.baseline, **rows}


def _words(row: ExperimentSummary) -> str:
    words = [row.status.value, row.verdict_word or row.verdict_reason, row.loss_word]
    return "; ".join(word for word in words if word)
