"""A cell: one benchmark at one size, under one executor, in one compute type."""

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
"""Seed of weights and batches, for benchmarks that set none themselves."""

ALLOWED_AT_SCALES = 4.0
"""Factor of the tolerance at other scales of the inputs, at which kernels round otherwise; one that
takes no notice of the scale is off by 0.75 at least."""

SMALLEST = "tiny"
"""Size at which a benchmark is compared where float64 does not fit at its own."""


@dataclass(frozen=True)
class Cell:
    """What is timed, with what it is made of."""

    benchmark: Benchmark
    fn: Callable[..., Any]
    batch: tuple[Sequence[Any], Mapping[str, Any]]
    compute_type: ComputeType

    executor: Executor | None = None
    """What has built `fn`; None where that is not known."""

    def timed_call(self) -> TimedCall:
        """Return the call of which a round consists."""
        one = self.benchmark
        postprocess = one.postprocess_for_backward if one.requires_grad else _no_backward
        return TimedCall(self.compute_type, self.fn, self.batch, postprocess)

    def check(self) -> Check:
        """Compare outputs with eager in float64, and gradients in both halves of training.

        What a forward pass keeps for its backward pass is part of what it computes.

        At the size `tiny`, where the benchmark has it, if there is no memory for this one.
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
        found = self._compared(_batch(self.benchmark, SEED + 1), gradients)
        if found.reason or found.undecided:
            return found
        at_scales = (self._at_scale(scale, gradients) for scale in self.benchmark.scales)
        return next((one for one in at_scales if one.reason), found)

    def _compared(self, values: Any, gradients: bool) -> Check:
        """Compare on other values, after a call on the same ones whose output is written over.

        What returns the output of an earlier call without computing it again returns NaN.
        """
        with holding(self.batch, values) as batch:
            kept = None if self.benchmark.keeps_inputs else copy.deepcopy(plain_tensors(batch))
            write_over(called(self.fn, batch, gradients), [batch, *self._weights()])
            if kept is not None:
                write(plain_tensors(batch), kept)
            return check_against_float64(self.benchmark, self.fn, batch, gradients)

    def _at_scale(self, scale: float, gradients: bool) -> Check:
        """Compare on scaled inputs; undecided where float64 is of no help there."""
        values = scaled(_batch(self.benchmark, SEED + 1), scale)
        try:
            found = self._compared(values, gradients)
        except PluginError as error:  # The reference cannot compute there: probabilities, say.
            return Check({}, self.dtype, 0.0, undecided=str(error))
        named = {f"{name} of inputs x {scale:g}": one for name, one in found.distances.items()}
        return replace(found, distances=named, tolerance=ALLOWED_AT_SCALES * found.tolerance)

    def _weights(self) -> Iterator[Any]:
        """Yield parameters and buffers, ours and the benchmark's own."""
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
        """The device of the batch, or of the weights."""
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

    def bytes_moved(self) -> int | None:
        """Return the least bytes that a round reads and writes; None where that is not known."""
        one, goes_back = self.benchmark, self.compute_type is ComputeType.TRAINING_BACKWARD
        said = one.backward_bytes_moved() if goes_back else one.bytes_moved()
        if said is not None or not one.counts_bytes:
            return said
        original = one.returned_fn
        tensors = dict(named_tensors([*self.batch[0], self.batch[1]], "input"))
        if isinstance(original, torch.nn.Module):
            tensors |= dict(original.named_parameters())
        moved = [tensors[name] for name in tensors if not (goes_back and name in one.unread)]
        # Of a backward pass the gradients of the outputs are read, and the others written.
        moved += tree_leaves(called(self.fn, self.batch, False))
        moved += [tensor for tensor in tensors.values() if goes_back and tensor.requires_grad]
        return sum(tensor.nbytes for tensor in moved if tensor.dim())

    def figures(self, seconds: float) -> Mapping[str, Any]:
        """Return the rates of a round of that many seconds, and the share of the roofline."""
        one, moved = self.benchmark, self.bytes_moved()
        goes_back = self.compute_type is ComputeType.TRAINING_BACKWARD
        flops = one.backward_flops() if goes_back else one.flops()
        return roofline_figures(seconds, flops, moved, self.device, self.dtype)


def build_cell(benchmark: Benchmark, executor: Executor, compute_type: ComputeType) -> Cell:
    """Build the batch and the callable, always of the same random numbers."""
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


def _no_backward(_: Any) -> None:
    """Return that there is no tensor to start at."""


@contextlib.contextmanager
def holding(batch: Any, other: Any) -> Iterator[Any]:
    """Let the tensors of a batch hold the values of another one, at the same addresses.

    Yield the other batch itself where its tensors are not alike.
    """
    (ours, our_tree), (theirs, their_tree) = tree_flatten(batch), tree_flatten(other)
    if our_tree != their_tree or not all(map(_alike, ours, theirs)):
        yield other
        return
    tensors = [one for one in ours if torch.is_tensor(one)]
    saved = [one.detach().clone() for one in tensors]
    write(tensors, [one for one in theirs if torch.is_tensor(one)])
    try:
        yield batch
    finally:
        write(tensors, saved)


def _alike(one: Any, other: Any) -> bool:
    """Return whether a value may hold another one: tensors of a shape, or the same plain value."""
    if not (torch.is_tensor(one) and torch.is_tensor(other)):
        return one is other or (isinstance(one, bool | int | float | str) and one == other)
    kinds = [(each.shape, each.dtype, each.device, each.layout) for each in (one, other)]
    return kinds[0] == kinds[1] and _is_plain(one)


def plain_tensors(batch: Any) -> list[Any]:
    """Return the tensors of a batch, without what made them."""
    return [one.detach() for one in tree_leaves(batch) if hasattr(one, "detach")]


def scaled(batch: Any, scale: float) -> Any:
    """Return a batch whose floating-point tensors are multiplied."""

    def times(tensor: Any) -> Any:
        found = tensor.detach() * scale if tensor.is_floating_point() else tensor
        return found.requires_grad_(tensor.requires_grad)

    return tree_map_only(torch.Tensor, times, batch)


def write_over(out: Any, kept: Any) -> None:
    """Fill the tensors of an output that share no memory with those to be kept.

    No version of a tensor tells of it: what has kept the tensor does not see that it was written.
    """
    addresses = {_address(one) for one in tree_leaves(kept) if _is_plain(one)}
    with torch.inference_mode():
        for one in tree_leaves(out):
            if _is_plain(one) and _address(one) not in addresses:
                one.fill_(torch.nan if one.is_floating_point() or one.is_complex() else 1)


def _is_plain(value: Any) -> bool:
    """Return whether a value is a tensor each of whose elements has an address of its own."""
    if not torch.is_tensor(value) or value.layout is not torch.strided or value.is_nested:
        return False
    return all(size < 2 or step for size, step in zip(value.shape, value.stride(), strict=True))


def _address(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def write(tensors: Sequence[Any], values: Sequence[Any]) -> None:
    """Write values into tensors, outside of autograd."""
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


def free_memory() -> None:
    """Free what earlier cells held, and forget what was compiled for them.

    The compiler gives up on a function that it has compiled a few times, for several sizes, say.
    """
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    gc.collect()
    if (device := started_device()) is not None:
        device.empty_cache()


def release_frames(error: BaseException) -> None:
    """Clear the variables of the frames that an error has left, which hold tensors."""
    if error.__traceback__ is not None:
        traceback.clear_frames(error.__traceback__)


def why_no_memory(error: BaseException) -> str:
    """Return the first line of an out-of-memory error; empty for any other error."""
    found = out_of_memory(error)
    return "" if found is None else f"out of memory: {str(found).splitlines()[0]}"


def peak_memory_bytes(call: Callable[[], Any], device_type: str) -> int | None:
    """Return the peak of a call above what was allocated before it.

    On a CPU the events of torch's allocator are added up. None on a device whose allocator keeps no
    peak, and on one that nothing installed describes.
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
    for event in sorted(events, key=lambda one: one.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return int(peak)
