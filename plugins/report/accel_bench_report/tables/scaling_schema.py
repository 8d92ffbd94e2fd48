"""The document of how a stack scales over devices and nodes."""

from __future__ import annotations

from typing import Literal, TypeAlias

from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.tables.points import PointFigure
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.scenario.uses import TOKENS

ScalingKind: TypeAlias = Literal["strong", "weak", "mixed"]
"""What stays as devices are added: the global batch, each device's batch, or neither."""


class ScalingPoint(Frozen):
    """One number of devices, as it was measured."""

    figure: PointFigure
    """Its speed, and its speed-up over the smallest point."""

    devices: int
    """Devices on each node."""

    nodes: int
    """Machines."""

    micro_batch_size: int
    """Samples in one forward pass, per device."""

    gradient_accumulation: int
    """Forward passes in one step."""

    global_batch_size: int
    """Samples in one step, global."""

    step_seconds: Interval | None = None
    """Elapsed seconds of one optimizer step: the mean over a run's window."""

    relative_step_seconds: Interval | None = None
    """The same over that of the smallest point: strong scaling halves it with twice the devices,
    weak scaling keeps it at 1."""

    efficiency: Interval | None = None
    """Speed-up over that of as many times the devices: 1 is linear."""


class SerialShare(Frozen):
    """Share of the smallest point's time that more devices do not shorten: an estimate.

    Strong scaling fits Amdahl's law, speed-up = 1 / (s + (1 - s) / n); weak scaling Gustafson's,
    speed-up = n - s (n - 1). n is the number of devices over the smallest point's.
    """

    law: Literal["Amdahl", "Gustafson"]

    share: float
    """Mean over rounds of the least-squares fit of each; below 0 it is faster than linear."""

    low: float | None
    """Lower end of the 95 % t interval over rounds; null with one round."""

    high: float | None
    """Upper end."""

    sizes: int
    """Numbers of devices that were fitted; two of them fix the law, and nothing checks it."""

    largest_deviation: float
    """Largest relative distance between a measured speed-up and the law's."""


class Projection(Frozen):
    """Speed at a number of devices that was not measured."""

    estimated: Literal[True] = True

    world_size: int
    """Number of ranks."""

    speedup: Interval
    """Over the smallest point; the interval is that of the serial share alone."""

    efficiency: Interval
    """Speed-up over that of as many times the devices."""

    tokens_per_second: Interval
    """Real tokens per second, global."""


class Scaling(Frozen):
    """How one stack scales over devices and nodes, all else being equal."""

    stack: str
    """Name of the stack."""

    sweep: dict[str, JsonValue]
    """Values of the swept keys that all its points share."""

    kind: ScalingKind
    """What stays as devices are added."""

    counts: str = TOKENS
    """What is counted as tokens, in the estimates too."""

    points: tuple[ScalingPoint, ...]
    """What was measured, the fewest devices first."""

    serial_share: SerialShare | None = None
    """Estimate of what limits it; null where nothing can be fitted."""

    serial_share_reason: str = ""
    """Why there is none, or why nothing is estimated from it."""

    projections: tuple[Projection, ...] = ()
    """Estimates for more devices than were measured."""
