"""Examination of this machine, and of machines without any information."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from accel_bench_doctor.checks import Examination, examine, find_compilers, torch_build
from fault_plugins.bare import lay_out

from accel_bench.machine.info import read_machine
from accel_bench.machine.nvml import library


def examined(folder: Path) -> Examination:
    """The examination of this machine."""
    return examine(read_machine(), folder / "results" / "not" / "there")


def test_this_machine_is_examined_without_a_gpu_or_a_driver(tmp_path: Path) -> None:
    found = examined(tmp_path)
    assert found.machine.versions["torch"]
    assert found.memory_available_bytes > 0
    assert found.disks["results"].path == str(tmp_path)
    assert all(disk.free_bytes for disk in found.disks.values())
    assert "accel-bench" in {plugin.distribution for plugin in found.plugins}
    assert bool(found.devices) or found.device_problems


def test_what_was_found_can_be_written_down_and_read_again(tmp_path: Path) -> None:
    found = examined(tmp_path)
    assert Examination.model_validate_json(found.model_dump_json()) == found


def test_a_machine_that_tells_nothing_is_examined_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setattr("shutil.disk_usage", _denied)
    found = examined(tmp_path)
    assert found.compilers == {}
    assert {disk.free_bytes for disk in found.disks.values()} == {None}


def _denied(path: object) -> None:
    raise PermissionError("denied")


def test_the_build_of_torch_is_that_of_its_own_module() -> None:
    import torch

    found = torch_build()
    assert found is not None
    assert (found.version, found.cuda) == (torch.__version__, torch.version.cuda)


@pytest.mark.parametrize(
    ("source", "cuda", "rocm"),
    [
        ("cuda: str = '13.0'\nhip = None\n", "13.0", None),
        ("cuda = None\nhip: str = '6.4'\n", None, "6.4"),
        ("import os; os._exit(3)\n", None, None),
        ("cuda = (\n", None, None),
        (None, None, None),
    ],
)
def test_the_build_is_read_and_never_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str | None,
    cuda: str | None,
    rocm: str | None,
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert torch_build() is None
    lay_out(tmp_path, "torch", "2.13.0")
    if source is not None:
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "version.py").write_text(source)
    found = torch_build()
    assert found is not None
    assert (found.version, found.cuda, found.rocm) == ("2.13.0", cuda, rocm)


@pytest.mark.parametrize(
    ("script", "version"),
    [
        ("echo 'cc 12.2'; echo more", "cc 12.2"),
        ("echo 'nvcc: NVIDIA'; echo 'tools, release 13.0'", "tools, release 13.0"),
        ("exit 1", ""),
        ("true", ""),
    ],
)
def test_a_compiler_says_its_version_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, version: str
) -> None:
    program = tmp_path / "my-cc"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("CC", str(program))
    assert find_compilers()["C"].version == version


def test_a_driver_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def missing() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    library.cache_clear()
    found = examined(tmp_path)
    library.cache_clear()
    assert found.machine.driver is None
    assert found.device_problems == ("NVML is missing: NVML Shared Library Not Found",)
