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

H100 = "H100"
"""Device of all figures that are not ratios: they are quoted, and no other device closes them."""

THUNDER = "lightning-thunder's documentation, benchmark_litgpt.py of Llama 2 7B on one H100"

AUTOMODEL = (
    "NeMo AutoModel's performance summary of 2025-10-02, Llama 3 8B on one H100: 10 steps, of "
    "which 5 are warm-up, by llama3_1_8b_peft_benchmark.yaml, which has been edited since"
)

OWN = "this project's aim for one H100"


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

    steps: int = 20
    """Least number of steps of a window for the goal to count as met."""

    anchor: str = ""
    """Source of the figure; empty for a ratio, which is measured on both sides."""


def ratios(work: str, stack: str, others: Sequence[str]) -> tuple[Goal, ...]:
    """Return goals that report a stack's speed over that of others."""
    return tuple(
        Goal(work=work, metric="speed_ratio", stack=stack, baseline=other) for other in others
    )


BASELINES = {"single-gpu-full": "eager", "single-gpu-lora": "lora", "single-gpu-lora-8b": "lora"}
"""Baseline of each scenario with goals for an H100."""


def on_h100(work: str, metric: Metric, goal: float, anchor: str, steps: int = 20) -> Goal:
    """Return a goal for an H100: tokens/s to reach, or bytes to stay below."""
    return Goal(
        work=work,
        metric=metric,
        stack="fused-loss-compiled",
        baseline=BASELINES[work],
        goal=goal,
        at_most=metric == "peak_allocated_bytes",
        device=H100,
        anchor=anchor,
        steps=steps,
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
    on_h100("single-gpu-full", "tokens_per_second", 10_690, THUNDER),
    on_h100("single-gpu-full", "peak_allocated_bytes", 64.22e9, THUNDER),
    on_h100("single-gpu-full", "tokens_per_second", 12_881, OWN),
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
    on_h100("single-gpu-lora", "tokens_per_second", 17_400, OWN),
    *ratios("single-gpu-lora", "fused-loss-compiled", ("lora", "liger", "compiled")),
    *ratios("single-gpu-lora", "fused", ("lora", "liger", "compiled")),
    *ratios("single-gpu-lora", "fused-compiled", ("lora", "liger", "compiled")),
    on_h100("single-gpu-lora-8b", "tokens_per_second", 12_472.87, AUTOMODEL, steps=5),
    *ratios("single-gpu-lora-8b", "fused-loss-compiled", ("lora", "compiled")),
    *ratios("single-gpu-lora-8b", "fused", ("lora", "compiled")),
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
