"""`nvml` watches devices from the parent, through the real bindings and a stand-in library."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_nvml.library import NAME, Attempts, Machine, compile_library, compiler_found

from accel_bench.result import Status

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not compiler_found() or sys.platform != "linux",
        reason="the stand-in for NVIDIA's library is compiled with cc, for Linux",
    ),
]

LISTENER = """
import os, signal, sys, time
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, lambda n, f: open(sys.argv[1], "a").write(f"{n} "))
print("ready", flush=True)
time.sleep(3600)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stand-in library."""
    return compile_library(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def attempts(library: Path) -> Iterator[Attempts]:
    """Runner of attempts."""
    attempts = Attempts(library)
    yield attempts
    attempts.end()


@pytest.fixture
def machine(tmp_path: Path, library: Path, attempts: Attempts) -> Machine:
    """A machine with two devices."""
    return Machine(tmp_path, library, attempts)


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A foreign process that writes down every signal that it gets."""
    command = [sys.executable, "-c", LISTENER, str(tmp_path / "signals")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


def test_energy_of_the_window_is_that_of_the_counter_and_of_power_times_time(
    machine: Machine,
) -> None:
    seen = machine.watch(device=1, seconds=2.2)
    window = seen.result.ranks[0].window
    assert window is not None
    energy = seen.metric("gpu_board_energy_joules")
    assert energy.value == pytest.approx(200 * (window.ended - window.started), rel=0.01)
    assert seen.metric("gpu_board_power_watts").value == pytest.approx(200)
    assert (energy.unit, energy.scope, energy.rank, energy.reason) == ("J", "device", 0, "")
    assert seen.result.status is Status.OK
    assert seen.result.reasons == ()


def test_a_window_too_short_for_the_counter_has_no_energy_and_that_is_no_fault(
    machine: Machine,
) -> None:
    seen = machine.watch()
    energy = seen.metric("gpu_board_energy_joules")
    assert energy.value is None
    assert "is shorter than 2 s" in energy.reason
    assert seen.result.status is Status.OK


def test_memory_is_that_of_the_rank_s_process_and_of_the_device_above_its_start(
    machine: Machine,
) -> None:
    seen = machine.watch(device=1, seconds=0.6, during=["1 memory_used 8000"])
    peaks = {
        (metric.name, metric.kind): metric.value
        for metric in seen.result.metrics
        if metric.unit == "bytes" and "peak" in metric.name
    }
    assert peaks == {
        ("nvml_peak_memory_bytes", "process"): 5000,
        ("nvml_window_peak_memory_bytes", "process"): 5000,
        ("nvml_peak_memory_bytes", "device_above_start"): 6000,
        ("nvml_window_peak_memory_bytes", "device_above_start"): 6000,
    }


def test_a_peak_before_the_window_is_not_the_window_s(machine: Machine) -> None:
    machine.add("0 memory_used 2000")
    seen = machine.watch(before=["0 memory_used 50000"], during=["0 memory_used 40000"], seconds=1)
    kind = "device_above_start"
    assert seen.metric("nvml_peak_memory_bytes", kind).value == 48000
    # The window began while the larger amount was still in use.
    assert seen.metric("nvml_window_peak_memory_bytes", kind).value == 48000


def test_one_way_of_measuring_memory_can_be_chosen(machine: Machine) -> None:
    seen = machine.watch(options={"memory": ["device"]})
    peaks = [metric for metric in seen.result.metrics if "peak" in metric.name]
    kinds = {metric.kind for metric in peaks}
    assert kinds == {"device_above_start"}


def test_a_rank_that_left_no_result_was_on_the_device_that_cuda_showed_it(
    machine: Machine,
) -> None:
    machine.environment["CUDA_VISIBLE_DEVICES"] = "0"
    seen = machine.watch(device=1, exit=3)
    assert seen.result.status is Status.FAILED
    assert seen.metric("nvml_peak_memory_bytes", "device_above_start").value == 6000
    assert seen.metric("gpu_board_energy_joules").reason == "no window was measured"


def test_a_device_that_nobody_expected_to_be_used_was_not_watched(machine: Machine) -> None:
    machine.environment["CUDA_VISIBLE_DEVICES"] = "GPU-bbbb"
    seen = machine.watch(device=0)
    assert {metric.value for metric in seen.result.metrics} == {None}
    assert seen.result.reasons == ("nvml: GPU-aaaa was not expected to be used",)


def test_where_cuda_s_order_is_not_known_every_device_is_watched(machine: Machine) -> None:
    machine.environment["CUDA_DEVICE_ORDER"] = "FASTEST_FIRST"
    seen = machine.watch(device=0)
    assert seen.metric("nvml_peak_memory_bytes", "device_above_start").value == 8000


def test_a_device_without_an_energy_counter_has_null_and_is_no_fault(machine: Machine) -> None:
    machine.add("0 refuse 3 nvmlDeviceGetTotalEnergyConsumption")
    seen = machine.watch(seconds=2.2)
    energy = seen.metric("gpu_board_energy_joules")
    assert energy.value is None
    assert energy.reason == "the device has no reading of its energy counter"
    assert seen.metric("gpu_board_power_watts").value == pytest.approx(100)
    assert seen.result.status is Status.OK


def test_an_energy_counter_that_is_denied_degrades_and_leaves_the_rest(machine: Machine) -> None:
    machine.add("0 refuse 4 nvmlDeviceGetTotalEnergyConsumption")
    seen = machine.watch(seconds=2.2)
    assert seen.metric("gpu_board_energy_joules").value is None
    assert seen.metric("nvml_peak_memory_bytes", "process").value == 5000
    assert seen.result.status is Status.DEGRADED
    assert [reason.partition(":")[0] for reason in seen.result.reasons] == ["nvml"]
    assert "denied" in seen.result.reasons[0]


def test_a_device_that_is_lost_on_the_way_has_null_for_everything(machine: Machine) -> None:
    seen = machine.watch(seconds=2.2, during=["0 error 15"])
    assert {metric.value for metric in seen.result.metrics} == {None}
    assert seen.result.status is Status.DEGRADED
    assert any("the device is lost: GPU is lost" in reason for reason in seen.result.reasons)


@pytest.mark.parametrize(("code", "word"), [(4, "denied"), (9, "missing")])
def test_nvml_that_does_not_start_is_null_and_degraded(
    machine: Machine, code: int, word: str
) -> None:
    machine.add(f"init {code}")
    seen = machine.watch()
    assert len(seen.result.metrics) == 10
    assert {metric.value for metric in seen.result.metrics} == {None}
    assert seen.result.status is Status.DEGRADED
    assert all(f"NVML is {word}" in reason for reason in seen.result.reasons)


def test_a_library_that_cannot_be_loaded_is_missing(machine: Machine, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / NAME).write_text("no library")
    machine.environment["LD_LIBRARY_PATH"] = str(broken)
    seen = machine.watch()
    assert {metric.value for metric in seen.result.metrics} == {None}
    assert seen.result.status is Status.DEGRADED
    assert all("NVML is missing" in reason for reason in seen.result.reasons)


def test_a_foreign_process_degrades_and_is_never_signalled(
    machine: Machine, stranger: subprocess.Popen[str], tmp_path: Path
) -> None:
    machine.add(f"0 process {stranger.pid} 7000")
    seen = machine.watch()
    assert seen.result.status is Status.DEGRADED
    (reason,) = seen.result.reasons
    assert reason.startswith(f"other_process: process {stranger.pid} (")
    assert seen.metric("gpu_other_processes").value == 1
    assert seen.metric("nvml_peak_memory_bytes", "process").value == 5000
    assert stranger.poll() is None
    assert not (tmp_path / "signals").exists()


def test_a_foreign_process_that_comes_and_goes_is_seen(
    machine: Machine, stranger: subprocess.Popen[str]
) -> None:
    lines = [f"0 process {stranger.pid} 7000"]
    seen = machine.watch(seconds=0.6, during=lines, gone=lines)
    assert seen.result.state_before is not None
    assert seen.result.state_before.gpus[0].other_processes == ()
    assert seen.metric("gpu_other_processes").value == 1
    assert seen.result.status is Status.DEGRADED


def test_a_foreign_process_on_another_device_is_nobody_s_business(
    machine: Machine, stranger: subprocess.Popen[str]
) -> None:
    machine.add(f"1 process {stranger.pid} 7000")
    seen = machine.watch(device=0)
    assert seen.result.status is Status.OK
    assert seen.result.state_after is not None
    assert [one.pid for one in seen.result.state_after.gpus[1].other_processes] == [stranger.pid]


def test_where_nvml_numbers_processes_otherwise_it_does_not_call_our_own_foreign(
    machine: Machine,
) -> None:
    before = ["0 memory_used 9000", "0 process 4000000000 5000"]
    seen = machine.watch(before=before, gone=before[1:])
    assert seen.metric("gpu_other_processes").value is None
    assert seen.metric("nvml_peak_memory_bytes", "process").value is None
    assert seen.metric("nvml_peak_memory_bytes", "device_above_start").value == 8000
    assert seen.result.status is Status.OK


def test_heat_in_the_window_degrades_and_says_how_much_of_it(machine: Machine) -> None:
    seen = machine.watch(
        seconds=1.0, before=["0 limits 68", "0 process PID 5000"], gone=["0 limits 68"]
    )
    fraction = seen.metric("gpu_throttled_fraction")
    assert fraction.value == 1.0
    assert fraction.reason == "throttled: hw_thermal_slowdown in 100 % of the window on GPU-aaaa"
    assert seen.result.status is Status.DEGRADED


def test_a_power_cap_that_is_reached_is_normal_work(machine: Machine) -> None:
    seen = machine.watch(before=["0 limits 4"])
    assert seen.metric("gpu_throttled_fraction").value == 0
    assert seen.result.status is Status.OK


def test_uncorrected_memory_errors_during_the_run_degrade(machine: Machine) -> None:
    machine.add("0 ecc 1")
    seen = machine.watch(during=["0 ecc 3"])
    assert seen.result.reasons == ("ecc: 2 memory errors of GPU-aaaa could not be corrected",)


def test_ctrl_c_keeps_what_was_seen_until_then(machine: Machine) -> None:
    machine.environment["PRESS_CTRL_C"] = "1"
    seen = machine.watch(seconds=60)
    assert seen.out == "Ctrl-C was raised again"
    assert seen.result.status is Status.INTERRUPTED
    assert seen.metric("nvml_peak_memory_bytes", "device_above_start").value is not None
    assert seen.result.state_before is not None
    assert seen.result.state_after is None


def test_fields_are_kept_over_time_and_shown_live(machine: Machine) -> None:
    machine.add("1 utilization 20", "1 field 82 55", "1 field 150 7")
    names = ["utilization.gpu", "memory.used", "temperature.memory", "NVML_FI_DEV_MEMORY_TEMP"]
    seen = machine.watch(
        device=1,
        seconds=1.0,
        options={"fields": [*names, "clocks.sm", "fan.speed"]},
        during=["1 utilization 90", f"1 memory_used {6 * 2**30}"],
    )
    use = seen.metric("nvml_utilization_gpu_percent", "mean")
    window = seen.result.ranks[0].window
    assert window is not None and use.series is not None and use.value is not None
    assert (use.unit, use.scope, use.rank, use.better) == ("percent", "device", 0, "neither")
    # Changes, and the last reading, by the clock of the window; half of it at each.
    assert use.series.values == (20, 90, 90)
    assert window.started < use.series.times[1] < window.ended <= use.series.times[2]
    assert 20 < use.value < 90
    memory = seen.metric("nvml_memory_used_bytes", "mean").series
    assert memory is not None and set(memory.values) == {3000, 9000, 6 * 2**30}
    assert seen.metric("nvml_temperature_memory_celsius", "mean").value == 55
    assert seen.metric("nvml_fi_dev_memory_temp", "last").value == 55
    assert seen.metric("nvml_clocks_sm_megahertz", "mean").value == 1755
    fan = seen.metric("nvml_fan_speed_percent", "mean")
    assert (fan.value, fan.series) == (None, None)
    assert fan.reason == "the device has no reading of fan.speed"
    assert seen.result.status is Status.OK
    shown = "utilization.gpu 90 %  memory.used 6.0 GiB  temperature.memory 55 C"
    assert seen.live.startswith(f"{shown}  NVML_FI_DEV_MEMORY_TEMP 55  clocks.sm 1755 MHz")


def test_a_field_that_is_denied_is_null_and_no_fault(machine: Machine) -> None:
    machine.add("0 refuse 4 nvmlDeviceGetUtilizationRates", "0 utilization 5")
    seen = machine.watch()
    use = seen.metric("nvml_utilization_gpu_percent", "mean")
    assert use.value is None
    assert "denied" in use.reason
    assert seen.result.status is Status.OK
