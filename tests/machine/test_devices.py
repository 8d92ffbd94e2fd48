"""Device types are found by entry point, chosen by preference, and refused in a sentence."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cli.program import start, surroundings, write_nulls
from gpu_factory import Stream
from machine.device_distribution import install, install_standin

from accel_bench import Batch, DeviceType, Machine, TokenCounts, open_store, read_machine
from accel_bench.builtin.devices import rocm
from accel_bench.builtin.devices.cpu import CPU
from accel_bench.builtin.devices.mps import MPS
from accel_bench.errors import ScenarioError
from accel_bench.machine import devices
from accel_bench.machine.device_type import READINGS
from accel_bench.machine.devices import (
    best_device,
    device_type,
    device_types,
    of_torch_type,
    started_device,
)
from accel_bench.planning.plan import PlanRequest, make_plan
from accel_bench.scenario.find import read_draft
from accel_bench.testing import make_machine, run_scenario
from accel_bench.worker.clocks import EventClock, HostClock, clock_for
from accel_bench.worker.heartbeat import Heartbeat
from accel_bench.worker.stopwatch import WindowStopwatch

WORK = """\
name: standin
model:
  id: tiny-llama-cpu
  overrides: {num_hidden_layers: 1, hidden_size: 32, intermediate_size: 64, vocab_size: 256}
data: {use: synthetic, sequence_length: 16, samples: 32, vocab_size: 256}
train: {micro_batch_size: 2}
resources: {device: standin, threads: 1}
stacks: {baseline: []}
measure: {warmup: 2, steps: 4, rounds: 1, phase_steps: 1}
"""


@pytest.fixture
def fresh() -> Iterator[None]:
    """Read the entry points anew, here and for the tests that follow."""
    device_types.cache_clear()
    yield
    device_types.cache_clear()


def machine(version: str, *capabilities: tuple[int, int], **facts: Any) -> Machine:
    """A machine with GPUs and a version of torch."""
    return make_machine(*capabilities, versions={"torch": version}, **facts)


# Which one `auto` means.


def test_a_gpu_is_preferred_where_torch_can_use_it() -> None:
    assert list(device_types()) == ["cuda", "rocm", "mps", "cpu"]
    assert best_device(machine("2.13.0", (8, 0))) == "cuda"
    assert best_device(machine("2.13.0+cu126", (8, 0))) == "cuda"
    assert best_device(machine("2.13.0+cpu", (8, 0))) == "cpu"
    assert best_device(machine("2.13.0")) == "cpu"


def test_amd_s_gpus_are_those_of_the_driver_with_simd_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, simds, name in ((0, 0, ""), (2, 304, "aqua_vanjaram"), (10, 304, "")):
        node = tmp_path / str(number)
        node.mkdir()
        (node / "name").write_text(f"{name}\n")
        facts = f"cpu_cores_count 0\nsimd_count {simds}\ngfx_target_version 90402\n"
        (node / "properties").write_text(facts)
    monkeypatch.setattr(rocm, "TOPOLOGY", tmp_path)
    here = machine("2.13.0+rocm7.0")
    assert device_type("rocm").find(here) == ["aqua_vanjaram", "gfx942"]
    assert best_device(here) == "rocm"
    assert best_device(machine("2.13.0+cpu")) == "cpu"
    # Torch's own word for both makers' is cuda; the scenario says which was asked for.
    assert of_torch_type("cuda", "rocm") is device_type("rocm")
    assert of_torch_type("cuda") is device_type("cuda")


def test_of_a_device_that_nothing_describes_torch_s_own_module_is_asked() -> None:
    found = of_torch_type("xpu")
    assert (found.torch_type, found.on_host, found.module()) == ("xpu", False, torch.xpu)
    assert of_torch_type("meta") is device_type("cpu")


def test_an_apple_chip_is_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    here = machine("2.13.0", system="Darwin 24.1.0", processor="Apple M4")
    assert device_type("mps").find(here) == ["Apple M4"]
    assert best_device(here) == "mps"


# What is asked for and is not there.


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("cudaa", "no device type is called 'cudaa'; did you mean 'cuda'"),
        ("xpu", "'xpu' (Intel's GPUs) is not installed; a distribution with an entry point 'xpu'"),
    ],
)
def test_an_unknown_type_is_refused_with_its_place(tmp_path: Path, name: str, problem: str) -> None:
    path = write_nulls(tmp_path, resources=f"{{device: {name}}}")
    with pytest.raises(ScenarioError) as raised:
        make_plan(read_draft(path), read_machine(), PlanRequest())
    assert problem in str(raised.value)
    assert str(raised.value).startswith(f"{path}:")


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("mps", ["1 MPS devices are asked for, 0 are here"]),
        (
            "rocm",
            [
                "1 ROCm devices are asked for, 0 are here",
                "the installed torch 2.13.0+cpu is not built for ROCm",
            ],
        ),
    ],
)
def test_a_type_of_which_there_is_no_device_is_a_reason(
    tmp_path: Path, name: str, reasons: list[str]
) -> None:
    path = write_nulls(tmp_path, resources=f"{{device: {name}}}")
    plan = make_plan(read_draft(path), machine("2.13.0+cpu"), PlanRequest())
    assert list(plan.planned[0].skipped) == reasons


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import absent_module", "ModuleNotFoundError"),
        ("class Odd: pass", "no subclass of accel_bench.DeviceType"),
    ],
)
def test_a_broken_one_hides_no_other(tmp_path: Path, source: str, why: str) -> None:
    install(tmp_path, "odd", "Odd", source)
    with (
        surroundings(tmp_path, {"PYTHONPATH": str(tmp_path)}),
        pytest.warns(UserWarning, match=f"'odd'.*left out: .*{why}"),
    ):
        assert list(device_types()) == ["cuda", "rocm", "mps", "cpu"]


# What is asked of torch.


@pytest.mark.parametrize("name", ["cuda", "xpu"])
def test_torch_s_modules_have_what_a_description_asks_of_them(name: str) -> None:
    module = getattr(torch, name)
    for asked in (
        "Event",
        "get_device_properties",
        "get_rng_state",
        "is_initialized",
        "mem_get_info",
        "memory_stats",
        "reset_peak_memory_stats",
        "set_device",
        "set_rng_state",
        "synchronize",
    ):
        assert callable(getattr(module, asked)), asked
    assert {"record", "elapsed_time"} <= set(dir(module.Event))
    # Nothing is started by looking.
    assert started_device() is None


def test_torch_s_module_for_metal_has_what_its_description_asks() -> None:
    for asked in (
        "Event",
        "current_allocated_memory",
        "driver_allocated_memory",
        "get_rng_state",
        "recommended_max_memory",
        "set_rng_state",
        "synchronize",
    ):
        assert callable(getattr(torch.mps, asked)), asked
    assert {"record", "elapsed_time"} <= set(dir(torch.mps.Event))


def test_metal_s_memory_is_what_tensors_and_the_driver_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = {"current_allocated_memory": 3, "driver_allocated_memory": 5}
    answers["recommended_max_memory"] = 20
    calls = {name: (lambda value=value: value) for name, value in answers.items()}
    monkeypatch.setattr(torch, "mps", SimpleNamespace(**calls))
    found = MPS().memory()
    assert found == {"device_allocated_bytes": 3, "device_reserved_bytes": 5}
    assert set(found) <= set(READINGS)
    assert MPS().free_memory() == (15, 20)


class Silent(DeviceType):
    """A type whose devices work after a call has returned, and have no events."""

    torch_type = "silent"
    label = "silent"
    waits = 0

    def make_event(self) -> None:
        """Return None."""

    def synchronize(self) -> None:
        """Count."""
        Silent.waits += 1


class Timed(Silent):
    """One whose events count seconds, and complete a while after they were recorded."""

    def __init__(self) -> None:
        self.stream, self.waited = Stream(), 0

    def make_event(self) -> Any:
        """Return an event that is a second after the one before."""
        return self.stream.make_event()

    def synchronize(self) -> None:
        """Wait for its stream, and count."""
        self.waited += 1
        self.stream.synchronize()


def test_steps_are_timed_by_events_where_there_are_some() -> None:
    clock = clock_for(Timed())
    assert isinstance(clock, EventClock)
    clock.reserve(2)
    for _ in range(3):
        clock.mark()
    assert clock.read()[1] == [1.0, 1.0]


def test_no_lap_takes_a_time_from_an_event_that_has_not_completed(tmp_path: Path) -> None:
    """An event that was just recorded completes a while later; none is waited for in the window."""
    device, heartbeat, waits = Timed(), Heartbeat(tmp_path / "beat"), []
    watch = WindowStopwatch(clock_for(device), heartbeat, warmup=3, steps=4, phase_steps=2)
    watch.start()
    while watch.running:
        phase, before = heartbeat.phase, device.waited
        watch.mark("forward")
        watch.lap([Batch({}, 1, TokenCounts(8, 8, 7), 7)], 1.0)
        waits += [device.waited - before] if phase == "window" else []
    assert waits[:-1] == [0, 0, 0]
    window = watch.window()
    seconds = [sample.device_seconds for sample in (*window.warmup, *window.samples)]
    assert seconds == [1.0] * 7
    assert watch.phases is not None


def test_without_events_the_host_s_clock_waits_for_the_device() -> None:
    clock = clock_for(Silent())
    assert type(clock) is HostClock
    clock.synchronize()
    assert Silent.waits == 1
    assert clock.read()[1] is None
    assert type(clock_for(device_type("cpu"))) is HostClock


# A device of torch's own for backends from outside, brought by another distribution.


@pytest.mark.box
def test_a_description_in_another_distribution_trains_on_its_device(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    install_standin(site)
    scenario, calls = tmp_path / "standin.yaml", tmp_path / "calls.json"
    scenario.write_text(WORK)
    environment = {"PYTHONPATH": str(site), "ACME_STANDIN_CALLS": str(calls)}
    words = ("--quiet", "--active", "1", "--format", "json")
    done = start("profile", str(scenario), *words, folder=tmp_path, **environment)
    assert done.code == 0, done.err
    (profile,) = json.loads(done.out)["profiles"][0]["ranks"]
    assert profile["steps"] == 1
    assert [one["memory_bytes"] > 0 for one in profile["scalars"]] == [True] * 2
    (warning,) = profile["warnings"]
    assert warning.startswith("torch's profiler has recorded no kernel of the standin device: oper")
    (run,) = open_store(tmp_path / "accel_bench_results").select()
    assert (run.status, run.reasons) == ("ok", ())
    (rank,) = run.ranks
    assert rank.device is not None and rank.window is not None
    assert (rank.device.type, rank.device.name) == ("standin", "Acme Stand-in 0")
    samples = rank.window.samples
    assert all(sample.device_seconds is not None for sample in samples)
    memory = {metric.name: metric for metric in rank.metrics if metric.kind == "allocated"}
    assert (memory["peak_memory_bytes"].value or 0) > 0
    asked = json.loads(calls.read_text())
    assert {"memory_stats", "record", "reset_peak_memory_stats", "set_device"} <= set(asked)
    assert asked["operations"] > 1000
    here = run_scenario(scenario, settings={"resources.device": "cpu"})["baseline"].ranks[0].window
    assert here is not None
    assert [sample.loss for sample in samples] == pytest.approx(
        [sample.loss for sample in here.samples], rel=1e-5
    )


class AcmeHost(DeviceType):
    """Computes in the host's memory under another name."""

    torch_type = "acme"
    label = "Acme"
    on_host = True

    def find(self, machine: Machine) -> list[str]:
        return ["Acme host"]


class AcmeGPU(AcmeHost):
    """An H100 by the name that the table of devices has."""

    on_host = False
    preference = 99

    def find(self, machine: Machine) -> list[str]:
        return ["NVIDIA H100 80GB HBM3"]


def test_a_device_type_says_whether_it_computes_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "device_types", lambda: {"acme": AcmeHost(), "cpu": CPU()})
    assert devices.computes_on_host("acme")
    monkeypatch.setattr(devices, "device_types", lambda: {"acme": AcmeGPU(), "cpu": CPU()})
    assert not devices.computes_on_host("acme")


def test_the_driver_of_an_experiment_is_that_of_its_device() -> None:
    here = machine("2.13.0", driver="580.65.06")
    drivers = {name: one.driver(here) for name, one in device_types().items()}
    assert drivers == {"cuda": "580.65.06", "rocm": None, "mps": "s", "cpu": None}
