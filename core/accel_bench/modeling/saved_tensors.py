"""The tensors that autograd saves in a forward pass for the backward pass, in all and by module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from accel_bench.modeling.module_calls import around_modules
from accel_bench.modeling.random_state import keep_random_state
from accel_bench.run_context import Run

_CountT = TypeVar("_CountT")

OUTSIDE = ""
"""Module path of tensors that no module inside the model saves, but the model itself."""


def saved_bytes(model: torch.nn.Module, forward: Callable[[], Any], device: str) -> int:
    """Return the bytes of the distinct storages that autograd saves in `forward` on a device.

    Parameters and buffers are left out. A storage counts whole if any view of it is saved. Of a
    checkpointed part only its inputs are saved; a compiled part reports its saved tensors, and is
    not recompiled.
    """
    return _saved(model, forward, device, lambda: OUTSIDE).total()


def saved_bytes_by_module(
    model: torch.nn.Module, forward: Callable[[], Any], device: str
) -> dict[str, int]:
    """Return how many of the `saved_bytes` each module saves, by the module's dotted path.

    A storage counts for the innermost module that saves it first, or the compiled one around it.
    """
    entered: list[str] = []
    with around_modules(model, lambda path: _within(path, entered)):
        sizes = _saved(model, forward, device, lambda: entered[-1] if entered else OUTSIDE)
    return dict(sizes.most_common())


def one_forward(run: Run, model: torch.nn.Module, count: Callable[..., _CountT]) -> _CountT:
    """Return `count(model, forward, device)`, with a function `forward` for one forward pass.

    The pass computes the loss of the next micro-batch as engines do. No backward pass follows, and
    the random state is restored.
    """
    batch = next(run.batches)
    device = str(run.device)
    inputs = {name: tensor.to(device) for name, tensor in batch.inputs.items()}

    def forward() -> Any:
        return run.loss(model, inputs, batch.supervised_in_step)

    with keep_random_state(device), run.autocast():
        return count(model, forward, device)


def _saved(
    model: torch.nn.Module, forward: Callable[[], Any], device: str, place: Callable[[], str]
) -> Counter[str]:
    own = {_address(tensor) for tensor in (*model.parameters(), *model.buffers())}
    kind = torch.device(device).type
    storages: dict[int, tuple[str, int]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == kind and (address := _address(tensor)) not in own:
            first, _ = storages.get(address, (place(), 0))
            storages[address] = first, tensor.untyped_storage().nbytes()
        # What is returned keeps the storage, and so its address, until the graph goes. Without its
        # history, since a tensor that its own graph holds would never go.
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    del result
    sizes: Counter[str] = Counter()
    for first, size in storages.values():
        sizes[first] += size
    return sizes


@contextmanager
def _within(path: str, entered: list[str]) -> Iterator[None]:
    entered.append(path)
    try:
        yield
    finally:
        entered.pop()


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
