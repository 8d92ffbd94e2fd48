"""Name what the host does in a trace: the forward pass of each module, and the ends of phases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.profiler import record_function

from accel_bench.analysis.profiles.spans import MODULE, PHASE, PREEMPTED


class ModuleRanges:
    """Ranges around the forward pass of each module, until they are removed.

    Compiled modules keep their graphs: within them there are no ranges, but one around them where
    that is not compiled itself.
    """

    def __init__(self, model: nn.Module) -> None:
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
            entered = record_function(f"{MODULE}{name}")
            entered.__enter__()
            self._open.append(entered)

        def leave(module: nn.Module, arguments: Any, output: Any) -> None:
            if self._open:
                self._open.pop().__exit__(None, None, None)

        yield module.register_forward_pre_hook(enter, prepend=True)
        yield module.register_forward_hook(leave, always_call=True)


def mark_phase(phase: str) -> None:
    """Leave a mark at the end of a phase of a step."""
    with record_function(f"{PHASE}{phase}"):
        pass


def mark_preempted(nanoseconds: int) -> None:
    """Leave a mark at the end of a step, with what other work took from it."""
    with record_function(f"{PREEMPTED}{nanoseconds}"):
        pass


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
