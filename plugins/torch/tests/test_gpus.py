"""GPUs are found by their makers' drivers, and asked by torch's modules."""

from __future__ import annotations

import platform
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accel_bench_torch import rocm
from accel_bench_torch.mps import MPS

from accel_bench.machine.device_type import READINGS
from accel_bench.machine.devices import best_device, device_type, of_torch_type
from accel_bench.testing import make_machine


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
    here = make_machine(versions={"torch": "2.13.0+rocm7.0"})
    assert device_type("rocm").find(here) == ["aqua_vanjaram", "gfx942"]
    assert best_device(here) == "rocm"
    assert best_device(make_machine(versions={"torch": "2.13.0+cpu"})) == "cpu"
    # Torch's own word for both makers' is cuda; the scenario says which was asked for.
    assert of_torch_type("cuda", "rocm") is device_type("rocm")
    assert of_torch_type("cuda") is device_type("cuda")


def test_an_apple_chip_is_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    here = make_machine(versions={"torch": "2.13.0"}, system="Darwin 24.1.0", processor="Apple M4")
    assert device_type("mps").find(here) == ["Apple M4"]
    assert best_device(here) == "mps"


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
