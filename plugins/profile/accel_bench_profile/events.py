"""Scalars of measured steps, and of steps taken for a profile, as event files of TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from accel_bench.interchange.tensorboard_events import needing_tensorboard
from accel_bench.result import Window
from accel_bench_profile.figures.memory_schema import StepScalars

WALL_TIME, ELAPSED_TIME = "Wall Time", "Elapsed Time"
ELEMENTS_PER_SECOND, MEMORY = "Elements per Second", "Memory"
"""Tags of a step: its seconds, those since the first step began, tokens in a second, and bytes."""


def write_scalars(folder: Path, rows: Iterable[tuple[int, Mapping[str, float]]]) -> None:
    """Write the scalars of steps, by tag, as an event file in a folder.

    Raises AccelBenchError where tensorboard is not installed.
    """
    with needing_tensorboard():
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
