"""List the figures that the project's stacks are to reach on a GPU, in order of worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from pydantic import Field

from accel_bench.documents.base import Frozen, JsonValue

Metric: TypeAlias = Literal[
    "tokens_per_second", "peak_allocated_bytes", "speed_ratio", "peak_allocated_ratio"
]
"""Metric of a claim; both ratios are the stack's over its comparator's."""

UNITS: dict[Metric, str] = {
    "tokens_per_second": "tokens/s",
    "peak_allocated_bytes": "bytes",
    "speed_ratio": "ratio",
    "peak_allocated_ratio": "ratio",
}
"""Unit of each metric."""

H100, H200 = "H100", "H200"
"""Devices of figures that are not ratios."""

SAVED_BY_BANDWIDTH = (1 / 3.35e12 - 1 / 4.8e12) / 0.85
"""Seconds that moving a byte takes less on an H200 than on an H100: both multiply alike, their
memory moves 4.8 and 3.35 TB/s (data sheets), of which streaming kernels reach about 85 %."""


class Goal(Frozen):
    """Figure to reach."""

    work: str
    """Scenario."""

    metric: Metric
    """Metric that is measured."""

    stack: str
    """Name of the stack."""

    baseline: str
    """The stack that a ratio is taken over, and whose loss the stack must have."""

    goal: float | None = None
    """The figure; null where one is only reported."""

    at_most: bool = False
    """Whether less is better."""

    device: str = ""
    """Word in the name of the devices that the goal holds for; empty for any."""

    sweep: dict[str, JsonValue] = Field(default_factory=dict)
    """Point of the sweep that the goal is for."""


def ratios(work: str, stack: str, others: Sequence[str]) -> tuple[Goal, ...]:
    """Return goals that report a stack's speed over that of others."""
    return tuple(
        Goal(work=work, metric="speed_ratio", stack=stack, baseline=other) for other in others
    )


STEP_TOKENS = 4096
"""Tokens of a step of `single-gpu-full` and `single-gpu-lora`."""

FULL_BYTES = 94e9 + 62e9 + 3.9e9
"""Bytes that a step of `single-gpu-full` moves, compiled: AdamW on 6.7e9 parameters with state in
16 bits; norms, rotations, activations and residuals of 32 blocks, read off the code that the
compiler generates; the loss."""

LORA_BYTES = 94e9
"""Bytes that a step of `single-gpu-lora` moves, compiled: its frozen weights have no optimizer, but
adapters in float32 cost casts of what they multiply; read off the generated code alike. That it is
as much as AdamW moves above is chance."""


def speeds(work: str, baseline: str, h100: float, step_bytes: float) -> tuple[Goal, ...]:
    """Return a goal in tokens/s for an H100, and what it becomes on an H200.

    There a step takes as long, less what its `step_bytes` outside of products and attention are
    moved faster.
    """
    seconds = STEP_TOKENS / h100 - step_bytes * SAVED_BY_BANDWIDTH
    h200 = round(STEP_TOKENS / seconds, -1)
    return tuple(
        Goal(
            work=work,
            metric="tokens_per_second",
            stack="fused-loss-compiled",
            baseline=baseline,
            goal=goal,
            device=device,
        )
        for device, goal in ((H100, h100), (H200, h200))
    )


def memory(work: str, baseline: str, goal: float) -> tuple[Goal, ...]:
    """Return a goal of peak bytes, the same on both cards: their tensors are equally large."""
    return tuple(
        Goal(
            work=work,
            metric="peak_allocated_bytes",
            stack="fused-loss-compiled",
            baseline=baseline,
            goal=goal,
            at_most=True,
            device=device,
        )
        for device in (H100, H200)
    )


def padded(micro_batch_size: int, goal: float) -> Goal:
    """Return a goal of samples/s without padding: both stacks take the same samples per step."""
    return Goal(
        work="padding-free",
        metric="speed_ratio",
        stack="padding-free",
        baseline="padded",
        goal=goal,
        sweep={"train.micro_batch_size": micro_batch_size},
    )


GOALS: tuple[Goal, ...] = (
    *speeds("single-gpu-full", "eager", 10_690, FULL_BYTES),
    *memory("single-gpu-full", "eager", 64.22e9),
    *speeds("single-gpu-full", "eager", 12_881, FULL_BYTES),
    *ratios("single-gpu-full", "fused-loss-compiled", ("eager", "liger", "compiled")),
    *ratios("single-gpu-full", "fused", ("eager", "liger", "compiled")),
    *ratios("single-gpu-full", "fused-compiled", ("eager", "liger", "compiled")),
    Goal(
        work="single-gpu-qlora",
        metric="speed_ratio",
        stack="nf4-fused",
        baseline="qlora",
        goal=1.42,
    ),
    Goal(
        work="single-gpu-qlora",
        metric="peak_allocated_ratio",
        stack="nf4-fused",
        baseline="qlora",
        goal=0.70,
        at_most=True,
    ),
    Goal(
        work="single-gpu-qlora",
        metric="speed_ratio",
        stack="gptq-fused",
        baseline="nf4-fused",
        goal=0.95,
    ),
    *ratios("single-gpu-qlora", "nf4-fused", ("nf4", "nf4-liger", "nf4-compiled")),
    *ratios("single-gpu-qlora", "gptq-fused", ("gptq", "gptq-liger", "gptq-compiled")),
    *speeds("single-gpu-lora", "lora", 16_000, LORA_BYTES),
    *ratios("single-gpu-lora", "fused-loss-compiled", ("lora", "liger", "compiled")),
    *ratios("single-gpu-lora", "fused", ("lora", "liger", "compiled")),
    *ratios("single-gpu-lora", "fused-compiled", ("lora", "liger", "compiled")),
    Goal(
        work="llama-3-8b-qlora",
        metric="peak_allocated_ratio",
        stack="nf4-linear-cross-entropy",
        baseline="nf4",
        goal=0.55,
        at_most=True,
    ),
    *ratios("llama-3-8b-qlora", "nf4-linear-cross-entropy", ("nf4", "nf4-liger", "nf4-compiled")),
    padded(4, 1.30),
    padded(8, 1.60),
)
"""All goals, in order of worth."""
