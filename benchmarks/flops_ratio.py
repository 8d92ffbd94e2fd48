"""Count the FLOPs of one micro-batch by our workload and by torch's own counter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from accel_bench.flops.formulas import model_flops
from accel_bench.run_context import Run
from accel_bench.worker.flops.trace import read_workload
from accel_bench.worker.verify.kernels import read_experts
from benchmarks.built_run import build_run

SETTINGS: dict[str, Any] = {"model.attention": "eager"}
"""Attention whose products torch's counter sees on every device."""


def flops_ratio(scenario: Path, settings: Mapping[str, Any]) -> tuple[float | None, str]:
    """Return our FLOPs of a scenario's micro-batch over torch's; None and why without."""
    with build_run(scenario, {**settings, **SETTINGS}) as built:
        run = built.run
        batch = next(run.batches)
        workload = read_workload(run, batch)
        if workload is None:
            return None, run.workload_reason
        width = batch.tokens.processed / batch.sequences
        ours = model_flops(workload, width).non_causal * batch.tokens.processed
        return ours / torch_flops(run, batch), ""


def torch_flops(run: Run, batch: Any) -> float:
    """Return the FLOPs that torch counts in the forward and backward pass of a micro-batch."""
    inputs = {name: value.to(str(run.device)) for name, value in batch.inputs.items()}
    if read_experts(run.unwrapped_model):  # The counter does not know grouped products.
        run.unwrapped_model.set_experts_implementation("eager")
    with torch.random.fork_rng([]), FlopCounterMode(display=False) as counter:
        run.loss(run.model, inputs, batch.supervised_in_step).backward()
    return float(counter.get_total_flops())
