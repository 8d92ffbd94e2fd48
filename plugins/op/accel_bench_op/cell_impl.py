"""Cell of a micro-benchmark: one benchmark size, executor and compute type, timed and checked."""

from __future__ import annotations

import contextlib
import copy
import gc
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

from accel_bench.errors import PluginError
from accel_bench.machine.device_type import DeviceType
from accel_bench.machine.devices import HOST, of_torch_type, started_device
from accel_bench.machine.out_of_memory import out_of_memory
from accel_bench_op.benchmark import Benchmark, as_dtype
from accel_bench_op.check_impl import (
    Check,
    called,
    check_against_float64,
    coarsest_dtype,
    named_tensors,
)
from accel_bench_op.compute import ComputeType, TimedCall
from accel_bench_op.executors import Executor
from accel_bench_op.roofline_impl import roofline_figures

SEED = 0
"""Seed of weights and batches for benchmarks without their own."""

ALLOWED_AT_SCALES = 4.0
"""Factor of the tolerance for scaled inputs, at which kernels round differently; ignoring the scale
gives an error of at least 0.75."""

SMALLEST = "tiny"
"""Size for comparison if float64 does not fit at the cell's size."""


@dataclass(frozen=True)
class Cell:
    """A benchmark's callable, as an executor built it, with the batch that it is timed on."""

    benchmark: Benchmark
    fn: Callable[..., Any]
    batch: tuple[Sequence[Any], Mapping[str, Any]]
    compute_type: ComputeType

    executor: Executor | None = None
    """Executor that built `fn`; None if unknown."""

    def timed_call(self) -> TimedCall:
        """Return the timed call of the callable on the batch."""
        bench = self.benchmark
        postprocess = bench.postprocess_for_backward if bench.requires_grad else lambda _: None
        return TimedCall(self.compute_type, self.fn, self.batch, postprocess)

    def check(self) -> Check:
        """Compare the callable with eager in float64: outputs, and in training also gradients.

        The outputs are compared even if only the backward pass is timed. If memory runs out at this
        size, the size `tiny` is compared, if there is one.
        """
        try:
            return self._check()
        except Exception as error:
            if out_of_memory(error) is None or (small := self._at_smallest_size()) is None:
                raise
            release_frames(error)
        free_memory()
        return replace(small._check(), size=SMALLEST)

    def _check(self) -> Check:
        gradients = self.compute_type is not ComputeType.INFERENCE
        if self.executor is None:
            return check_against_float64(self.benchmark, self.fn, self.batch, gradients)
        # What has remembered the results of another batch is wrong for this one.
        called(self.fn, self.batch, gradients)
        check = self._compared(_batch(self.benchmark, SEED + 1), gradients)
        if check.reason or check.undecided:
            return check
        at_scales = (self._at_scale(scale, gradients) for scale in self.benchmark.scales)
        return next((at_scale for at_scale in at_scales if at_scale.reason), check)

    def _compared(self, values: Any, gradients: bool) -> Check:
        """Return the result of comparing the callable with eager on the values of another batch.

        The values are copied into the tensors of the timed batch if they fit. The callable is
        called once, and its output overwritten with NaN. If it then returns that output again
        instead of computing, the NaN reveals it.
        """
        with holding(self.batch, values) as batch:
            kept = None if self.benchmark.keeps_inputs else copy.deepcopy(plain_tensors(batch))
            write_over(called(self.fn, batch, gradients), [batch, *self._weights()])
            if kept is not None:
                write(plain_tensors(batch), kept)
            return check_against_float64(self.benchmark, self.fn, batch, gradients)

    def _at_scale(self, scale: float, gradients: bool) -> Check:
        """Compare with eager on inputs times `scale`; undecided if the reference fails on those."""
        values = scaled(_batch(self.benchmark, SEED + 1), scale)
        try:
            check = self._compared(values, gradients)
        except PluginError as error:  # The reference cannot compute there: probabilities, say.
            return Check({}, self.dtype, 0.0, undecided=str(error))
        named = {
            f"{name} of inputs x {scale:g}": distance for name, distance in check.distances.items()
        }
        return replace(check, distances=named, tolerance=ALLOWED_AT_SCALES * check.tolerance)

    def _weights(self) -> Iterator[Any]:
        """Yield parameters and buffers of the executor's and of the benchmark's own callable."""
        for fn in (self.fn, self.benchmark.returned_fn):
            if isinstance(fn, torch.nn.Module):
                yield from (*fn.parameters(), *fn.buffers())

    def _at_smallest_size(self) -> Cell | None:
        kind = type(self.benchmark)
        if self.executor is None or SMALLEST not in kind.sizes:
            return None
        settings = {"device": self.device, "dtype": as_dtype(self.dtype)}
        return build_cell(kind.at_size(SMALLEST, **settings), self.executor, self.compute_type)

    @property
    def device(self) -> str:
        """Torch's name of the device of the batch, or else of the weights."""
        fn = self.benchmark.returned_fn
        weights = fn.parameters() if isinstance(fn, torch.nn.Module) else ()
        tensors = (
            tensor for tensor in (*tree_leaves(self.batch), *weights) if torch.is_tensor(tensor)
        )
        return str(next((tensor.device for tensor in tensors), "cpu"))

    @property
    def dtype(self) -> str:
        """Name of the dtype of the computation."""
        return coarsest_dtype(self.batch, self.benchmark.returned_fn)

    def peak_memory(self) -> int | None:
        """Return the peak bytes of one call beyond weights and batch, autograd's graph included."""
        call = self.timed_call()

        def once() -> Any:
            call.prepare()
            return call.run()

        try:
            return peak_memory_bytes(once, self.device.partition(":")[0])
        finally:
            call.close()

    def bytes_moved(self) -> int | None:
        """Return the minimum bytes that one timed call reads and writes; None if unknown."""
        bench, goes_back = self.benchmark, self.compute_type is ComputeType.TRAINING_BACKWARD
        said = bench.backward_bytes_moved() if goes_back else bench.bytes_moved()
        if said is not None or not bench.counts_bytes:
            return said
        original = bench.returned_fn
        tensors = dict(named_tensors([*self.batch[0], self.batch[1]], "input"))
        if isinstance(original, torch.nn.Module):
            tensors |= dict(original.named_parameters())
        moved = [tensors[name] for name in tensors if not (goes_back and name in bench.unread)]
        # Of a backward pass the gradients of the outputs are read, and the others written.
        moved += tree_leaves(called(self.fn, self.batch, False))
        moved += [tensor for tensor in tensors.values() if goes_back and tensor.requires_grad]
        return sum(tensor.nbytes for tensor in moved if tensor.dim())

    def figures(self, seconds: float) -> Mapping[str, Any]:
        """Return the rates of a call that takes `seconds`, and its fraction of the roofline."""
        bench, moved = self.benchmark, self.bytes_moved()
        goes_back = self.compute_type is ComputeType.TRAINING_BACKWARD
        flops = bench.backward_flops() if goes_back else bench.flops()
        return roofline_figures(seconds, flops, moved, self.device, self.dtype)


def build_cell(benchmark: Benchmark, executor: Executor, compute_type: ComputeType) -> Cell:
    """Return a cell with a batch and the executor's callable, built with fixed seeds."""
    batch = _batch(benchmark, SEED)
    torch.manual_seed(SEED)
    fn = executor.build(benchmark)
    if not callable(fn):
        raise PluginError(f"executor {executor.name!r} builds {fn!r}, which cannot be called")
    return Cell(benchmark, fn, batch, compute_type, executor)


def _batch(benchmark: Benchmark, seed: int) -> tuple[Sequence[Any], Mapping[str, Any]]:
    torch.manual_seed(seed)
    args, kwargs = benchmark.make_batch()
    return args, kwargs


@contextlib.contextmanager
def holding(batch: Any, other: Any) -> Iterator[Any]:
    """Copy the values of the batch `other` into the tensors of `batch` until the block ends.

    Yields `batch`. If the tensors differ in shape, dtype, device or layout, nothing is copied, and
    `other` itself is yielded.
    """
    (ours, our_tree), (theirs, their_tree) = tree_flatten(batch), tree_flatten(other)
    if our_tree != their_tree or not all(map(_alike, ours, theirs)):
        yield other
        return
    tensors = [tensor for tensor in ours if torch.is_tensor(tensor)]
    saved = [tensor.detach().clone() for tensor in tensors]
    write(tensors, [tensor for tensor in theirs if torch.is_tensor(tensor)])
    try:
        yield batch
    finally:
        write(tensors, saved)


def _alike(one: Any, other: Any) -> bool:
    """Return whether two values match: tensors of equal shape and kind, or equal plain values."""
    if not (torch.is_tensor(one) and torch.is_tensor(other)):
        return one is other or (isinstance(one, bool | int | float | str) and one == other)
    kinds = [(each.shape, each.dtype, each.device, each.layout) for each in (one, other)]
    return kinds[0] == kinds[1] and _is_plain(one)


def plain_tensors(batch: Any) -> list[Any]:
    """Return the tensors of a batch, detached from autograd's graph."""
    return [tensor.detach() for tensor in tree_leaves(batch) if hasattr(tensor, "detach")]


def scaled(batch: Any, scale: float) -> Any:
    """Return a batch with its floating-point tensors multiplied by `scale`."""

    def times(tensor: Any) -> Any:
        product = tensor.detach() * scale if tensor.is_floating_point() else tensor
        return product.requires_grad_(tensor.requires_grad)

    return tree_map_only(torch.Tensor, times, batch)


def write_over(out: Any, kept: Any) -> None:
    """Overwrite an output's tensors with NaN, except those that share memory with `kept`.

    Integers become 1. Version counters stay unchanged, so that no cache notices the change.
    """
    addresses = {_address(tensor) for tensor in tree_leaves(kept) if _is_plain(tensor)}
    with torch.inference_mode():
        for tensor in tree_leaves(out):
            if _is_plain(tensor) and _address(tensor) not in addresses:
                tensor.fill_(torch.nan if tensor.is_floating_point() or tensor.is_complex() else 1)


def _is_plain(value: Any) -> bool:
    """Return whether a value is a dense tensor without overlapping elements."""
    if not torch.is_tensor(value) or value.layout is not torch.strided or value.is_nested:
        return False
    return all(size < 2 or step for size, step in zip(value.shape, value.stride(), strict=True))


def _address(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def write(tensors: Sequence[Any], values: Sequence[Any]) -> None:
    """Copy the values of tensors into other tensors, without autograd."""
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


def free_memory() -> None:
    """Free memory of earlier cells, and reset compilers.

    A compiler would otherwise give up on a function after compiling it for a few sizes.
    """
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    gc.collect()
    if (device := started_device()) is not None:
        device.empty_cache()


def release_frames(error: BaseException) -> None:
    """Clear the variables of an exception's frames, to free the tensors that they hold."""
    if error.__traceback__ is not None:
        traceback.clear_frames(error.__traceback__)


def why_no_memory(error: BaseException) -> str:
    """Return the first line of an out-of-memory error; empty for any other error."""
    cause = out_of_memory(error)
    return "" if cause is None else f"out of memory: {str(cause).splitlines()[0]}"


def peak_memory_bytes(call: Callable[[], Any], device_type: str) -> int | None:
    """Return the peak bytes that a call adds to the bytes allocated before.

    On a CPU the events of torch's allocator are summed. The result is None on a device whose
    allocator reports no peak, and on an unknown device.
    """
    if device_type == HOST:
        return _peak_on_cpu(call)
    device = of_torch_type(device_type)
    return None if device.on_host else _peak_on_device(call, device)


def _peak_on_device(call: Callable[[], Any], device: DeviceType) -> int | None:
    device.synchronize()
    device.reset_peak_memory()
    before = device.memory().get("device_allocated_bytes")
    call()
    device.synchronize()
    peak = device.memory().get("device_peak_allocated_bytes")
    return None if before is None or peak is None else peak - before


def _peak_on_cpu(call: Callable[[], Any]) -> int | None:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = call()
    del kept
    results = getattr(profiler.profiler, "kineto_results", None)
    if results is None:
        return None
    events = [event for event in results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda record: record.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return int(peak)
