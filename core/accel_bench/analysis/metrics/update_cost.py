"""What the update verdict cost."""

from __future__ import annotations

from accel_bench.documents.base import Frozen
from accel_bench.result import WeightUpdate

BYTES_OF_A_SUM = 8
"""A sketch is summed in float64."""


class UpdateCost(Frozen):
    """What it took to read the update, outside of all windows: rank 0 of the last completed run."""

    trained_tensors: int
    """Tensors that were read twice: before the first step, and after the window."""

    trained_elements: int
    """Their numbers."""

    seconds: float
    """Seconds of both readings, with those of the file."""

    sketch_bytes: int
    """Bytes of the sketches as float64, which the process holds until the window has ended."""

    kept_bytes: int
    """Bytes of the file with the exact change; 0 where none was kept."""

    kept_reason: str
    """Why none was kept that was asked for."""


def update_cost(update: WeightUpdate) -> UpdateCost:
    """Return the cost of one rank's update."""
    sums = sum(len(one.sketch) for one in update.tensors.values())
    return UpdateCost(
        trained_tensors=update.trained_tensors,
        trained_elements=update.trained_elements,
        seconds=update.seconds,
        sketch_bytes=BYTES_OF_A_SUM * sums,
        kept_bytes=update.kept_bytes,
        kept_reason=update.kept_reason,
    )
