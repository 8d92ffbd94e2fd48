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
"""Text in the name of every event file."""


def read_events(folder: str | os.PathLike[str]) -> pandas.DataFrame:
    """Return the scalars of all event files in a folder: a row for each step of each run.

    Columns are `run`, the folder of the events within this one, `step`, `wall_time` in seconds
    since 1970, and one for each tag, such as `Wall Time`, the seconds of a step. Steps per second
    of one run are `len(found) / found.sum()` with `found = frame["Wall Time"].dropna()`.

    Raises AccelBenchError if the folder has no event files, or if tensorboard or pandas is missing.
    """
    return to_frame(read_scalars(Path(folder)))


def read_scalars(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each step of each folder with event files, by TensorBoard's own reader.

    A row has `run`, the folder with the events within `folder`, `step`, `wall_time` in seconds
    since 1970, and the value of each tag. A damaged or unfinished file, of which TensorBoard reads
    only a part, is named in a warning. Raises AccelBenchError if there are no event files, or if
    tensorboard is missing.
    """
    folders = sorted({Path(path) for path, _, names in os.walk(folder) if _events(names)})
    if not folders:
        raise AccelBenchError(f"{folder} holds no event files of TensorBoard (*{MARK}*)")
    with needing_tensorboard():
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
    """Log a warning for each event file that TensorBoard cannot read to its end."""
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
def needing_tensorboard() -> Iterator[None]:
    """Turn an ImportError in the `with` block into AccelBenchError with the install command."""
    try:
        yield
    except ImportError as error:
        raise AccelBenchError(
            f"event files need tensorboard, which cannot be imported ({error}); "
            "pip install 'accel-bench[tensorboard]'"
        ) from error
