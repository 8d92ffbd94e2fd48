"""Kinds that a step is divided into: those of its operations, and of what is around them."""

from __future__ import annotations

import re

from accel_bench_profile.figures.kinds import kind_of
from accel_bench_profile.figures.modules import StepKind

STEP_KINDS: tuple[StepKind, ...] = (
    "matmul", "attention", "norm", "loss", "optimizer", "memory-bound", "data",
    "communication", "idle",
)  # fmt: skip
"""All of them, in the order in which they are shown."""

STRENGTH: tuple[StepKind, ...] = (
    "idle", "memory-bound", "matmul", "norm", "loss", "attention", "optimizer", "data",
    "communication",
)  # fmt: skip
"""The same, the one that says more about nested operations behind the other."""

INDUCTOR: tuple[tuple[StepKind, re.Pattern[str]], ...] = (
    ("matmul", re.compile(r"triton_tem_\w*mm")),
    ("loss", re.compile(r"triton_\w*(log_softmax|nll)")),
    ("attention", re.compile(r"triton_tem_\w*(flex|attention)")),
    ("norm", re.compile(r"triton_\w*rsqrt")),
)
"""Kernels of torch.compile by the operations that are fused in them, which their names hold."""

ATTENTION_PARTS = re.compile(r"bmm|softmax|matmul|einsum")
"""Operations that are attention where a module of attention calls them itself."""


def step_kind(name: str) -> StepKind:
    """Return the kind of an operation or kernel by its name alone."""
    for kind, form in INDUCTOR:
        if form.search(name):
            return kind
    found = kind_of(name)
    if found == "compiled" or found == "autograd":  # noqa: PLR1714 - mypy narrows by this alone
        return "memory-bound"
    return found


def kind_in(name: str, role: str) -> StepKind:
    """Return the kind of an operation that a module of this role calls itself."""
    kind = step_kind(name)
    if role == "attention" and kind == "matmul":
        return "attention" if ATTENTION_PARTS.search(name) else kind
    if role in ("norm", "loss") and kind == "memory-bound":
        return "norm" if role == "norm" else "loss"
    return kind


def stronger(first: StepKind, second: StepKind) -> StepKind:
    """Return which of two kinds says more: `attention` more than the `matmul` within."""
    return max(first, second, key=STRENGTH.index)
