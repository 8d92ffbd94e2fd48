"""Micro-benchmarks: one operation, block or small model, timed under several executors.

A benchmark is a subclass of `Benchmark`, and an executor is a subclass of `Executor`. Any
distribution adds its own by the entry points `accel_bench.micro` and `accel_bench.executors`. Run
all benchmarks with `pytest --pyargs accel_bench_op.targets`, which needs `accel-bench[micro]`.
"""

from __future__ import annotations

from accel_bench_op.benchmark import Benchmark, BenchmarkArg, as_dtype
from accel_bench_op.compute import ComputeType
from accel_bench_op.discovery import find_benchmarks, find_executors
from accel_bench_op.executors import Executor
from accel_bench_op.fixture import benchmark_for_compute_type, parametrize_compute_type

__all__ = [
    "Benchmark",
    "BenchmarkArg",
    "ComputeType",
    "Executor",
    "as_dtype",
    "benchmark_for_compute_type",
    "find_benchmarks",
    "find_executors",
    "parametrize_compute_type",
]
