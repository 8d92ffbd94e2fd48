"""Ranges in a trace for the calls of modules, and marks at the ends of phases.

Marks for Nsight replace torch's profiler, since two programs cannot record one device.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.profiler import record_function
from torch.utils._python_dispatch import _disable_current_modes

from accel_bench.engine import FOLLOWING, Batch, PhaseName
from accel_bench.modeling.module_calls import around_module, around_modules, called_modules
from accel_bench.run_context import Run
from accel_bench_profile.figures.modules import ROOT
from accel_bench_profile.figures.spans import MODULE, PHASE, PREEMPTED
from accel_bench_profile.recording.window import WindowRecorder

SHORTEST = 200_000
"""Minimum nanoseconds of preemption in a mark; less is carried to the next one."""

WRAPPER_NAMES = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer")

WRAPPERS = re.compile(rf"(^|\.)({'|'.join(WRAPPER_NAMES)})(?=\.|$)")
"""Components of a path that only name wrappers."""

ADAPTED = re.compile(r"^base_model(\.model(\.|$)|$)")
"""Prefix of the paths in a model wrapped by PEFT."""

ROLES = {"attention": ("Attention", "Attn"), "norm": ("Norm",), "loss": ("Loss",)}
"""Name patterns of module classes, such as attention, by the kind of their operations."""


class ModuleRanges:
    """Ranges in the trace around the calls of the model and each module, until `remove`.

    Compiled modules keep their graphs: they get one range, without ranges inside. `check` is called
    where a range begins and where it ends.
    """

    def __init__(self, model: nn.Module, check: Callable[[], None] = lambda: None) -> None:
        self._check = check
        adapted = hasattr(model, "peft_config")
        self.roles: dict[str, str] = {}
        """Kinds of modules' own operations by path; empty for any kind."""

        self.unlike = unlike_siblings(model, adapted)
        """Paths of numbered modules that differ in class from their siblings."""

        self._watched = contextlib.ExitStack()
        for name, module in called_modules(model):
            path = plain_path(name, adapted)
            self.roles[path] = self.roles.get(path) or role_of(module)
            self._watched.enter_context(around_module(module, path, self._range))

    def remove(self) -> None:
        """Remove all ranges."""
        self._watched.close()

    @contextlib.contextmanager
    def _range(self, path: str) -> Iterator[None]:
        entered = record_function(MODULE + path)
        with outside_of_modes():
            self._check()
            entered.__enter__()
        try:
            yield
        finally:
            with outside_of_modes():
                self._check()
                entered.__exit__(None, None, None)


def outside_of_modes() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which torch's dispatch modes are off.

    Selective checkpointing, such a mode, would count ranges as operations that it cannot recompute.
    """
    if torch._C._len_torch_dispatch_stack():
        hidden: contextlib.AbstractContextManager[Any] = _disable_current_modes()
        return hidden
    return contextlib.nullcontext()


def mark_phase(phase: str) -> None:
    """Record a mark at the end of a phase of a step."""
    with record_function(f"{PHASE}{phase}"):
        pass


class Preemption:
    """Observer of preemption: the time in which this thread was ready to run, but others ran.

    It writes marks with this time into the trace, or none if the system does not count the time.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._marked = self._read()

    def check(self, least: int = SHORTEST) -> None:
        """Record a mark if preemption took at least `least` nanoseconds since the last mark."""
        if self._marked is None or (waited := self._read()) is None:
            return
        if waited - self._marked >= least:
            with record_function(f"{PREEMPTED}{waited - self._marked}"):
                self._marked = waited

    def close(self) -> None:
        """Stop reading the operating system's counter."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _read(self) -> int | None:
        """Return the nanoseconds of preemption so far, or None if unknown."""
        if self._file is None:
            return None
        try:
            return int(os.pread(self._file, 100, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return None


def plain_path(name: str, adapted: bool = False) -> str:
    """Return a module's path without names of wrappers, so that it is equal in all stacks.

    `adapted` is true for a model wrapped by PEFT.
    """
    path = WRAPPERS.sub("", name).lstrip(".")
    if adapted:
        path = ADAPTED.sub("", path)
    return path or ROOT


def role_of(module: nn.Module) -> str:
    """Return the kind of operations that a module calls, by its class name; empty if unknown."""
    name = type(module).__name__
    return next((role for role, parts in ROLES.items() if any(p in name for p in parts)), "")


def unlike_siblings(model: nn.Module, adapted: bool = False) -> frozenset[str]:
    """Return the paths of numbered modules whose siblings differ in class.

    `adapted` is true for a model wrapped by PEFT.
    """
    classes: dict[str, set[type]] = defaultdict(set)
    numbered: dict[str, str] = {}
    for name, module in model.named_modules():
        path = plain_path(name, adapted)
        parent, _, own = path.rpartition(".")
        if own.isdecimal():
            numbered[path] = parent
            classes[parent].add(type(_unwrapped(module)))
    return frozenset(path for path, parent in numbered.items() if len(classes[parent]) > 1)


def _unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside wrappers of torch.compile, FSDP, checkpointing and PEFT layers."""
    inside = (module._modules.get(name) for name in WRAPPER_NAMES)
    wrapped = next(filter(None, inside), None)
    return module if wrapped is None else _unwrapped(wrapped)


class NsightMarks(WindowRecorder):
    """Recorder that only marks steps and phases, so that Nsight can record them."""

    name = "marks for Nsight"

    def __init__(self, run: Run, quiet_steps: int, active_steps: int) -> None:
        self.steps = quiet_steps + active_steps
        self._run = run
        self._quiet = quiet_steps
        self._taken = 0
        self._capture = ExitStack()
        self._step = ExitStack()
        self._phase = ExitStack()

    def start(self) -> None:
        """Begin the first step. Raises RuntimeError without a CUDA device."""
        if self._run.device.type != "cuda":
            raise RuntimeError("Nsight records CUDA devices, and this run has none")
        self._begin_step()

    def mark(self, phase: PhaseName) -> None:
        """End the range of a phase, and begin the range of the next phase."""
        self._phase.close()
        if self._quiet <= self._taken and phase in FOLLOWING:
            self._phase.enter_context(torch.cuda.nvtx.range(f"phase: {FOLLOWING[phase]}"))

    def end_step(self, batches: Sequence[Batch]) -> None:
        """End the range of a step, and begin the range of the next step."""
        self._phase.close()
        self._step.close()
        self._taken += 1
        if self._taken < self.steps:
            self._begin_step()

    def stop(self) -> None:
        """End all ranges and the capture."""
        self._phase.close()
        self._step.close()
        self._capture.close()

    def result(self) -> Mapping[str, Any]:
        """Return the number of marked steps; the recording is in Nsight's own file."""
        return {"recorder": "nsight", "steps": max(0, self._taken - self._quiet)}

    def _begin_step(self) -> None:
        if self._taken < self._quiet:
            return
        if self._taken == self._quiet:
            self._capture.enter_context(torch.cuda.profiler.profile())
            ranges = around_modules(self._run.unwrapped_model, torch.cuda.nvtx.range)
            self._capture.enter_context(ranges)
        self._step.enter_context(torch.cuda.nvtx.range(f"step {self._taken}"))
        self._phase.enter_context(torch.cuda.nvtx.range("phase: data"))
