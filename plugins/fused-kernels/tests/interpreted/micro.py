"""Liger's kernels under micro-benchmarks, by Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
from accel_bench_fused_kernels.executors import FusedKernels, Liger
from accel_bench_op import ComputeType, find_benchmarks
from accel_bench_op.cell_impl import build_cell

pytestmark = pytest.mark.filterwarnings("ignore")

BENCHMARKS = find_benchmarks()
SLOW = {"llama", "mistral", "mixtral", FusedKernels}
"""Benchmarks of whole blocks, and of kernels that test_executors.py covers without Triton."""

NEEDS_A_GPU = {("liger", "mixtral")}
"""Benchmarks of experts, whose kernel autotunes, which the interpreter cannot."""

CELLS = [
    pytest.param(kind, name, marks=[pytest.mark.release] if kind in SLOW or name in SLOW else [])
    for kind in (Liger, FusedKernels)
    for name in sorted(BENCHMARKS)
    if kind().takes(BENCHMARKS[name])
    and "lora" not in name
    and (kind.name, name) not in NEEDS_A_GPU
]


@pytest.mark.parametrize(("kind", "name"), CELLS)
def test_it_computes_what_eager_does_in_float64(kind: Any, name: str) -> None:
    one = BENCHMARKS[name].at_size("tiny", device="cpu")
    assert kind().supports(one) == ""
    check = build_cell(one, kind(), ComputeType.TRAINING_BACKWARD).check()
    assert check.reason == ""
