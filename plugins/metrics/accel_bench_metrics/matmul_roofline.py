"""The metrics plugin `matmul-roofline`: seconds that the model's matmuls take by themselves."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from statistics import mean

from accel_bench import Matmul, Metric, Options, Plugin, Run, Window, hookimpl


class MatmulRoofline(Plugin[Options]):
    """Times the model's own matmuls after the window, back to back, each in its own dtype.

    `matmul_seconds` divided by the step's seconds is the fraction of a step that matmuls of these
    shapes need. The remaining time is attention, other operations, and waiting. The matmuls' memory
    is not in the window's peak if `memory` is read before: `metrics: [memory, matmul-roofline]`.
    """

    modes = frozenset({"train"})

    @hookimpl
    def finish_metrics(self, run: Run, window: Window) -> Iterable[Metric]:
        """Yield `matmul_seconds` of one step; null if the model's matmuls are unknown."""
        seconds = None
        if "torch" in sys.modules and hasattr(run.unwrapped_model, "named_parameters"):
            seconds = _matmul_seconds(run, window)
        yield Metric(
            name="matmul_seconds",
            figure="matmul_seconds",
            value=seconds,
            unit="seconds",
            scope="rank",
            kind="back_to_back",
        )


def _matmul_seconds(run: Run, window: Window) -> float | None:
    """Return the device seconds of one optimizer step's matmuls, computed back to back.

    Counted are the matmuls of the forward, and those of the backward for required gradients,
    without recomputation. Returns None if the matmuls are unknown, or if the device lacks memory
    for them.
    """
    import torch

    if run.workload is None or not window.samples:
        return None
    micro_batches = run.scenario.train.gradient_accumulation
    tokens = mean(sample.processed_tokens for sample in window.samples) / micro_batches
    try:
        seconds = [
            _seconds(matmul, tokens, str(run.device))
            for matmul in run.workload.matmuls
            if matmul.weight
        ]
    except torch.OutOfMemoryError:
        run.logger.warning("no memory left to time the matmuls in")
        return None
    return micro_batches * sum(seconds)


def _seconds(matmul: Matmul, tokens: float, device: str) -> float:
    """Return the device seconds of all matmuls of one shape in a micro-batch.

    `tokens` is the micro-batch's number of tokens.
    """
    import torch

    from accel_bench.modeling.timing import back_to_back_seconds

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

    return matmul.count * back_to_back_seconds(multiply, inputs.device.type)
