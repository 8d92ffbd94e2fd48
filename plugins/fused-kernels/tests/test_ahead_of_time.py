"""Every Triton kernel that the plugin launches is compiled for Hopper, on a machine without one.

An upgrade of Liger, GPTQModel or Triton that breaks a kernel is seen here before a GPU is used.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.release,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
]

REGISTERS, SHARED_BYTES = 2**16, 232_448
"""Registers of a multiprocessor of compute capability 9.0, and shared memory of a block (CUDA C++
Programming Guide, technical specifications by compute capability)."""

LOSSES = ("cross_entropy", "linear_cross_entropy")
CASES = ("rms_norm", "layer_norm", "rope", "silu", "gelu_tanh", "gate", *LOSSES, "liger")
"""Prefixes of the cases of both plugins' parts with Triton kernels."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Output of the program: kernels with the resources they need, and failed cases."""
    cache = {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    ended = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("ahead_of_time.py"))],
        env={**os.environ, **cache},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return json.loads(ended.stdout.splitlines()[-1])


def test_every_kernel_is_compiled(compiled: Any) -> None:
    assert compiled["failed"] == {}
    cases = {one["case"].partition(" ")[0] for one in compiled["kernels"]}
    packed = {"gptq"} if find_spec("gptqmodel") is not None else set()
    assert cases == {*CASES, *packed}
    names = {one["name"] for one in compiled["kernels"]}
    assert {name.replace("backward", "forward") for name in names if "backward" in name} <= names


def test_every_kernel_can_be_launched(compiled: Any) -> None:
    too_much = [
        one
        for one in compiled["kernels"]
        if one["threads"] * one["registers"] > REGISTERS or one["shared_bytes"] > SHARED_BYTES
    ]
    assert too_much == []


def test_no_kernel_computes_in_double_precision(compiled: Any) -> None:
    """A Python float taken for a double costs a GPU 64 times as long."""
    assert [one["name"] for one in compiled["kernels"] if one["double"]] == []
