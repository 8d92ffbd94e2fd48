"""Offload to the host of the tensors that a decoder saves, by torch's saved-tensor hooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from accel_bench.errors import PluginError
from accel_bench.modeling.blocks import decoder_blocks
from accel_bench.modeling.tensors import plain_tensors


@dataclass
class OnHost:
    """A tensor's copy on the host, the same for all operations that have saved the tensor."""

    packed: Any
    """Return value of the pack hook in torch's `save_on_cpu`."""

    storage: StorageWeakRef
    """Reference to the copied storage; while it exists, no other tensor gets its address."""

    uses: int = 0
    """Number of saved references to the tensor that are not unpacked yet."""

    restored: torch.Tensor | None = None
    """Copy of the tensor back on the device, until its last use; None before its first use."""


class OffloadHooks:
    """Pair of saved-tensor hooks that offload each tensor at most once in a forward pass."""

    def __init__(self, staying: Callable[[], set[int]], minimum_bytes: int, device: str) -> None:
        """Prepare hooks for tensors on `device` of at least `minimum_bytes`.

        `staying()` returns the storage addresses of the weights and buffers, which are never
        offloaded.
        """
        self.tensors = 0
        self.bytes = 0
        self.counting = True
        self._read_staying = staying
        self._staying: set[int] | None = None
        self._minimum = minimum_bytes
        self._device = device
        self._copies = save_on_cpu(pin_memory=True)
        self._packed: dict[tuple[Any, ...], OnHost] = {}

    def hooks(self) -> saved_tensors_hooks:
        """Return a context manager; a forward pass within it offloads the tensors that it saves."""
        if self._staying is None:
            # Not before the first pass: wrapping and materializing give weights other storages.
            self._staying = self._read_staying()
        self._packed = {}
        return saved_tensors_hooks(self._pack, self._unpack)

    def forget(self) -> None:
        """Forget, at the end of a forward pass, which tensors were offloaded in it."""
        self._packed = {}

    def _pack(self, tensor: torch.Tensor) -> OnHost | torch.Tensor:
        if not self._moves(tensor):
            # Detached, since a graph that holds its own output would never be freed.
            return tensor.detach()
        storage = tensor.untyped_storage()
        place = (storage._cdata, tensor.storage_offset(), tensor._version)
        key = (*place, tensor.shape, tensor.stride(), tensor.dtype)
        host = self._packed.get(key)
        if host is None or host.storage.expired():
            host = OnHost(self._copies.pack_hook(tensor), StorageWeakRef(storage))
            self._packed[key] = host
            if self.counting:
                self.tensors += 1
                self.bytes += tensor.nbytes
        host.uses += 1
        return host

    def _unpack(self, packed: OnHost | torch.Tensor) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        tensor = packed.restored
        if tensor is None:
            tensor = self._copies.unpack_hook(packed.packed)
        packed.uses -= 1
        packed.restored = tensor if packed.uses > 0 else None
        return tensor

    def _moves(self, tensor: torch.Tensor) -> bool:
        """Return whether to offload a saved tensor: a large enough activation on the device."""
        return (
            type(tensor) is torch.Tensor
            and tensor.device.type == self._device
            and tensor.layout is torch.strided
            and tensor.nbytes >= self._minimum
            and tensor.untyped_storage().data_ptr() not in (self._staying or ())
        )


class Offloading:
    """Offloading of the tensors saved by one model's decoder, until `undo` restores the decoder."""

    def __init__(self, model: nn.Module, minimum_bytes: int, device: str) -> None:
        """Replace the decoder's forward by one that offloads tensors of at least `minimum_bytes`.

        `device` is the type of device whose tensors are offloaded. Raises PluginError if the model
        has no decoder blocks.
        """
        path, blocks = decoder_blocks(model)
        if not blocks:
            raise PluginError(f"activation-offload: {type(model).__name__} has no list of blocks")
        self._decoder = model.get_submodule(path.rpartition(".")[0])
        self._packing = OffloadHooks(lambda: _storages(model), minimum_bytes, device)
        self._passes = 0
        self._bound = vars(self._decoder).get("forward")
        self._forward = self._decoder.forward
        self._decoder.forward = self._run

    def stop_counting(self) -> int:
        """Stop counting offloaded tensors; return the number of those offloaded so far."""
        self._packing.counting = False
        return self._packing.tensors

    def evidence(self) -> dict[str, Any]:
        """Return JSON evidence: the decoder's class, and tensors and bytes offloaded per pass."""
        passes = max(self._passes, 1)
        return {
            "decoder": type(self._decoder).__name__,
            "forwards": self._passes,
            "tensors_per_forward": self._packing.tensors / passes,
            "bytes_per_forward": self._packing.bytes // passes,
        }

    def undo(self) -> None:
        """Restore the decoder's original forward."""
        if self._bound is None:
            vars(self._decoder).pop("forward", None)
        else:
            self._decoder.forward = self._bound

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        """Call the decoder's forward, under the offloading hooks unless a compiler traces it."""
        if torch.compiler.is_compiling():
            return self._forward(*args, **kwargs)
        self._passes += self._packing.counting
        try:
            with self._packing.hooks():
                return self._forward(*args, **kwargs)
        finally:
            self._packing.forget()


def _storages(model: nn.Module) -> set[int]:
    tensors = (*model.parameters(), *model.buffers())
    return {part.untyped_storage().data_ptr() for t in tensors for part in plain_tensors(t)}
