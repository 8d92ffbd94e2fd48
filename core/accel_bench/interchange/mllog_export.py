"""Write runs as MLPerf's log lines: settings, losses, throughput, start and stop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from accel_bench.interchange.export import ExportedRun
from accel_bench.interchange.mllog import SETTINGS, log_line

CLOCK = "the clock from here on is that of the steps: start-up is not in it"


def write(runs: Iterable[ExportedRun]) -> Iterator[str]:
    """Yield the lines of all runs, each with its id as namespace and its provenance."""
    for run in runs:
        for line in _lines(run):
            yield f"{line}\n"


def _lines(run: ExportedRun) -> Iterator[str]:
    result = run.result
    start, marks = _milliseconds(result.started_at), {"provenance": run.provenance}

    def line(key: str, value: Any, after: float = 0.0, **more: Any) -> str:
        return log_line(result.run_id, start + round(after * 1000), key, value, {**marks, **more})

    yield line("submission_benchmark", result.experiment.scenario.name)
    yield line("submission_entry", result.experiment.stack.name)
    if run.device:
        yield line("submission_platform", run.device)
    for key, setting in SETTINGS.items():
        if (value := run.setting(setting)) is not None:
            yield line(key, value)
    yield line("run_start", None, note=CLOCK)
    elapsed = 0.0
    for step, loss, seconds in _steps(run):
        elapsed += seconds
        if loss is not None:
            yield line("train_loss", loss, elapsed, step_num=step)
    rate = run.rate("samples_per_second", lambda sample: sample.sequences)
    if rate is not None:
        yield line("tracked_stats", {"throughput": rate}, elapsed)
    end = elapsed or result.seconds
    ending = _ending(run)
    yield line("run_stop", None, end, **ending)


def _ending(run: ExportedRun) -> Mapping[str, Any]:
    if run.result.status.completed:
        return {"status": "success"}
    reason = "; ".join(run.result.reasons)
    return {"status": "aborted", "ended_as": run.result.status.value, "reason": reason}


def _steps(run: ExportedRun) -> Iterator[tuple[int, float | None, float]]:
    """Yield number, loss and seconds of each step, warm-up included, of the slowest rank."""
    if run.result.imported:
        loss = run.figure("last_loss")
        if loss is not None:
            yield 0, loss, run.seconds or 0.0
        return
    if run.speed is None:
        return
    windows = [rank.window for rank in run.result.ranks if rank.window]
    taken: dict[int, float] = {}
    for window in windows:
        for sample in (*window.warmup, *window.discarded, *window.samples):
            taken[sample.step] = max(sample.seconds, taken.get(sample.step, 0.0))
    for step in sorted(taken):
        yield step, run.speed.losses[step], taken[step]


def _milliseconds(started_at: str) -> int:
    try:
        moment = datetime.fromisoformat(started_at.replace("Z", "+00:00"))
    except ValueError:
        return 0
    return round(moment.timestamp() * 1000)
