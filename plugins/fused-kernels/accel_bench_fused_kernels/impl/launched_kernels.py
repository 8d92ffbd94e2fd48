"""Counts of launched kernels, from a forward and backward pass after the measured steps."""

from __future__ import annotations

from typing import Any

import torch

FUSED = ("rms_norm", "rope", "swiglu", "geglu", "cross_entropy", "element_mul")
"""Substrings of the names of fused kernels, Liger's and torch's."""

ATTENTION = ("flash", "fmha", "sdpa", "cudnn")
"""Substrings of the names of attention kernels of any backend, which compiled blocks call too."""


def kernels_seen(run: Any) -> dict[str, int] | str:
    """Return the number of launches of fused and attention kernels in a micro-batch, by kernel.

    Returns the reason as a string instead if profiling fails. Call it after metrics are read: it
    drops gradients. The unwrapped model computes, so that no rank waits for another.
    """
    from torch.profiler import ProfilerActivity, profile

    try:
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            _forward_backward(run)
            torch.cuda.synchronize()
    except Exception as error:
        # Evidence that cannot be had is no reason to throw away a measured run.
        return f"not seen: {error}"
    finally:
        run.unwrapped_model.zero_grad(set_to_none=True)
    return {event.key: event.count for event in profiled.key_averages() if is_counted(event.key)}


def is_counted(kernel: str) -> bool:
    """Return whether a kernel's launches count, by texts (`FUSED`, `ATTENTION`) in its name."""
    return any(name in kernel.lower() for name in (*FUSED, *ATTENTION))


def _forward_backward(run: Any) -> None:
    """Run the forward and backward pass of the run's next micro-batch."""
    batch = next(run.batches)
    inputs = {name: tensor.to(str(run.device)) for name, tensor in batch.inputs.items()}
    with run.autocast():
        loss = run.loss(run.unwrapped_model, inputs, batch.supervised_in_step)
    loss.backward()
