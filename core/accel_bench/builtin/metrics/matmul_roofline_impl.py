"""Products of the shapes that a model multiplies, timed with nothing between them."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import mean, median

import torch

from accel_bench import Matmul, Run, Window

BATCHES = 3
"""Batches of repetitions, of which the median counts."""

BATCH_SECONDS = 0.02
"""Least duration of a batch, so that starting and waiting do not show."""

LONGEST_BATCH = 1000
"""Most repetitions in a batch."""


def matmul_seconds(run: Run, window: Window) -> float | None:
    """Return the seconds that the matmuls of one optimizer step take on the device, back to back.

    Forward, and backward where weights or inputs need a gradient; no recomputation. None where the
    model's matmuls are not known, or where there is no memory for them beside the model.
    """
    if run.workload is None or not window.samples:
        return None
    micro_batches = run.scenario.train.gradient_accumulation
    tokens = mean(sample.processed_tokens for sample in window.samples) / micro_batches
    try:
        seconds = [_seconds(matmul, tokens, str(run.device)) for matmul in run.workload.matmuls]
    except torch.OutOfMemoryError:
        run.logger.warning("no memory left to time the matmuls in")
        return None
    return micro_batches * sum(seconds)


@torch.no_grad()
def _seconds(matmul: Matmul, tokens: float, device: str) -> float:
    """Return the seconds of all matrices of one kind for one micro-batch."""
    dtype = getattr(torch, matmul.dtype)
    reached = max(1, round(tokens * matmul.share))
    inputs = torch.randn(reached, matmul.columns, device=device, dtype=dtype)
    weight = torch.randn(matmul.rows, matmul.columns, device=device, dtype=dtype)
    gradient = torch.randn(reached, matmul.rows, device=device, dtype=dtype)

    def multiply() -> None:
        torch.mm(inputs, weight.T)
        if matmul.input_needs_gradient:
            torch.mm(gradient, weight)
        if matmul.trains:
            torch.mm(gradient.T, inputs)

    return matmul.count * _time(multiply, inputs.is_cuda)


def _time(work: Callable[[], None], on_cuda: bool) -> float:
    """Return the median seconds of a call, in batches that start and end with an idle device."""
    _batch_seconds(work, 2, on_cuda)
    once = _batch_seconds(work, 1, on_cuda)
    repetitions = max(1, min(LONGEST_BATCH, int(BATCH_SECONDS / max(once, 1e-9))))
    return median(_batch_seconds(work, repetitions, on_cuda) / repetitions for _ in range(BATCHES))


def _batch_seconds(work: Callable[[], None], repetitions: int, on_cuda: bool) -> float:
    if on_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repetitions):
        work()
    if on_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start
