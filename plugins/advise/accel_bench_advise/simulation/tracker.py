"""Tracker of the memory and the work of a step's operations, on real or fake tensors."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from accel_bench.modeling.tensors import dtype_name, plain_tensors
from accel_bench.worker.flops.operations import content_bytes, flops_of, moves_nothing
from accel_bench_advise.estimates.schema import Footprint, Operations, Part

aten = torch.ops.aten

FEW_CHANNELS = 3
"""Channels of an input, such as a picture's, that oneDNN reads in torch's own layout."""


@dataclass(eq=False)
class TrackedStorage:
    """Size in bytes of a tensor storage, and the use of its memory."""

    size: int
    part: Part


class StepTracker(TorchDispatchMode):
    """Tracker that logs each storage's allocation and release with the phase of the step.

    The caller sets `phase`, and `vocabulary`, the number of token ids. `assign` sets uses that are
    known later, such as gradients. With `assumes`, values that a model reads from its batch are 1,
    and masks select everything, as if an image or an utterance were present. With `copies`,
    convolutions copy their inputs and outputs, as on a CPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.phase = "build"
        self.vocabulary: int | None = None
        self.assumes = False
        self.copies = False
        self._known: dict[int, tuple[TrackedStorage, Any]] = {}
        self._events: list[tuple[TrackedStorage, bool, str]] = []
        self._base: set[TrackedStorage] = set()
        self._alive: set[TrackedStorage] = set()
        self._work: Counter[tuple[str, int, int]] = Counter()

    def assign(self, tensors: Iterable[Any], part: Part) -> None:
        """Record `part` as the use of the tensors' memory, and log tensors not seen before."""
        for tensor in tensors:
            for plain in plain_tensors(tensor):
                self._block(plain).part = part

    def restart(self) -> None:
        """Clear peak and work; tensors that still exist remain logged."""
        self._base = set(self._alive)
        self._events.clear()
        self._work.clear()

    def footprint(self, processed: int) -> Footprint:
        """Return the peak of memory by use and the operations since the last restart.

        `processed` is the number of tokens, or other counted units, of the micro-batch.
        """
        alive, peak, phase = set(self._base), set(self._base), self.phase
        total = most = sum(block.size for block in alive)
        for block, made, during in self._events:
            (alive.add if made else alive.remove)(block)
            total += block.size if made else -block.size
            if total > most:
                most, peak, phase = total, set(alive), during
        sizes: Counter[Part] = Counter()
        for block in peak:
            sizes[block.part] += block.size
        return Footprint(
            parts={part: sizes[part] for part in get_args(Part) if sizes[part]},
            phase=phase,
            operations=tuple(
                Operations(dtype=dtype, flops=flops, moved_bytes=moved, count=count)
                for (dtype, flops, moved), count in self._work.items()
            ),
            processed=processed,
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            if self.assumes or self.phase == "optimizer":
                # An optimizer reads its number of steps, on which no size depends.
                return True if args[0].dtype == torch.bool else 1
        if self.assumes and func is aten.index.Tensor and _is_mask(args[1]):
            out = _all_of(args[0], args[1][0])
        else:
            out = _call(func, args, kwargs)
        made = [tensor for tensor in tree_iter(out) if isinstance(tensor, torch.Tensor)]
        for tensor in made:
            self._block(tensor)
        if self.copies and (copied := _copied_bytes(func, args, made)):
            block = TrackedStorage(copied, "temporaries")
            self._events += [(block, True, self.phase), (block, False, self.phase)]
        if self.phase != "build":
            self._count(func, args, kwargs, out, made)
        return out

    def _block(self, tensor: torch.Tensor) -> TrackedStorage:
        """Return the record of a tensor's storage; a new storage is logged."""
        storage = tensor.untyped_storage()
        key = id(storage)
        if known := self._known.get(key):
            return known[0]
        block = TrackedStorage(storage.nbytes(), self._guess(tensor))

        def gone(_: Any) -> None:
            del self._known[key]
            self._alive.discard(block)
            self._events.append((block, False, self.phase))

        self._known[key] = block, weakref.ref(storage, gone)
        self._alive.add(block)
        self._events.append((block, True, self.phase))
        return block

    def _guess(self, tensor: torch.Tensor) -> Part:
        """Return the likely use of a new tensor's memory, by its shape and phase.

        All tensors built before the step count as weights, also of models that are not trained.
        """
        if self.phase == "build":
            return "weights"
        if tensor.dim() and tensor.shape[-1] == self.vocabulary:
            return "logits and loss"
        return "activations" if self.phase == "forward" else "temporaries"

    def _count(self, func: Any, args: Any, kwargs: Any, out: Any, made: list[torch.Tensor]) -> None:
        """Record the FLOPs of an operation's matrix products and the bytes it reads and writes.

        `made` are the tensors in its result `out`.
        """
        used = [tensor for tensor in tree_iter((args, kwargs)) if isinstance(tensor, torch.Tensor)]
        if moves_nothing(func, used, made):
            return
        moved = sum(content_bytes(tensor) for tensor in (*used, *made))
        flops = flops_of(func.overloadpacket, args, kwargs, out)
        dtype = dtype_name(used[0].dtype) if flops and used else ""
        self._work[dtype, flops, moved] += 1


def _call(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation and return its result; for CTC loss and products of experts on fake tensors,
    return empty tensors of the result's shape."""
    if func is aten._ctc_loss.Tensor and isinstance(args[0], FakeTensor):
        frames, utterances, _ = args[0].shape
        paths = 2 * args[1].shape[-1] + 1
        return args[0].new_empty(utterances), args[0].new_empty((utterances, frames, paths))
    if func is aten._ctc_loss_backward.Tensor and isinstance(args[1], FakeTensor):
        return torch.empty_like(args[1])
    if func is aten._grouped_mm.default and args[0].dtype != torch.bfloat16:
        if isinstance(args[0], FakeTensor):
            out = func(args[0].bfloat16(), args[1].bfloat16(), *args[2:], **kwargs)
            return torch.empty_like(out, dtype=args[0].dtype)
    return func(*args, **kwargs)


def _copied_bytes(func: Any, args: Any, made: list[torch.Tensor]) -> int:
    """Return the most extra bytes of an operation on a CPU beside its results; 0 if no convolution.

    `made` are the result's tensors. oneDNN copies activations and weights into layouts of its own,
    and its results back. An input of few channels is not copied.
    """
    if func is aten.convolution.default:
        source, weight, (result,) = args[0], args[1], made
        return max(_reordered(source) + content_bytes(weight), content_bytes(result))
    if func is not aten.convolution_backward.default:
        return 0
    source, strides, mask = args[1], args[4], args[10]
    written, read, weights = map(content_bytes, args[:3])
    of_weights = written + _reordered(source) + weights if mask[1] else 0
    if not mask[0]:
        return max(0, of_weights - weights)
    # The gradient of a strided input is copied twice.
    copies = 3 if max(strides) > 1 and _reordered(source) else 2
    most = max(written + weights + read, copies * read, read + of_weights)
    return most - sum(map(content_bytes, made))


def _reordered(source: torch.Tensor) -> int:
    """Return the bytes of a convolution's input copied to oneDNN's layout; 0 for few channels."""
    return content_bytes(source) if source.shape[1] > FEW_CHANNELS else 0


def _is_mask(indices: Any) -> bool:
    """Return whether `indices` is a single bool mask that is a fake tensor, so has no values."""
    return (
        len(indices) == 1 and isinstance(indices[0], FakeTensor) and indices[0].dtype == torch.bool
    )


def _all_of(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return a copy of what `tensor[mask]` would be if the mask selected every element."""
    return tensor.reshape(-1, *tensor.shape[mask.dim() :]).clone()
