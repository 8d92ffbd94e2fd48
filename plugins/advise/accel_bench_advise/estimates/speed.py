"""How fast a simulated step can be on a device: each operation as slow as its scarcer resource."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from accel_bench.analysis.wording import count
from accel_bench.catalog.hardware import Hardware
from accel_bench.errors import StoreError
from accel_bench.result import Result
from accel_bench.store.database import Store
from accel_bench_advise.estimates.schema import Footprint, Span, SpeedEstimate

CORE_FLOPS = 10e9
"""FLOP/s of a CPU core that count as its peak; cores of servers reach up to four times it."""

CORE_BYTES = 4e9
"""Bytes per second of a CPU core that count as its bandwidth."""

RECENT_SESSIONS = 3
"""Newest sessions of a results folder whose runs calibrate a span: the machine as it is now."""

CALIBRATION_MARGIN = 0.1
"""How much further than what was measured a calibrated span reaches on both sides."""


class Efficiency(NamedTuple):
    """What steps reach of a device's peaks."""

    flops: float
    """Fraction of the peak FLOP/s."""

    bandwidth: float
    """Fraction of the peak bandwidth."""

    operation_seconds: float
    """Time that an operation takes at least: until it is launched."""


class Calibration(NamedTuple):
    """How far a stored experiment on a device stayed behind its own roofline."""

    slowdown: float
    """Measured seconds of a step over the roofline's best."""

    experiment_id: str

    name: str
    """Its stack and model, in words."""


GPU_SPAN = Efficiency(0.4, 0.6, 8e-6), Efficiency(0.85, 1.0, 1e-6)
"""From what eager steps of published runs reached at worst to what fused ones reached at best."""

CPU_SPAN = Efficiency(0.7, 0.5, 5e-6), Efficiency(4.0, 4.0, 0.0)
"""The same of the cautious peaks of a CPU's cores."""


GUESS = "a guess of what a CPU's cores do"
"""Source of the peaks of a CPU."""


@dataclass(frozen=True)
class DevicePeaks:
    """Peaks of one device."""

    flops: Callable[[str], float | None]
    """Return the peak FLOP/s for operands of a dtype."""

    bytes_per_second: float

    span: tuple[Efficiency, Efficiency]
    """What is reached of them at worst and at best."""

    source: str
    """Source of the peaks."""


def gpu_peaks(hardware: Hardware, matmul_precision: str) -> DevicePeaks:
    """Return the peaks of a device of the table."""
    return DevicePeaks(
        lambda dtype: hardware.peak(dtype, matmul_precision),
        hardware.memory_bandwidth_bytes_per_second,
        GPU_SPAN,
        "the device's data sheet",
    )


def cpu_peaks(cores: int) -> DevicePeaks:
    """Return what counts as the peaks of that many cores."""
    return DevicePeaks(lambda dtype: CORE_FLOPS * cores, CORE_BYTES * cores, CPU_SPAN, GUESS)


def step_seconds(footprint: Footprint, peaks: DevicePeaks, reached: Efficiency) -> float | None:
    """Return the seconds of an optimizer step; None where a dtype's peak is not known."""
    seconds = 0.0
    for one in footprint.operations:
        peak = peaks.flops(one.dtype) if one.flops else 1.0
        if peak is None:
            return None
        computing = one.flops / (peak * reached.flops)
        moving = one.moved_bytes / (peaks.bytes_per_second * reached.bandwidth)
        seconds += one.count * max(computing, moving, reached.operation_seconds)
    return seconds


def roofline(footprint: Footprint, peaks: DevicePeaks) -> Span | None:
    """Return the span of a step's seconds, from the best to the worst that is reached."""
    worst, best = (step_seconds(footprint, peaks, reached) for reached in peaks.span)
    return Span(low=best, high=worst) if best is not None and worst is not None else None


def speed_estimate(
    seconds: Span,
    tokens: int,
    source: str,
    calibrations: Sequence[Calibration] = (),
) -> SpeedEstimate:
    """Return the speed of steps of so many tokens; `source` says where the roofline comes from.

    `calibrations` by stored experiments take the place of the roofline's worst and best.
    """
    basis = f"roofline from {source}"
    if calibrations:
        slowdowns = [one.slowdown for one in calibrations]
        low, high = min(slowdowns), max(slowdowns)
        seconds = Span(
            low=seconds.low * low * (1 - CALIBRATION_MARGIN),
            high=seconds.low * high * (1 + CALIBRATION_MARGIN),
        )
        many = count(len(calibrations), "stored experiment")
        names = ", ".join(one.name for one in calibrations)
        basis = f"roofline, calibrated by {many} on this device: {names}"
    return SpeedEstimate(
        tokens_per_second=seconds.inverted(tokens),
        step_seconds=seconds,
        basis=basis,
        calibrated_by=tuple(one.experiment_id for one in calibrations),
    )


def recent_results(store: Store | None) -> list[Result]:
    """Return the results that were measured in the newest sessions; none without a store."""
    if store is None:
        return []
    with suppress(StoreError):
        sessions = [one for one in store.sessions() if not one.imported][-RECENT_SESSIONS:]
        found = (result for one in sessions for result in store.results(session=one.id))
        return [result for result in found if result.provenance.origin == "measured"]
    return []
