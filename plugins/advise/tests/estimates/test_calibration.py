"""Valid runs on a device calibrate the estimated speed of the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from accel_bench_advise.estimates.schema import Footprint, Operations, SpeedEstimate
from accel_bench_advise.estimates.simulator import Simulator
from accel_bench_advise.estimates.speed import SpeedEstimator
from accel_bench_advise.estimates.target import target_of
from analysis_factory import make_experiment, make_rank, make_result

from accel_bench import DeviceType, Machine
from accel_bench.machine import devices
from accel_bench.machine.info import read_machine
from accel_bench.result import Provenance, Result, Status
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.uses import Use

MACHINE = read_machine()
STEP = Footprint(
    parts={},
    phase="backward",
    operations=(Operations(dtype="", flops=0, moved_bytes=10**8, count=1),),
    processed=110,
)
LORA = make_experiment("lora", [Use(use="lora")], scenario={"resources": {"device": "cpu"}})
OTHER = make_experiment("other", scenario={"resources": {"device": "cpu"}})


class Known(Simulator):
    """A simulator that returns the same step for every experiment."""

    def footprint(self, experiment: Experiment, device: str, **other: int) -> Footprint:
        """Return the step."""
        return STEP


def measured(experiment: Experiment = LORA, seconds: float = 0.1, **changes: Any) -> Result:
    """A run of this machine with the given step time."""
    result = make_result(experiment, seconds=seconds)
    return result.model_copy(update={"machine": MACHINE, **changes})


@pytest.fixture
def known() -> Iterator[Known]:
    with closing(Known()) as simulator:
        yield simulator


def speed_by(known: Known, experiment: Experiment, *stored: Result) -> SpeedEstimate:
    """Return the estimated speed on this machine's CPU, calibrated by stored runs."""
    target = target_of(MACHINE, None)._replace(kind="cpu")
    speed = SpeedEstimator(known, target, stored).speed(experiment, STEP)
    assert speed is not None
    return speed


def test_a_measured_step_gives_the_estimated_one_padding_or_not(known: Known) -> None:
    speed = speed_by(known, LORA, measured())
    assert speed.calibrated_by == (LORA.id,)
    # Ten of the 110 tokens are padding: they are processed like the others.
    assert speed.step_seconds.low == pytest.approx(0.09)
    assert speed.tokens_per_second.low == pytest.approx(110 / 0.11)
    assert speed.basis.endswith("stored experiment on this device: lora of tiny-llama-cpu")


def test_the_stack_itself_is_preferred_to_others(known: Known) -> None:
    runs = measured(), measured(OTHER, 0.5)
    speed = speed_by(known, LORA, *runs)
    assert speed.calibrated_by == (LORA.id,)
    unknown = make_experiment("third", [Use(use="third")], scenario={"resources": {"threads": 1}})
    speed = speed_by(known, unknown, *runs)
    assert set(speed.calibrated_by) == {LORA.id, OTHER.id}
    assert "other of tiny-llama-cpu" in speed.basis and "lora of" in speed.basis


BROKEN = make_rank().model_copy(
    update={"window": make_rank().window.model_copy(update={"ended": 90.0})}  # type: ignore[union-attr]
)


@pytest.mark.parametrize(
    "changes",
    [
        {"status": Status.DEGRADED},
        {"ranks": (BROKEN,)},
        {"ranks": (make_rank(tokens=50),)},
        {"provenance": Provenance(origin="imported")},
        {"machine": MACHINE.model_copy(update={"host": "elsewhere"})},
    ],
    ids=["degraded", "failed_audit", "shorter samples", "imported", "another machine"],
)
def test_a_run_that_does_not_compare_calibrates_nothing(
    known: Known, changes: dict[str, Any]
) -> None:
    assert not speed_by(known, LORA, measured(**changes)).calibrated_by


class AcmeGPU(DeviceType):
    """An H100, named as in the table of devices."""

    torch_type = "acme"
    label = "Acme"
    preference = 99

    def find(self, machine: Machine) -> list[str]:
        return ["NVIDIA H100 80GB HBM3"]


class AcmeHost(AcmeGPU):
    """A device that computes in host memory under another type."""

    on_host = True


def test_a_machine_is_what_its_device_type_says_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "device_types", lambda: {"acme": AcmeHost()})
    assert target_of(MACHINE, None).kind == "cpu"
    monkeypatch.setattr(devices, "device_types", lambda: {"acme": AcmeGPU()})
    target = target_of(MACHINE, None)
    assert (target.kind, target.memory_bytes) == ("cuda", 80 * 2**30)
    assert target.peaks(LORA.scenario) is not None
