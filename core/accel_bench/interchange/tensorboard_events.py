"""Scalars of steps as event files of TensorBoard, and event files of anybody as rows."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accel_bench.analysis.profiles.memory_schema import StepScalars
from accel_bench.errors import AccelBenchError
from accel_bench.result import Window

LOGGER = logging.getLogger("accel_bench")

RECORD_BYTES = 16
"""Bytes of a record of an event file beside its event: its length, and checksums of both."""

MARK = "tfevents"
"""What the name of every event file holds."""

WALL_TIME, ELAPSED_TIME = "Wall Time", "Elapsed Time"
ELEMENTS_PER_SECOND, MEMORY = "Elements per Second", "Memory"
"""Tags of a step: its seconds, those since the first step began, tokens in a second, and bytes."""


def write_scalars(folder: Path, rows: Iterable[tuple[int, Mapping[str, float]]]) -> None:
    """Write the scalars of steps, by tag, as an event file in a folder.

    Raises AccelBenchError where tensorboard is not installed.
    """
    with _needing_tensorboard():
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    writer = EventFileWriter(str(folder))
    try:
        for step, scalars in rows:
            values = [Summary.Value(tag=tag, simple_value=one) for tag, one in scalars.items()]
            writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
    finally:
        writer.close()


def window_scalars(window: Window) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the number and the scalars of each measured step."""
    elapsed = 0.0
    for sample in window.samples:
        elapsed += sample.seconds
        yield sample.step, _scalars(sample.seconds, elapsed, sample.real_tokens)


def profile_scalars(
    steps: Iterable[StepScalars], first: int
) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the number and the scalars of each step of a profile, of which memory is known.

    They are numbered from `first`.
    """
    elapsed = 0.0
    for number, step in enumerate(steps, first):
        elapsed += step.seconds
        found = _scalars(step.seconds, elapsed, step.elements)
        yield number, found | ({} if step.memory_bytes is None else {MEMORY: step.memory_bytes})


def _scalars(seconds: float, elapsed: float, elements: int) -> dict[str, float]:
    rate = {ELEMENTS_PER_SECOND: elements / seconds} if seconds else {}
    return {WALL_TIME: seconds, ELAPSED_TIME: elapsed, **rate}


def read_scalars(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each step of each folder with event files, by TensorBoard's own reader.

    A row has `run`, the folder with the events within `folder`, `step`, `wall_time` in seconds
    since 1970, and the value of each tag. A file of which TensorBoard reads a part alone, as it is
    damaged or still written, is named in a warning. Raises AccelBenchError where there are no event
    files, or where tensorboard is not installed.
    """
    folders = sorted({Path(path) for path, _, names in os.walk(folder) if _events(names)})
    if not folders:
        raise AccelBenchError(f"{folder} holds no event files of TensorBoard (*{MARK}*)")
    with _needing_tensorboard():
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    for one in folders:
        _warn_of_damage(one)
        events = EventAccumulator(str(one), size_guidance={"scalars": 0, "tensors": 1}).Reload()
        rows: dict[int, dict[str, Any]] = {}
        for tag in events.Tags()["scalars"]:
            for found in events.Scalars(tag):
                row = rows.setdefault(found.step, {"wall_time": found.wall_time})
                row[tag] = found.value
        run = one.relative_to(folder).as_posix()
        yield from ({"run": run, "step": step, **rows[step]} for step in sorted(rows))


def _warn_of_damage(folder: Path) -> None:
    """Log a warning for each event file that does not end with the last record that is intact:
    TensorBoard's reader stops there without a word."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

    for path in sorted(path for path in folder.iterdir() if MARK in path.name and path.is_file()):
        intact = sum(len(one) + RECORD_BYTES for one in RawEventFileLoader(str(path)).Load())
        if left := path.stat().st_size - intact:
            LOGGER.warning(
                "%s: damaged, or still written: its last %s bytes, from byte %s on, are not read",
                *(path, f"{left:,}", f"{intact:,}"),
            )


def _events(names: Iterable[str]) -> bool:
    return any(MARK in name for name in names)


@contextmanager
def _needing_tensorboard() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise AccelBenchError(
            f"event files need tensorboard, which cannot be imported ({error}); "
            "pip install 'accel-bench[tensorboard]'"
        ) from error
