"""Writing of event files by TensorBoard's own writer, without tensorflow or torch."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary as Values
from tensorboard.compat.proto.summary_pb2 import SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from accel_bench import RunDescription, Summary
from accel_bench_trackers.tracker import (
    step_figures,
    verdict_figures,
    verdict_texts,
    window_scalars,
)


def write_run(folder: Path, run: RunDescription) -> None:
    """Write a run to an event folder: metrics at step 0, steps, and settings.

    Settings are written as text and as hyperparameters.
    """
    with _writer(folder) as writer:
        plain = {
            name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
            for name, value in {"stack": run.identity["stack"], **run.settings}.items()
        }
        parameters = hparams_pb(plain, trial_id=run.identity["run_id"])
        writer.add_event(Event(wall_time=time.time(), summary=parameters))
        for name, values in (
            ("run", run.identity),
            ("settings", run.settings),
            ("effective", run.effective),
        ):
            _write(writer, 0, _text(name, _table(values)))
        for name, value in run.figures.items():
            _write(writer, 0, Values.Value(tag=name, simple_value=value))
        for step in run.steps:
            _write(writer, step.step, *_scalars(step_figures(step)))
        for number, scalars in window_scalars(run.steps):
            _write(writer, number, *_scalars(scalars))


def write_series(folder: Path, run: RunDescription) -> None:
    """Write all readings of a run's quantities over time to an event folder.

    The step number is the milliseconds since the first reading.
    """
    began = datetime.fromisoformat(run.identity["started_at"]).timestamp()
    first = min(series.times[0] for series in run.series.values())
    with _writer(folder) as writer:
        for name, series in run.series.items():
            for at, value in zip(series.times, series.values, strict=True):
                summary = Values(value=_scalars({name: value}))
                step = round((at - first) * 1000)
                writer.add_event(Event(wall_time=began + at - first, step=step, summary=summary))


def write_verdict(folder: Path, summary: Summary) -> None:
    """Write a session's comparison to an event folder: conclusion, and numbers for each stack."""
    with _writer(folder) as writer:
        _write(writer, 0, _text("verdict", _table(verdict_texts(summary))))
        for name, value in verdict_figures(summary):
            _write(writer, 0, Values.Value(tag=f"verdict.{name}", simple_value=value))


@contextmanager
def _writer(folder: Path) -> Iterator[EventFileWriter]:
    writer = EventFileWriter(str(folder))
    try:
        yield writer
    finally:
        writer.close()


def _write(writer: EventFileWriter, step: int, *values: Values.Value) -> None:
    writer.add_event(Event(wall_time=time.time(), step=step, summary=Values(value=values)))


def _scalars(values: Mapping[str, float]) -> list[Values.Value]:
    return [Values.Value(tag=tag, simple_value=value) for tag, value in values.items()]


def _text(name: str, text: str) -> Values.Value:
    """Return a Markdown text as a value for TensorBoard's text dashboard, called `name` there."""
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
    return Values.Value(tag=name, metadata=metadata, tensor=tensor)


def _table(values: Mapping[str, Any]) -> str:
    rows = [f"| {name} | {str(value).replace('|', '&#124;')} |" for name, value in values.items()]
    return "\n".join(["| key | value |", "| --- | --- |", *rows])
