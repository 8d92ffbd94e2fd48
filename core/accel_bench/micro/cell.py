"""A cell: one benchmark, under one executor, in one compute type."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accel_bench.errors import PluginError
from accel_bench.machine.out_of_memory import out_of_memory
from accel_bench.micro.benchmark import Benchmark
from accel_bench.micro.check import Check, check_against_float64, coarsest_dtype
from accel_bench.micro.compute import ComputeType, TimedCall
from accel_bench.micro.executors import Executor
from accel_bench.micro.memory import peak_memory_bytes
from accel_bench.micro.roofline import roofline_figures

SEED = 0
"""Seed of weights and batches, for benchmarks that set none themselves."""


@dataclass(frozen=True)
class Cell:
    """What is timed, with what it is made of."""

    benchmark: Benchmark
    fn: Callable[..., Any]
    batch: tuple[Sequence[Any], Mapping[str, Any]]
    compute_type: ComputeType

    def timed_call(self) -> TimedCall:
        """Return the call of which a round consists."""
        postprocess = self.benchmark.postprocess_for_backward
        return TimedCall(self.compute_type, self.fn, self.batch, postprocess)

    def check(self) -> Check:
        """Compare outputs with eager in float64, and gradients where they are timed."""
        gradients = self.compute_type is ComputeType.TRAINING_BACKWARD
        return check_against_float64(self.benchmark, self.fn, self.batch, gradients)

    @property
    def device(self) -> str:
        """The device of the batch, or of the weights."""
        import torch
        from torch.utils._pytree import tree_leaves

        fn = self.benchmark.returned_fn
        weights = fn.parameters() if isinstance(fn, torch.nn.Module) else ()
        tensors = (one for one in (*tree_leaves(self.batch), *weights) if torch.is_tensor(one))
        return str(next((tensor.device for tensor in tensors), "cpu"))

    @property
    def dtype(self) -> str:
        """The name of the dtype that it computes in."""
        return coarsest_dtype(self.batch, self.benchmark.returned_fn)

    def peak_memory(self) -> int | None:
        """Return the bytes that a round holds beyond weights and batch, its graph among them."""
        call = self.timed_call()

        def once() -> Any:
            call.prepare()
            return call.run()

        try:
            return peak_memory_bytes(once, self.device.partition(":")[0])
        finally:
            call.close()

    def figures(self, seconds: float) -> Mapping[str, Any]:
        """Return the rates of a round of that many seconds, and the share of the roofline."""
        one = self.benchmark
        if self.compute_type is ComputeType.TRAINING_BACKWARD:
            flops, moved = one.backward_flops(), one.backward_bytes_moved()
        else:
            flops, moved = one.flops(), one.bytes_moved()
        return roofline_figures(seconds, flops, moved, self.device, self.dtype)


def build_cell(benchmark: Benchmark, executor: Executor, compute_type: ComputeType) -> Cell:
    """Build the batch and the callable, always of the same random numbers."""
    import torch

    torch.manual_seed(SEED)
    args, kwargs = benchmark.make_batch()
    fn = executor.build(benchmark)
    if not callable(fn):
        raise PluginError(f"executor {executor.name!r} builds {fn!r}, which cannot be called")
    return Cell(benchmark, fn, (args, kwargs), compute_type)


def free_memory() -> None:
    """Free what earlier cells held, and forget what was compiled for them.

    The compiler gives up on a function that it has compiled a few times, for several sizes, say.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def why_no_memory(error: BaseException) -> str:
    """Return the first line of an out-of-memory error; empty for any other error."""
    found = out_of_memory(error)
    return "" if found is None else f"out of memory: {str(found).splitlines()[0]}"
