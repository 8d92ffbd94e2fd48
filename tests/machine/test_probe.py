"""The machine's state is read without torch, from /proc and from NVML, and never refused."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

import pytest
from fake_nvml.library import Machine, compile_library, compiler_found

from accel_bench.machine.info import read_machine
from accel_bench.machine.nvml import Devices, NVMLDevice, find_device, visible_devices
from accel_bench.machine.probe import read_state
from accel_bench.machine.provenance import distribution_version

STATE = (
    "from accel_bench.machine.probe import read_state; "
    "print(read_state(gpus=True).model_dump_json())"
)
MACHINE = (
    "from accel_bench.machine.info import read_machine; print(read_machine().model_dump_json())"
)
SETTLE = """
import threading, os
from pathlib import Path
from accel_bench.machine.probe import read_settled_state, read_state
before = read_state(gpus=True)
script = Path(os.environ["FAKE_NVML"])
said = script.read_text()
script.write_text(said + "0 process 4000000000 5000\\n")
def end():
    aside = script.with_suffix(".aside")
    aside.write_text(said)
    aside.rename(script)
threading.Timer(0.3, end).start()
print(read_settled_state(before, gpus=True).model_dump_json())
"""

needs_library = pytest.mark.skipif(
    not compiler_found() or sys.platform != "linux",
    reason="the stand-in for NVIDIA's library is compiled with cc, for Linux",
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stand-in library."""
    return compile_library(tmp_path_factory.mktemp("library"))


@pytest.fixture
def machine(tmp_path: Path, library: Path) -> Machine:
    """A machine with two devices."""
    return Machine(tmp_path, library)


def device(index: int, uuid: str, bus: str) -> NVMLDevice:
    """A device without a handle."""
    return NVMLDevice(index, uuid, bus, None)


LISTED = Devices((device(0, "GPU-aa11", "0000:41"), device(1, "GPU-bb22", "0000:01")))


def test_the_host_is_read_without_devices() -> None:
    first, second = read_state(gpus=False), read_state(gpus=False)
    assert first.gpus == first.problems == ()
    assert first.cpu.total_seconds is not None
    assert first.cpu.busy_seconds is not None
    assert 0 < first.cpu.busy_seconds < first.cpu.total_seconds
    assert second.cpu.total_seconds is not None
    assert second.cpu.total_seconds >= first.cpu.total_seconds
    assert second.monotonic_seconds > first.monotonic_seconds
    assert first.cpu.memory_available_bytes > 0


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="/proc/stat is Linux's")
def test_the_host_s_counters_are_the_kernel_s() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    before = sum(map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9])) / ticks
    found = read_state(gpus=False).cpu.total_seconds
    after = sum(map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9])) / ticks
    assert found is not None
    assert before - 0.1 <= found <= after + 0.1


@needs_library
def test_devices_are_read_with_words_for_what_slows_them(machine: Machine) -> None:
    machine.add("0 limits 36", "0 ecc 3", "0 thermal_nanoseconds 2500000000")
    first, second = machine.python(STATE)["gpus"]
    assert first["uuid"] == "GPU-aaaa"
    assert first["clock_limits"] == ["sw_power_cap", "sw_thermal_slowdown"]
    assert (first["sm_clock_megahertz"], first["memory_clock_megahertz"]) == (1755, 2619)
    assert (first["power_watts"], first["power_cap_watts"]) == (100.0, 350.0)
    assert first["power_cap_default_watts"] == 700.0
    assert first["temperature_celsius"] == 41
    assert first["thermal_limited_seconds"] == 2.5
    assert (first["ecc_corrected"], first["ecc_uncorrected"]) == (0, 3)
    assert first["persistence_mode"] is True
    assert first["remap_pending"] is False
    assert first["application_sm_clock_megahertz"] is None
    assert second["power_watts"] == 200.0
    assert first["problems"] == second["problems"] == []


@needs_library
def test_our_own_processes_are_not_foreign(machine: Machine) -> None:
    machine.add(f"0 process {os.getpid()} 5000")
    program = (
        "import os, sys; from pathlib import Path; script = Path(os.environ['FAKE_NVML']); "
        "script.write_text(script.read_text() + f'0 process {os.getpid()} 6000\\n'); " + STATE
    )
    (stranger,) = machine.python(program)["gpus"][0]["other_processes"]
    assert stranger["pid"] == os.getpid()
    assert stranger["memory_bytes"] == 5000
    assert stranger["name"]


@needs_library
def test_a_process_that_nvml_lists_a_little_too_long_is_waited_for(machine: Machine) -> None:
    assert machine.python(SETTLE)["gpus"][0]["other_processes"] == []


@needs_library
def test_one_question_that_is_refused_costs_no_other(machine: Machine) -> None:
    machine.add("0 refuse 4 nvmlDeviceGetPowerUsage", "0 refuse 3 nvmlDeviceGetClockInfo")
    first = machine.python(STATE)["gpus"][0]
    assert first["power_watts"] is None
    assert first["sm_clock_megahertz"] is None
    assert first["temperature_celsius"] == 41
    assert len(first["problems"]) == 1
    assert "NVML is denied" in first["problems"][0]


@needs_library
def test_a_lost_device_leaves_the_others(machine: Machine) -> None:
    machine.add("1 error 15")
    state = machine.python(STATE)
    assert [gpu["uuid"] for gpu in state["gpus"]] == ["GPU-aaaa"]
    assert state["problems"] == ["NVML's device 1: the device is lost: GPU is lost"]
    assert [gpu["uuid"] for gpu in machine.python(MACHINE)["gpus"]] == ["GPU-aaaa"]


@needs_library
def test_without_permission_there_are_no_devices_and_a_reason(machine: Machine) -> None:
    machine.add("init 4")
    state = machine.python(STATE)
    assert state["gpus"] == []
    assert "NVML is denied" in state["problems"][0]
    described = machine.python(MACHINE)
    assert (described["driver"], described["gpus"]) == (None, [])


@needs_library
def test_the_machine_s_driver_and_devices_are_recorded(machine: Machine) -> None:
    described = machine.python(MACHINE)
    assert (described["driver"], described["cuda"]) == ("580.65.06", "13.0")
    assert [gpu["name"] for gpu in described["gpus"]] == ["NVIDIA H100 80GB HBM3"] * 2


@pytest.mark.parametrize("uuid", ["GPU-bb22", "bb22", "BB22"])
def test_a_device_is_found_by_its_uuid_however_it_is_written(uuid: str) -> None:
    found = find_device(LISTED.found, uuid)
    assert found is not None
    assert found.index == 1


@pytest.mark.parametrize("uuid", ["", "GPU-", "bb", "cc33"])
def test_no_device_is_found_by_less(uuid: str) -> None:
    assert find_device(LISTED.found, uuid) is None


@pytest.mark.parametrize(
    ("visible", "order", "indices"),
    [
        (None, "PCI_BUS_ID", [1, 0]),
        ("0", "PCI_BUS_ID", [1]),
        ("1, 0", "PCI_BUS_ID", [0, 1]),
        ("1,7,0", "PCI_BUS_ID", [0]),
        ("", "PCI_BUS_ID", []),
        ("-1", "PCI_BUS_ID", []),
        ("GPU-aa", None, [0]),
        ("GPU-", None, []),
        (None, None, None),
        ("0", None, None),
        ("0", "FASTEST_FIRST", None),
        ("MIG-1234", "PCI_BUS_ID", None),
    ],
)
def test_cuda_s_devices_are_told_by_bus_or_uuid_or_not_at_all(
    visible: str | None, order: str | None, indices: list[int] | None
) -> None:
    named = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order}
    found = visible_devices(
        LISTED, {key: value for key, value in named.items() if value is not None}
    )
    assert (None if found is None else [one.index for one in found]) == indices


def test_the_only_device_is_the_first_in_any_order() -> None:
    alone = Devices(LISTED.found[:1])
    assert visible_devices(alone, {"CUDA_VISIBLE_DEVICES": "0"}) == alone.found


def test_numbers_mean_nothing_once_a_device_is_lost() -> None:
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    lost = Devices(LISTED.found, ("NVML's device 2: the device is lost",))
    assert visible_devices(lost, {**order, "CUDA_VISIBLE_DEVICES": "0"}) is None
    assert visible_devices(lost, {**order, "CUDA_VISIBLE_DEVICES": "GPU-bb22"}) is not None


def test_versions_are_recorded_and_a_checkout_s_commit_with_them() -> None:
    described = read_machine()
    assert described.versions["torch"] == metadata.version("torch")
    assert described.versions["accel-bench"] == distribution_version("accel-bench")
    assert described.libraries["safetensors"] == metadata.version("safetensors")
    assert "apex" not in described.libraries
