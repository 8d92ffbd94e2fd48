"""Estimated speed of an experiment by a roofline, calibrated by stored runs on the device.

The time of an operation is the longer of its computing time and its memory-transfer time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from statistics import median
from typing import NamedTuple

from accel_bench.analysis.checks.audit import with_audit
from accel_bench.analysis.metrics.throughput import run_throughput, token_summary
from accel_bench.analysis.wording import count, label_of
from accel_bench.catalog.hardware import find_hardware
from accel_bench.errors import AccelBenchError, StoreError
from accel_bench.result import Result, Status
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.models import Scenario
from accel_bench.store.database import Store
from accel_bench_advise.estimates.schema import Bounds, Footprint, SpeedEstimate
from accel_bench_advise.estimates.simulator import Simulator
from accel_bench_advise.estimates.target import DevicePeaks, Efficiency, Target

RECENT_SESSIONS = 3
"""Number of newest sessions whose runs calibrate a speed."""

CALIBRATION_MARGIN = 0.1
"""Fraction by which a calibrated span exceeds the measured slowdowns on both sides."""

MOST_CALIBRATIONS = 2
"""Maximum number of stored experiments that calibrate a speed."""

MOST_SIMULATED = 6
"""Maximum number of stored experiments that are simulated as possible calibrations."""


class Calibration(NamedTuple):
    """Ratio of a stored experiment's measured step time to its roofline time."""

    slowdown: float
    """Measured seconds of a step divided by the roofline's lowest."""

    experiment_id: str

    name: str
    """Stack and model of the stored experiment."""


class SpeedEstimator(NamedTuple):
    """Estimator of the speed of experiments on devices of one kind."""

    simulator: Simulator
    target: Target
    stored: Sequence[Result]

    def speed(self, experiment: Experiment, footprint: Footprint) -> SpeedEstimate | None:
        """Return the speed of all devices together, as a lower and an upper end.

        None if a device's peaks are unknown, or if devices share the work of a step.
        """
        scenario = experiment.scenario
        peaks = self.target.peaks(scenario)
        seconds = roofline(footprint, peaks) if peaks else None
        if peaks is None or seconds is None or scenario.data_parallel < scenario.world_size:
            return None
        tokens = _processed(footprint, scenario) * scenario.data_parallel
        return speed_estimate(seconds, tokens, peaks.source, list(self._calibrations(experiment)))

    def _calibrations(self, experiment: Experiment) -> Iterator[Calibration]:
        """Yield calibrations from the newest comparable runs, if possible of the same stack."""
        alike: dict[str, Result] = {}
        for result in reversed(self.stored):
            if self._compares(result, experiment.scenario):
                alike.setdefault(result.experiment.id, result)
        uses = experiment.stack.uses
        same = [result for result in alike.values() if result.experiment.stack.uses == uses]
        yielded = 0
        for result in (same or list(alike.values()))[:MOST_SIMULATED]:
            with suppress(AccelBenchError):
                yield self._calibration(result)
                yielded += 1
            if yielded == MOST_CALIBRATIONS:
                return

    def _calibration(self, result: Result) -> Calibration:
        """Return the calibration by a stored run: measured step time over roofline time.

        Raises AccelBenchError if the run's steps cannot be simulated, or if their number of tokens
        is not the simulated one.
        """
        experiment, measured = result.experiment, run_throughput(result)
        peaks = self.target.peaks(experiment.scenario)
        footprint = self.simulator.footprint(experiment, self.target.kind)
        seconds = roofline(footprint, peaks) if peaks else None
        tokens = token_summary(result)
        full = _processed(footprint, experiment.scenario)
        if seconds is None or measured is None or tokens is None:
            raise AccelBenchError("there is nothing to compare")
        if tokens.per_step_global.processed != full:
            raise AccelBenchError("its steps are not full")
        name = f"{label_of(experiment)} of {experiment.scenario.model.id}"
        return Calibration(median(measured.step_seconds) / seconds.low, experiment.id, name)

    def _compares(self, result: Result, scenario: Scenario) -> bool:
        """Return whether a stored run may calibrate: valid, on the target's device, of equal work.

        The work is equal if it has the task and the dtype of `scenario`.
        """
        other = result.experiment.scenario
        device = result.ranks[0].device if result.ranks else None
        if device is None or device.type != self.target.kind or other.world_size > 1:
            return False
        alike = [(side.task.use, side.compute_dtype) for side in (scenario, other)]
        if result.imported or alike[0] != alike[1] or with_audit(result).status is not Status.OK:
            return False
        if device.type == "cpu":
            return result.machine is not None and result.machine.host == self.target.machine.host
        hardware = find_hardware(device.name)
        return hardware is not None and hardware == self.target.hardware


def step_seconds(footprint: Footprint, peaks: DevicePeaks, reached: Efficiency) -> float | None:
    """Return the seconds of an optimizer step that reaches the fractions `reached` of the peaks.

    None if the device's peak is unknown for a dtype that the step uses.
    """
    seconds = 0.0
    for operations in footprint.operations:
        peak = peaks.flops(operations.dtype) if operations.flops else 1.0
        if peak is None:
            return None
        computing = operations.flops / (peak * reached.flops)
        moving = operations.moved_bytes / (peaks.bytes_per_second * reached.bandwidth)
        seconds += operations.count * max(computing, moving, reached.operation_seconds)
    return seconds


def roofline(footprint: Footprint, peaks: DevicePeaks) -> Bounds | None:
    """Return the least and most seconds of a step by a roofline, at the best and worst efficiency.

    None if the device's peak is unknown for a dtype that the step uses.
    """
    worst, best = (step_seconds(footprint, peaks, reached) for reached in peaks.span)
    return Bounds(low=best, high=worst) if best is not None and worst is not None else None


def speed_estimate(
    seconds: Bounds,
    tokens: int,
    source: str,
    calibrations: Sequence[Calibration] = (),
) -> SpeedEstimate:
    """Return the speed of steps of `tokens` tokens, given their `seconds` by the roofline.

    `source` names the source of the peaks. Calibrations replace the efficiency of the roofline.
    """
    basis = f"roofline from {source}"
    if calibrations:
        slowdowns = [calibration.slowdown for calibration in calibrations]
        low, high = min(slowdowns), max(slowdowns)
        seconds = Bounds(
            low=seconds.low * low * (1 - CALIBRATION_MARGIN),
            high=seconds.low * high * (1 + CALIBRATION_MARGIN),
        )
        many = count(len(calibrations), "stored experiment")
        names = ", ".join(calibration.name for calibration in calibrations)
        basis = f"roofline, calibrated by {many} on this device: {names}"
    return SpeedEstimate(
        tokens_per_second=seconds.inverted(tokens),
        step_seconds=seconds,
        basis=basis,
        calibrated_by=tuple(calibration.experiment_id for calibration in calibrations),
    )


def _processed(footprint: Footprint, scenario: Scenario) -> int:
    """Return the tokens, or other counted units, that a device processes in a step."""
    return footprint.processed * scenario.train.gradient_accumulation


def recent_results(store: Store | None) -> list[Result]:
    """Return the measured results of the newest three sessions.

    The list is empty without a store, or if the store cannot be read.
    """
    if store is None:
        return []
    with suppress(StoreError):
        sessions = [session for session in store.sessions() if not session.imported][
            -RECENT_SESSIONS:
        ]
        results = (result for session in sessions for result in store.results(session=session.id))
        return [result for result in results if result.provenance.origin == "measured"]
    return []
