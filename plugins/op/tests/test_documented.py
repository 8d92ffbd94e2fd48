"""The programs of docs/micro.md run as printed, and define valid classes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from accel_bench_op import ComputeType, find_benchmarks
from accel_bench_op.cell_impl import build_cell

PAGE = Path(__file__).parents[3] / "docs" / "micro.md"


@pytest.fixture(scope="module")
def defined() -> dict[str, Any]:
    """What the blocks define, one after the other."""
    names: dict[str, Any] = {"__name__": "documented"}
    text = PAGE.read_text(encoding="utf8")
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/micro.md", "exec"), names)  # noqa: S102 - our own page
    return names


def test_the_benchmark_of_the_page_computes(defined: dict[str, Any]) -> None:
    one = defined["FooBenchmark"].at_size("tiny")
    cell = build_cell(one, find_executor(defined, "Optimised"), ComputeType.INFERENCE)
    assert cell.check().reason == ""
    (x,), _ = one.make_batch()
    weights = sum(weight.nbytes for weight in one.fn().parameters())
    assert one.bytes_moved() == 2 * x.nbytes + weights


def test_the_executor_of_the_page_has_its_kernel_for_one_operation(
    defined: dict[str, Any],
) -> None:
    mine, kinds = find_executor(defined, "Mine"), find_benchmarks()
    assert "has no kernel for layer_norm" in mine.supports(kinds["layer_norm"].at_size("tiny"))
    half = kinds["rms_norm"].at_size("tiny", dtype="float16")
    assert mine.supports(half) == "executor mine has no float16"
    one = kinds["rms_norm"].at_size("tiny")
    assert mine.supports(one) == ""
    assert build_cell(one, mine, ComputeType.TRAINING_BACKWARD).check().reason == ""


def find_executor(defined: dict[str, Any], name: str) -> Any:
    return defined[name]()
