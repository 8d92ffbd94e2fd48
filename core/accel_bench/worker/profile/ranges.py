"""Name what the host does in a trace: the forward pass of each module, and the ends of phases."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.profiler import record_function

from accel_bench.analysis.profiles.spans import MODULE, PHASE, PREEMPTED

SHORTEST = 200_000
"""Nanoseconds of other work that are marked; less is added to the next mark."""


class ModuleRanges:
    """Ranges around the forward pass of each module, until they are removed.

    Compiled modules keep their graphs: within them there are no ranges, but one around them where
    that is not compiled itself. `check` is called at their edges.
    """

    def __init__(self, model: nn.Module, check: Callable[[], None] = lambda: None) -> None:
        self._check = check
        self._open: list[Any] = []
        self._handles = [
            handle for name, module in _eager(model) for handle in self._watch(name, module)
        ]

    def remove(self) -> None:
        """Take all of them away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _watch(self, name: str, module: nn.Module) -> Iterator[Any]:
        def enter(module: nn.Module, arguments: Any) -> None:
            self._check()
            entered = record_function(f"{MODULE}{name}")
            entered.__enter__()
            self._open.append(entered)

        def leave(module: nn.Module, arguments: Any, output: Any) -> None:
            self._check()
            if self._open:
                self._open.pop().__exit__(None, None, None)

        yield module.register_forward_pre_hook(enter, prepend=True)
        yield module.register_forward_hook(leave, always_call=True)


def mark_phase(phase: str) -> None:
    """Leave a mark at the end of a phase of a step."""
    with record_function(f"{PHASE}{phase}"):
        pass


class Preemption:
    """Leaves marks with the time for which this thread was ready, and other work ran in its place.

    Where the kernel does not count that, there are none.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._marked = self._read()

    def check(self, least: int = SHORTEST) -> None:
        """Leave a mark where other work took at least so many nanoseconds since the last one."""
        if self._marked is None or (waited := self._read()) is None:
            return
        if waited - self._marked >= least:
            with record_function(f"{PREEMPTED}{waited - self._marked}"):
                self._marked = waited

    def close(self) -> None:
        """Read no more."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _read(self) -> int | None:
        """Return the nanoseconds so far."""
        if self._file is None:
            return None
        try:
            return int(os.pread(self._file, 100, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return None


def _eager(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield modules that are not compiled, and are not in one that is."""
    compiled: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if name.startswith(compiled) and compiled:
            continue
        if _is_compiled(module):
            compiled += (f"{name}." if name else "",)
            continue
        if name:
            yield name, module


def _is_compiled(module: nn.Module) -> bool:
    return (
        getattr(module, "_compiled_call_impl", None) is not None
        or isinstance(module, torch._dynamo.OptimizedModule)
        or hasattr(vars(module).get("forward"), "_torchdynamo_orig_callable")
    )
