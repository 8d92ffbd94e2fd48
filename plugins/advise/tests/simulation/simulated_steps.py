"""Simulated training steps, beside real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from accel_bench_advise.estimates.schema import BatchShape, Footprint, SimulationRequest
from accel_bench_advise.simulation.simulate import SimulatedRun
from real_steps import experiment_of, measured_peak

from accel_bench.scenario.experiment import Experiment


def simulated(experiment: Experiment, **other: int) -> Footprint:
    """Return what a simulated step of the experiment uses; `other` changes the batch's shape."""
    shape = BatchShape.of(experiment.scenario).model_copy(update=other)
    request = SimulationRequest(experiment=experiment, shape=shape, device="cpu")
    found = SimulatedRun(request).simulate(shape).footprint
    assert found is not None
    return found


def compare(settings: dict[str, Any], folder: Path, close: float) -> None:
    """Check that a simulated peak deviates from the measured one by a fraction `close` at most."""
    experiment = experiment_of(settings)
    peak = sum(simulated(experiment).parts.values())
    measured = measured_peak(experiment, folder)
    print(f"{peak:,} of {measured:,} bytes: {peak / measured:.4f}")
    assert peak == pytest.approx(measured, rel=close)
