"""All installed micro-benchmarks as tests: `pytest --pyargs accel_bench_op.targets`.

Each test is a function `test_<name>`, parametrized by compute type, executor and size:
`test_llama_mlp[backward-eager-llama-2-7b]`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from accel_bench.errors import PluginError
from accel_bench_op.benchmark import Benchmark
from accel_bench_op.compute import ComputeType, compute_types_of
from accel_bench_op.discovery import find_benchmarks, find_executors
from accel_bench_op.executors import Executor
from accel_bench_op.fixture import run_cell

# What libraries deprecate is no failure of a benchmark.
pytestmark = pytest.mark.filterwarnings("default")


def _test_of(kind: type[Benchmark], executors: dict[str, Executor]) -> Callable[..., None]:
    """Return the test function of a benchmark, parametrized by size, executor and compute type."""
    fitting = {name: executor for name, executor in executors.items() if executor.takes(kind)}

    @pytest.mark.parametrize("size", kind.sizes or [""], ids=lambda size: size or "default")
    @pytest.mark.parametrize("executor", fitting)  # by name, for pytest-benchmark's files
    @pytest.mark.parametrize("compute_type", compute_types_of(kind), ids=str)
    def test(benchmark: Any, compute_type: ComputeType, executor: str, size: str) -> None:
        run_cell(benchmark, kind, size, fitting[executor], compute_type)

    test.__doc__ = kind.description
    return test


def _tests(
    kinds: dict[str, type[Benchmark]], executors: dict[str, Executor]
) -> dict[str, Callable[..., None]]:
    """Return the tests of benchmarks by name. Raises PluginError for a duplicate name."""
    tests: dict[str, Callable[..., None]] = {}
    for name, kind in kinds.items():
        function = "test_" + re.sub(r"\W", "_", name)
        if function in tests:
            raise PluginError(
                f"benchmark {name!r} of {kind.__module__} and another one would both be "
                f"{function} in pytest; rename one of them"
            )
        test = _test_of(kind, executors)
        test.__name__ = test.__qualname__ = function
        tests[function] = test
    return tests


TESTS = _tests(find_benchmarks(), find_executors())
globals().update(TESTS)
