"""Executors of a benchmark's callable: eager, compiled, or with their own kernels."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from accel_bench.errors import PluginError
from accel_bench.machine.info import find_program
from accel_bench_op.benchmark import Benchmark
from accel_bench_op.compute import ComputeType
from accel_bench_op.settings import torch_name


class Executor:
    """Base class of executors.

    An executor for any callable implements `__call__`. An executor with its own kernels sets
    `operations` and implements `build`. The method `build` uses the weights of `benchmark.fn()`, so
    that gradients can be compared.
    """

    name: str = ""
    """Name of the executor; by default the entry point's."""

    operations: frozenset[str] | None = None
    """Operations with a kernel; None for any callable."""

    def supports(self, benchmark: Benchmark | type[Benchmark]) -> str:
        """Return why a benchmark cannot run here, such as a missing package; empty if it can."""
        if self.takes(benchmark):
            return benchmark.unavailable() if isinstance(benchmark, Benchmark) else ""
        return f"executor {self.name} has no kernel for {benchmark.operation or benchmark.name}"

    def takes(self, benchmark: Benchmark | type[Benchmark]) -> bool:
        """Return whether the executor builds such a benchmark, whatever packages are installed."""
        return self.operations is None or benchmark.operation in self.operations

    def build(self, benchmark: Benchmark) -> Callable[..., Any]:
        """Return the callable to time in place of `benchmark.fn()`."""
        return self(benchmark.fn())

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return a callable equivalent to `fn`."""
        return fn

    def __repr__(self) -> str:
        """Return the executor's name, by which pytest-benchmark groups results."""
        return self.name or type(self).__name__


class Eager(Executor):
    """Executor of the unchanged callable."""

    name = "eager"


class Inductor(Executor):
    """Executor that compiles the callable by `torch.compile`."""

    name = "inductor"

    def supports(self, benchmark: Benchmark | type[Benchmark]) -> str:
        """Return why a benchmark cannot run here, such as no C++ compiler; empty if it can."""
        if not find_program(os.environ.get("CXX"), "g++", "clang++"):
            return "executor inductor needs a C++ compiler: install g++, or let CXX name one"
        return super().supports(benchmark)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        return torch.compile(fn)


class Thunder(Executor):
    """Executor that compiles the callable by Lightning Thunder, if installed."""

    name = "thunder"

    def supports(self, benchmark: Benchmark | type[Benchmark]) -> str:
        """Return why a benchmark cannot run here, such as a missing Thunder; empty if it can."""
        return self.missing() or super().supports(benchmark)

    @staticmethod
    def missing() -> str:
        """Return a sentence with the install command of Thunder; empty if it is installed."""
        if find_spec("thunder") is not None:
            return ""
        return "executor thunder needs lightning-thunder: pip install lightning-thunder"

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        if missing := self.missing():
            raise PluginError(missing)
        import thunder

        return thunder.jit(fn)


def cell_obstacle(
    kind: type[Benchmark],
    executor: Executor,
    size: str,
    compute_type: ComputeType = ComputeType.INFERENCE,
    *,
    device: str,
    **settings: object,
) -> str:
    """Return why a benchmark cannot run under an executor here; empty if it can.

    `settings` are further arguments of the benchmark, such as `dtype`. Neither batch nor callable
    is built. An exception that the benchmark or the executor raises is a reason too.
    """
    try:
        bench = _benchmark_at(kind, size, {**settings, "device": torch_name(device)})
        return executor.supports(bench) or no_backward(bench, compute_type)
    except PluginError as error:
        return str(error)
    except Exception as error:
        who = f"benchmark {kind.name} under executor {executor.name}"
        return f"{who} raises {type(error).__name__}: {error}"


def no_backward(benchmark: Benchmark, compute_type: ComputeType) -> str:
    """Return a sentence if a benchmark has no backward pass but needs one; empty otherwise."""
    if compute_type is ComputeType.INFERENCE or benchmark.requires_grad:
        return ""
    device = getattr(benchmark, "device", None)
    where = "" if device is None or type(benchmark).requires_grad is False else f" on {device}"
    return f"benchmark {benchmark.name} has no backward pass{where}"


def _benchmark_at(kind: type[Benchmark], size: str, settings: Mapping[str, object]) -> Benchmark:
    """Return a benchmark at a size; if it cannot be built, try again without the dtype."""
    try:
        return kind.at_size(size, **settings)
    except Exception:
        rest = {key: value for key, value in settings.items() if key != "dtype"}
        return kind.at_size(size, **rest)
