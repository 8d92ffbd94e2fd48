"""What autograd keeps of a forward pass until the backward pass needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from accel_bench import Metric, Run
from accel_bench.builtin.metrics.memory import bytes_metric


def saved_for_backward(run: Run) -> Iterable[Metric]:
    """Take one forward pass of the next micro-batch and add up what it keeps on the rank's device.

    The pass comes after the measured window, and no backward pass follows it. It goes round the
    wrapper of a data-parallel model, whose gradients it would otherwise expect. A model that is no
    torch module has no such figure; one that cannot take the pass gets a null with the reason.
    """
    model = run.unwrapped_model
    if not isinstance(model, torch.nn.Module):
        return
    size, reason = None, ""
    try:
        size = _one_forward(run, model)
    except Exception as error:
        # Whatever a model does not take about one more pass, what was measured is measured.
        text = (str(error).splitlines() or [""])[0]
        reason = f"the forward pass for it failed: {type(error).__name__}: {text}"
    yield bytes_metric("saved_for_backward", size, "one_forward_of_a_micro_batch", reason)


def saved_bytes(model: torch.nn.Module, forward: Callable[[], Any], device: str) -> int:
    """Return the bytes of the distinct storages on a device that `forward` has autograd save.

    Parameters and buffers are left out: they are there anyway. A storage of which a view is saved
    counts whole, since all of it is kept. Within a checkpointed part only its inputs are saved,
    and a compiled part reports what it keeps; hooks like these make it compile nothing again.
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

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    del result
    return sum(sizes.values())


def _one_forward(run: Run, model: torch.nn.Module) -> int:
    """Return the bytes that the loss, computed as engines do, saves; keep the random state."""
    batch = next(run.batches)
    device = str(run.device)
    inputs = {name: tensor.to(device) for name, tensor in batch.inputs.items()}
    devices = [run.device.index] if run.device.type == "cuda" else []

    def forward() -> Any:
        return model(**inputs, num_items_in_batch=batch.supervised_in_step).loss

    with torch.random.fork_rng(devices), run.autocast():
        return saved_bytes(model, forward, device)


def _address(tensor: torch.Tensor) -> int:
    """Return where a tensor's storage begins: the same for all views of it."""
    return tensor.untyped_storage().data_ptr()
