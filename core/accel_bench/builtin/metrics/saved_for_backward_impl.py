"""What autograd keeps of a forward pass until the backward pass needs it."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from accel_bench import Metric, Run
from accel_bench.builtin.metrics.memory import bytes_metric
from accel_bench.modeling.saved_tensors import one_forward, saved_bytes


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
        size = one_forward(run, model, saved_bytes)
    except Exception as error:
        # Whatever a model does not take about one more pass, what was measured is measured.
        text = (str(error).splitlines() or [""])[0]
        reason = f"the forward pass for it failed: {type(error).__name__}: {text}"
    yield bytes_metric("saved_for_backward", size, "one_forward_of_a_micro_batch", reason)
