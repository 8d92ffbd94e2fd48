"""What the decoder keeps for its backward pass, moved to the host by torch's hooks."""

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
    """One tensor's copy; several operations that keep the same tensor share it."""

    packed: Any
    """What torch's own hook has returned."""

    storage: StorageWeakRef
    """The storage that was copied: once it is gone, its address may be another's."""

    uses: int = 0
    """Operations that still need it."""

    restored: torch.Tensor | None = None
    """The copy back on the device, as long as there are more uses."""


class Packing:
    """The pair of hooks: which tensors move, each of them once in a pass."""

    def __init__(self, staying: Callable[[], set[int]], minimum_bytes: int, device: str) -> None:
        """`staying()` are storages that stay, by address: those of weights."""
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
        """Begin a pass, and return the context for it."""
        if self._staying is None:
            # Not before the first pass: wrapping and materializing give weights other storages.
            self._staying = self._read_staying()
        self._packed = {}
        return saved_tensors_hooks(self._pack, self._unpack)

    def forget(self) -> None:
        """End a pass: what is kept from now on belongs to the graph alone."""
        self._packed = {}

    def _pack(self, tensor: torch.Tensor) -> OnHost | torch.Tensor:
        if not self._moves(tensor):
            # Detached, since a graph that holds its own output would never be freed.
            return tensor.detach()
        storage = tensor.untyped_storage()
        place = (storage._cdata, tensor.storage_offset(), tensor._version)
        key = (*place, tensor.shape, tensor.stride(), tensor.dtype)
        found = self._packed.get(key)
        if found is None or found.storage.expired():
            found = OnHost(self._copies.pack_hook(tensor), StorageWeakRef(storage))
            self._packed[key] = found
            if self.counting:
                self.tensors += 1
                self.bytes += tensor.nbytes
        found.uses += 1
        return found

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
        """Return whether it is an activation of some size; subclasses hold more than they say."""
        return (
            type(tensor) is torch.Tensor
            and tensor.device.type == self._device
            and tensor.layout is torch.strided
            and tensor.nbytes >= self._minimum
            and tensor.untyped_storage().data_ptr() not in (self._staying or ())
        )


class Offloading:
    """One model's decoder whose forward runs under the hooks, until that is undone."""

    def __init__(self, model: nn.Module, minimum_bytes: int, device: str) -> None:
        """Raises PluginError for a model without decoder blocks."""
        path, blocks = decoder_blocks(model)
        if not blocks:
            raise PluginError(f"activation-offload: {type(model).__name__} has no list of blocks")
        self._decoder = model.get_submodule(path.rpartition(".")[0])
        self._packing = Packing(lambda: _storages(model), minimum_bytes, device)
        self._passes = 0
        self._bound = vars(self._decoder).get("forward")
        self._forward = self._decoder.forward
        self._decoder.forward = self._run

    def stop_counting(self) -> int:
        """Stop counting, and return how many tensors were moved until now."""
        self._packing.counting = False
        return self._packing.tensors

    def evidence(self) -> dict[str, Any]:
        """Return JSON of what one forward pass of the warm-up moves."""
        passes = max(self._passes, 1)
        return {
            "decoder": type(self._decoder).__name__,
            "forwards": self._passes,
            "tensors_per_forward": self._packing.tensors / passes,
            "bytes_per_forward": self._packing.bytes // passes,
        }

    def undo(self) -> None:
        """Give the decoder back the forward that it had."""
        if self._bound is None:
            vars(self._decoder).pop("forward", None)
        else:
            self._decoder.forward = self._bound

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        """Call the decoder's forward; a compiler of the whole model decides for itself."""
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
