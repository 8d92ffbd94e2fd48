"""What autograd keeps of a forward pass until the backward pass needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from accel_bench import Metric, Run

NAME = "saved_for_backward_bytes"
KIND = "one_forward_of_a_micro_batch"


def saved_for_backward(run: Run) -> Iterable[Metric]:
    """Take one forward pass of the next micro-batch and add up what it keeps on the rank's device.

    The pass comes after the measured window, and no backward pass follows it. It goes round the
    wrapper of a data-parallel model, whose gradients it would otherwise expect. A model that is no
    torch module has nothing to look at; one that cannot take the pass gets a null with the reason.
    """
    model = run.unwrapped_model
    if not isinstance(model, torch.nn.Module):
        return
    try:
        size = _one_forward(run, model)
    except Exception as error:
        # Whatever a model does not take about one more pass, what was measured is measured.
        text = (str(error).splitlines() or [""])[0]
        reason = f"the forward pass for it failed: {type(error).__name__}: {text}"
        yield _metric(None, reason)
    else:
        yield _metric(size)


def saved_bytes(model: torch.nn.Module, forward: Callable[[], Any], device: str) -> int:
    """Bytes of the distinct storages on a device that `forward` has autograd save.

    Parameters and buffers are left out: they are there anyway. A storage of which a view is saved
    counts whole, since all of it is kept. Within a checkpointed part only its inputs are saved,
    and a compiled part says what it keeps; hooks like these make it compile nothing again.
    """
    own = {_address(tensor) for tensor in (*model.parameters(), *model.buffers())}
    kind = torch.device(device).type
    sizes: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == kind and (address := _address(tensor)) not in own:
            sizes[address] = tensor.untyped_storage().nbytes()
        # What is returned keeps the storage, and so its address, until the graph goes. Without its
        # history, since a tensor that its own graph holds would never go.
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, _unpack):
        result = forward()
    del result
    return sum(sizes.values())


def _one_forward(run: Run, model: torch.nn.Module) -> int:
    """The loss as the engine has it computed, with the random state left as it was."""
    batch = next(run.batches)
    device = str(run.device)
    inputs = {name: tensor.to(device) for name, tensor in batch.inputs.items()}
    devices = [run.device.index] if run.device.type == "cuda" else []

    def forward() -> Any:
        return model(**inputs, num_items_in_batch=batch.supervised_in_step).loss

    with torch.random.fork_rng(devices), run.autocast():
        return saved_bytes(model, forward, device)


def _address(tensor: torch.Tensor) -> int:
    """Where a tensor's storage begins: the same for all views of it."""
    return tensor.untyped_storage().data_ptr()


def _unpack(tensor: torch.Tensor) -> torch.Tensor:
    """Called by a backward pass, of which there is none."""
    return tensor


def _metric(value: int | None, reason: str = "") -> Metric:
    return Metric(
        name=NAME,
        figure="saved_for_backward",
        value=value,
        unit="bytes",
        scope="rank",
        better="lower",
        kind=KIND,
        reason=reason,
    )
