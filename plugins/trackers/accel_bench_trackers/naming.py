"""What all trackers log alike: names of runs, figures of a step, and the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from accel_bench import ExperimentSummary, RunDescription, Step, Summary, conclusion

FOLDER = "trackers"
"""Folder of the results folder that trackers write to."""


def run_name(run: RunDescription) -> str:
    """Return a name of a run that sorts by stack, sweep point and round."""
    identity = run.identity
    point = f"-{identity['tag']}" if identity.get("tag") else ""
    return f"{identity['stack']}{point}-round{identity['round'] + 1}-{identity['run_id']}"


def step_figures(step: Step) -> dict[str, float]:
    """Return what is logged of a step; the time of a warm-up step is none of the window's."""
    found: dict[str, float] = {"step.real_tokens": step.real_tokens}
    found["step.seconds" if step.measured else "step.warmup_seconds"] = step.seconds
    if step.loss is not None:
        found["step.loss"] = step.loss
    return found


WINDOW_TAGS = ("Wall Time", "Elapsed Time", "Elements per Second")
"""Tags of a measured step: its seconds, those since the window began, and tokens in a second."""


def window_scalars(steps: Iterable[Step]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the number and the scalars of each measured step, by the tags that profilers use."""
    elapsed = 0.0
    for step in steps:
        if step.measured:
            elapsed += step.seconds
            rate = step.real_tokens / step.seconds if step.seconds else 0.0
            found = (step.seconds, elapsed, rate)
            yield step.step, dict(zip(WINDOW_TAGS, found, strict=True))


def verdict_figures(summary: Summary) -> Iterator[tuple[str, float]]:
    """Yield the figures of the comparison by name; those of a stack begin with its name."""
    for row in summary.experiments:
        name = row_name(row)
        speed, ratio = row.tokens_per_second, row.ratio
        if speed is not None:
            yield f"{name}.tokens_per_second", speed.median
        if ratio is not None:
            yield f"{name}.speed_ratio", ratio.median
            for end, value in (("low", ratio.low), ("high", ratio.high)):
                if value is not None:
                    yield f"{name}.speed_ratio_{end}", value


def row_name(row: ExperimentSummary) -> str:
    """Return the stack, and its sweep point where there are several."""
    return f"{row.stack}.{row.tag}" if row.tag else row.stack


def verdict_texts(summary: Summary) -> dict[str, str]:
    """Return the conclusion, and each row's status and verdict, by name."""
    rows = {f"verdict.{row_name(row)}": _words(row) for row in summary.experiments}
    return {"conclusion": conclusion(summary), "baseline": summary.baseline, **rows}


def _words(row: ExperimentSummary) -> str:
    words = [row.status.value, row.verdict or row.verdict_reason, row.loss_word]
    return "; ".join(word for word in words if word)
