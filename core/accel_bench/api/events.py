"""Event files of TensorBoard, as Python programs read them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from accel_bench.api.frame import to_frame
from accel_bench.interchange.tensorboard_events import read_scalars

if TYPE_CHECKING:
    import pandas


def read_events(folder: str | os.PathLike[str]) -> pandas.DataFrame:
    """Return the scalars of all event files in a folder: a row for each step of each run.

    Columns are `run`, the folder of the events within this one, `step`, `wall_time` in seconds
    since 1970, and one for each tag, such as `Wall Time`, the seconds of a step. Steps per second
    of one run are `len(found) / found.sum()` with `found = frame["Wall Time"].dropna()`.

    Raises AccelBenchError where the folder has no event files, or where tensorboard or pandas is
    not installed.
    """
    return to_frame(read_scalars(Path(folder)))
