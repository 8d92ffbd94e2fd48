"""Time of a profiled step by module, kind of operation and direction."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from accel_bench.documents.base import Frozen

NamedKind: TypeAlias = Literal["matmul", "attention", "norm", "loss", "optimizer"]
"""Kinds common to profiles, waterfalls and ledgers."""

StepKind: TypeAlias = Literal[NamedKind, "memory-bound", "data", "communication", "idle"]
"""Kinds of a step's time; `memory-bound` is the rest of the operations, `data` the loading of
batches, `idle` the time outside of operations: Python and waiting."""

StepDirection: TypeAlias = Literal["forward", "backward", "recompute", "optimizer", "other"]
"""Direction of a module's operation; `recompute` is the second forward of activation checkpointing,
`other` anything else, such as loading batches."""

ROOT = "(model)"
"""Name of the model itself, for computation outside of its modules, such as the loss."""

DATA = "(data)"
"""Name of the loading of batches."""

OUTSIDE = "(outside of modules)"
"""Name of computation outside of modules."""


class StepPart(NamedTuple):
    """Part of a step's time: a module, a kind of operation, and a direction."""

    module: str = OUTSIDE
    kind: StepKind = "idle"
    direction: StepDirection = "other"

    role: str = ""
    """Kind of the operations that the module itself calls, used only to find their kind."""


class ModuleTime(Frozen):
    """Time of one kind of operation in the modules that share a path."""

    module: str
    """Path from the model, with `*` for the numbers of layers: `model.layers.*.mlp.up_proj`."""

    kind: StepKind
    direction: StepDirection

    seconds: float
    """Seconds per step, without seconds of inner modules."""

    calls: float
    """Number of innermost computing operations, or of a device's kernels."""

    events: float = 0.0
    """Number of recorded operations and ranges per step within this time."""


class ModuleTimes(Frozen):
    """Time of a profiled step of one rank, in parts whose times add up to the step."""

    steps: int
    """Number of profiled steps."""

    step_seconds: float
    """Mean seconds of a profiled step, profiling overhead included."""

    times: tuple[ModuleTime, ...]
    """Parts of the step, the longest first."""

    compiled: tuple[str, ...] = ()
    """Modules compiled as a whole, without visible inner modules."""

    device: bool
    """True for times of a device's kernels; false for times of the host's main thread."""
