"""Reader and writer of results as MLPerf's log lines, `:::MLLOG {...}`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from accel_bench.analysis.tables.listing import provenance_of
from accel_bench.errors import ImportFileError
from accel_bench.interchange import UNKNOWN, Format, ImportedRow, SourceFile
from accel_bench.result import Metric, Result, Status
from accel_bench_interop import parse
from accel_bench_interop.exported_runs import ExportedRun

LINE = re.compile(r":::MLLOG\s+(\{.*\})\s*$")

SETTINGS: parse.Settings = {
    "train.global_batch_size": ("global_batch_size", parse.positive_integer),
    "train.micro_batch_size": ("micro_batch_size", parse.positive_integer),
    "train.gradient_accumulation": ("gradient_accumulation_steps", parse.positive_integer),
    "data.sequence_length": ("max_sequence_length", parse.positive_integer),
    "train.learning_rate": ("opt_base_learning_rate", parse.number),
    "adapter.r": ("lora_rank", parse.positive_integer),
    "adapter.alpha": ("lora_alpha", parse.number),
}
"""Log key and parser of each scenario setting, for reading and writing."""

WRITTEN = {"train.seed": "seed", "optimizer.use": "opt_name"}
"""Log key of settings that are only written: another program's optimizer names differ, and equal
seeds give it other random numbers."""

SERIES = ("train_loss", "eval_accuracy", "eval_loss", "throughput")
"""Repeated log keys, of which all entries are imported."""

SIZES = ("global_batch_size", "micro_batch_size", "gradient_accumulation")
"""Settings of `train` that determine the number of devices."""

CLOCK = "the clock from here on is that of the steps: start-up is not in it"

CUT_OFF = "inferred, the log states no end: it was cut off before run_stop"


@dataclass(frozen=True)
class Event:
    """One line of an MLPerf log."""

    key: str
    value: Any
    milliseconds: float | None
    metadata: Mapping[str, Any]
    namespace: str


def recognizes(source: SourceFile) -> bool:
    """Return whether a file has a line with `:::MLLOG`."""
    return ":::MLLOG" in source.text


def read(source: SourceFile) -> Iterator[ImportedRow]:
    """Yield a row for each namespace of a log. Raises ImportFileError for a broken line."""
    source.check_values()
    spaces: dict[str, list[Event]] = {}
    for place, line in enumerate(source.text.splitlines(), 1):
        if ":::MLLOG" in line:
            event = _event(line, f"{source.path}:{place}")
            spaces.setdefault(event.namespace, []).append(event)
    for namespace, events in spaces.items():
        yield _row(namespace, events)


def _event(line: str, where: str) -> Event:
    match = LINE.search(line)
    try:
        data = json.loads(match[1]) if match else None
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or not isinstance(data.get("key"), str):
        raise ImportFileError(f"{where}: a line of :::MLLOG without a JSON object that has a key")
    metadata = data.get("metadata")
    return Event(
        data["key"],
        data.get("value"),
        parse.number(data.get("time_ms")),
        metadata if isinstance(metadata, dict) else {},
        parse.one_line(data.get("namespace") or ""),
    )


def _row(namespace: str, events: Sequence[Event]) -> ImportedRow:
    facts = {event.key: event.value for event in events}
    times = {event.key: event.milliseconds for event in events}
    status, reasons = _ending(events)
    submitted = facts.get("submission_entry") or facts.get("submission_org")
    corrections: list[str] = []
    metrics = list(_figures(events, times, corrections))
    stated = parse.settings(facts, SETTINGS)
    _fit_sizes(stated, corrections)
    return ImportedRow(
        key=namespace or "log",
        scenario=parse.one_line(facts.get("submission_benchmark") or UNKNOWN),
        stack=parse.one_line(submitted or UNKNOWN),
        settings=stated,
        metrics=metrics,
        status=status,
        reasons=reasons,
        corrections=corrections,
        series=_series(events),
        machine=parse.one_line(facts.get("submission_platform") or ""),
        started_at=_time(times.get("run_start")),
        seconds=_span(times, "run_start", "run_stop"),
    )


def _fit_sizes(stated: dict[str, Any], corrections: list[str]) -> None:
    """Add the number of devices to the settings `stated`, derived from the batch sizes.

    Batch sizes that do not divide the global one are removed from `stated`. Each change is added to
    `corrections`.
    """
    total, micro, steps = (stated.get(f"train.{key}") for key in SIZES)
    parts = (micro or 1) * (steps or 1)
    if total is None or (micro is None and total % parts == 0):
        return
    if micro is not None and steps is not None and total % parts == 0:
        stated["resources.devices"] = total // parts
        corrections.append("the number of devices was worked out from the batch sizes")
        return
    for key in SIZES[1:]:
        if stated.pop(f"train.{key}", None) is not None:
            corrections.append(f"{key} was left out: it does not divide the global batch size")


def _figures(
    events: Sequence[Event], times: Mapping[str, float | None], corrections: list[str]
) -> Iterator[Metric]:
    """Yield metrics: seconds to train and to start up, and the last value of each repeated log key.

    `times` are points in time in milliseconds by log key. Notes on the figures are added to
    `corrections`.
    """
    seconds = _span(times, "run_start", "run_stop")
    if seconds is not None:
        corrections.append("time to train is run_stop - run_start, evaluations included")
        yield parse.figure("time_to_train_seconds", seconds, "seconds", "global", "lower")
    start_up = _span(times, "init_start", "init_stop")
    if start_up is not None:
        yield parse.figure("start_up_seconds", start_up, "seconds", "global", "lower")
    for key, values in _series(events).items():
        if key == "throughput":
            corrections.append("throughput is the last of tracked_stats, in samples/s, global")
            yield parse.figure("samples_per_second", values[-1], "1/s", "global", "higher")
        elif not key.endswith("_step"):
            better: parse.Better = "higher" if key == "eval_accuracy" else "lower"
            name = "last_loss" if key == "train_loss" else key
            yield parse.figure(name, values[-1], "1", "global", better)


def _series(events: Sequence[Event]) -> dict[str, list[float | None]]:
    """Return all values of each log key in `SERIES` under KEY, and their steps under `KEY_step`."""
    series: dict[str, list[float | None]] = {}
    for event in events:
        values = event.value if event.key == "tracked_stats" else {event.key: event.value}
        if not isinstance(values, Mapping):
            continue
        for key in SERIES:
            if key in values:
                series.setdefault(key, []).append(parse.number(values[key]))
                series.setdefault(f"{key}_step", []).append(_step(event))
    return {key: values for key, values in series.items() if any(v is not None for v in values)}


def _step(event: Event) -> float | None:
    for key in ("step_num", "step", "samples_count", "epoch_num"):
        if (value := parse.number(event.metadata.get(key))) is not None:
            return value
    return None


def _ending(events: Sequence[Event]) -> tuple[Status, Sequence[str]]:
    stop = next((event for event in reversed(events) if event.key == "run_stop"), None)
    if stop is None:
        return Status.FAILED, (CUT_OFF,)
    status = parse.one_line(stop.metadata.get("status", "success"))
    if status == "success":
        return Status.OK, ()
    return Status.FAILED, (f"run_stop states the status {status!r}",)


def _span(times: Mapping[str, float | None], start: str, stop: str) -> float | None:
    first, last = times.get(start), times.get(stop)
    return None if first is None or last is None or last < first else (last - first) / 1000


def _time(milliseconds: float | None) -> str:
    if milliseconds is None or not 0 <= milliseconds < 4e12:
        return ""
    moment = datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def write(results: Iterable[Result]) -> Iterator[str]:
    """Yield the log lines of all runs; a run's id is the namespace of its lines."""
    for run in map(ExportedRun, results):
        yield from _lines(run)


def _lines(run: ExportedRun) -> Iterator[str]:
    result = run.result
    start, marks = _milliseconds(result.started_at), {"provenance": provenance_of(result)}

    def line(key: str, value: Any, after: float = 0.0, **more: Any) -> str:
        kind = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}
        event = {
            "namespace": result.run_id,
            "time_ms": start + round(after * 1000),
            "event_type": kind.get(key.rpartition("_")[2], "POINT_IN_TIME"),
            "key": key,
            "value": value,
            "metadata": {**marks, **more},
        }
        return f":::MLLOG {json.dumps(event)}\n"

    yield line("submission_benchmark", result.experiment.scenario.name)
    yield line("submission_entry", result.experiment.stack.name)
    if run.device:
        yield line("submission_platform", run.device)
    keys = {**WRITTEN, **{setting: key for setting, (key, _) in SETTINGS.items()}}
    for setting, key in keys.items():
        if (value := run.setting(setting)) is not None:
            yield line(key, value)
    yield line("run_start", None, note=CLOCK)
    elapsed = 0.0
    for step, loss, seconds in _steps(run):
        elapsed += seconds
        if loss is not None:
            yield line("train_loss", loss, elapsed, step_num=step)
    if (rate := run.figures.get("samples_per_second")) is not None:
        yield line("tracked_stats", {"throughput": rate}, elapsed)
    ending = {"status": "success"}
    if not result.status.completed:
        reason = "; ".join(result.reasons)
        ending = {"status": "aborted", "ended_as": result.status.value, "reason": reason}
    yield line("run_stop", None, elapsed or result.seconds, **ending)


def _steps(run: ExportedRun) -> Iterator[tuple[int, float | None, float]]:
    """Yield each step's number, loss, and seconds on the slowest rank, also in the warm-up."""
    if run.result.imported:
        loss = run.figures.get("last_loss")
        if loss is not None:
            yield 0, loss, run.seconds or 0.0
        return
    if run.speed is None:
        return
    windows = [rank.window for rank in run.result.ranks if rank.window]
    slowest: dict[int, float] = {}
    for window in windows:
        for sample in window.all_steps:
            slowest[sample.step] = max(sample.seconds, slowest.get(sample.step, 0.0))
    for step in sorted(slowest):
        yield step, run.speed.losses[step], slowest[step]


def _milliseconds(started_at: str) -> int:
    try:
        moment = datetime.fromisoformat(started_at.replace("Z", "+00:00"))
    except ValueError:
        return 0
    return round(moment.timestamp() * 1000)


FORMAT = Format(description="log of MLPerf", recognizes=recognizes, read=read, write=write)
