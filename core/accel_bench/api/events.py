"""Reader of TensorBoard's event files into tables."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel_bench.api.frame import to_frame
from accel_bench.errors import AccelBenchError

if TYPE_CHECKING:
    import pandas

LOGGER = logging.getLogger("accel_bench")

RECORD_BYTES = 16
"""Bytes that a record of an event file has beside its event: length and checksums."""

MARK = "tfevents"
"""Part of the name of every event file."""


def read_events(folder: str | os.PathLike[str]) -> pandas.DataFrame:
    """Return the scalars of all event files in a folder: a row for each step of each run.

    Column `run` is the path of the event files' folder, relative to `folder`. Column `wall_time` is
    in seconds since 1970. Further columns are `step` and one for each tag, such as `Wall Time`, the
    seconds of a step. Steps per second of one run are `len(seconds) / seconds.sum()` with `seconds
    = frame["Wall Time"].dropna()`.

    Raises AccelBenchError if the folder has no event files, or if tensorboard or pandas is missing.
    """
    return to_frame(read_scalars(Path(folder)))


def read_scalars(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each step of each folder with event files in or below `folder`.

    Key `run` of a row is the path of its folder, relative to `folder`, and `wall_time` is in
    seconds since 1970. Further keys are `step` and the tags that have a value at the step. A
    warning names each damaged or unfinished file, of which TensorBoard reads only a part. Raises
    AccelBenchError if there are no event files, or if tensorboard is missing.
    """
    folders = sorted({Path(path) for path, _, names in os.walk(folder) if _events(names)})
    if not folders:
        raise AccelBenchError(f"{folder} holds no event files of TensorBoard (*{MARK}*)")
    with needing_tensorboard():
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    for place in folders:
        _warn_of_damage(place)
        events = EventAccumulator(str(place), size_guidance={"scalars": 0, "tensors": 1}).Reload()
        rows: dict[int, dict[str, Any]] = {}
        for tag in events.Tags()["scalars"]:
            for event in events.Scalars(tag):
                row = rows.setdefault(event.step, {"wall_time": event.wall_time})
                row[tag] = event.value
        run = place.relative_to(folder).as_posix()
        yield from ({"run": run, "step": step, **rows[step]} for step in sorted(rows))


def _warn_of_damage(folder: Path) -> None:
    """Log a warning for each event file that TensorBoard cannot read to its end."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

    for path in sorted(path for path in folder.iterdir() if MARK in path.name and path.is_file()):
        intact = sum(len(record) + RECORD_BYTES for record in RawEventFileLoader(str(path)).Load())
        if left := path.stat().st_size - intact:
            LOGGER.warning(
                "%s: damaged, or still written: its last %s bytes, from byte %s on, are not read",
                *(path, f"{left:,}", f"{intact:,}"),
            )


def _events(names: Iterable[str]) -> bool:
    return any(MARK in name for name in names)


@contextmanager
def needing_tensorboard() -> Iterator[None]:
    """Turn an ImportError in the `with` block into AccelBenchError with the install command."""
    try:
        yield
    except ImportError as error:
        raise AccelBenchError(
            f"event files need tensorboard, which cannot be imported ({error}); "
            "pip install 'accel-bench[tensorboard]'"
        ) from error
