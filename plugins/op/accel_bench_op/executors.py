"""Executors of a benchmark's callable: eager, compiled, or with kernels of their own."""

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

    An executor for any callable implements `__call__`. One with its own kernels sets `operations`,
    and implements `build`, which uses the weights of `benchmark.fn()`, so that gradients can be
    compared.
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
        """Return whether there is a kernel for the benchmark's operation, installed or not."""
        return self.operations is None or benchmark.operation in self.operations

    def build(self, benchmark: Benchmark) -> Callable[..., Any]:
        """Return the callable to time in place of `benchmark.fn()`."""
        return self(benchmark.fn())

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return a callable equivalent to `fn`."""
        return fn

    def __repr__(self) -> str:
        """Return the name, by which pytest-benchmark groups."""
        return self.name or type(self).__name__


class Eager(Executor):
    """Executor of the unchanged callable."""

    name = "eager"


class Inductor(Executor):
    """Executor by `torch.compile`."""

    name = "inductor"

    def supports(self, benchmark: Benchmark | type[Benchmark]) -> str:
        """Return that there is no C++ compiler; empty if there is one."""
        if not find_program(os.environ.get("CXX"), "g++", "clang++"):
            return "executor inductor needs a C++ compiler: install g++, or let CXX name one"
        return super().supports(benchmark)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        return torch.compile(fn)


class Thunder(Executor):
    """Executor by Lightning Thunder, if installed."""

    name = "thunder"

    def supports(self, benchmark: Benchmark | type[Benchmark]) -> str:
        """Return that Thunder is missing, with its install command; empty if installed."""
        return self.missing() or super().supports(benchmark)

    @staticmethod
    def missing() -> str:
        """Return the install command of Thunder; empty if it is installed."""
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
    """Return why a cell cannot run here, without building it; empty if it can.

    Exceptions of a benchmark or an executor are reasons too, with its name.
    """
    try:
        one = _benchmark_at(kind, size, {**settings, "device": torch_name(device)})
        return executor.supports(one) or no_backward(one, compute_type)
    except PluginError as error:
        return str(error)
    except Exception as error:
        who = f"benchmark {kind.name} under executor {executor.name}"
        return f"{who} raises {type(error).__name__}: {error}"


def no_backward(benchmark: Benchmark, compute_type: ComputeType) -> str:
    """Return that a benchmark has no backward pass on its device; empty if it can run."""
    if compute_type is ComputeType.INFERENCE or benchmark.requires_grad:
        return ""
    device = getattr(benchmark, "device", None)
    where = "" if device is None or type(benchmark).requires_grad is False else f" on {device}"
    return f"benchmark {benchmark.name} has no backward pass{where}"


def _benchmark_at(kind: type[Benchmark], size: str, settings: Mapping[str, object]) -> Benchmark:
    """Return a benchmark, with the dtype as torch's object if it does not accept a name."""
    try:
        return kind.at_size(size, **settings)
    except Exception:
        rest = {key: value for key, value in settings.items() if key != "dtype"}
        return kind.at_size(size, **rest)
