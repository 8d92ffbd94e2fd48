"""The time of a profiled step by module, kind of operation and direction."""

from __future__ import annotations

from typing import Literal, TypeAlias

from accel_bench.documents.base import Frozen

NamedKind: TypeAlias = Literal["matmul", "attention", "norm", "loss", "optimizer"]
"""Kinds that profiles, waterfalls and ledgers have."""

StepKind: TypeAlias = Literal[NamedKind, "memory-bound", "data", "communication", "idle"]
"""Kinds that a step consists of; `memory-bound` is the rest of the operations, `data` all that
gets batches, `idle` what no operation covers: Python's own work, and waiting."""

Direction: TypeAlias = Literal["forward", "backward", "recompute", "optimizer", "other"]
"""When a module's operation runs; `recompute` is the second forward of activation checkpointing,
`other` what belongs to none of them, such as getting batches."""

ROOT = "(model)"
"""Name of the model itself: what it computes in none of its modules, its loss for one."""

DATA = "(data)"
"""Name of what gets the batches of a step."""

OUTSIDE = "(outside of modules)"
"""Name of what runs in no module."""


class ModuleTime(Frozen):
    """Time of one kind of operation in the modules of one name."""

    module: str
    """Path from the model, with `*` for the numbers of layers: `model.layers.*.mlp.up_proj`."""

    kind: StepKind
    direction: Direction

    seconds: float
    """Seconds of a step, without those of modules inside."""

    calls: float
    """Operations that compute, without those that call others that do; or kernels of a device."""

    events: float = 0.0
    """Operations and ranges in a step that are recorded within this time."""


class ModuleTimes(Frozen):
    """A profiled step of one rank, divided: the times add up to it."""

    steps: int
    """Steps that were profiled."""

    step_seconds: float
    """Mean duration of a profiled step, which the profiler makes longer."""

    times: tuple[ModuleTime, ...]
    """The parts of it, the longest first."""

    compiled: tuple[str, ...] = ()
    """Modules that are compiled as one: no module is seen inside them."""

    device: bool
    """True if the times are those of kernels on a device; else those of the host's main thread."""
