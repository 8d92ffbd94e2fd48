"""Compile modules in place, and read back what the compiler really did."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from accel_bench.errors import PluginError, did_you_mean

if TYPE_CHECKING:
    from accel_bench_compile import TorchCompileOptions

REASONS = 3
"""How many reasons of a kind the evidence keeps."""


class Compilation:
    """One model's compiled modules, from the call of `compile` until it is undone."""

    def __init__(self, model: nn.Module, options: TorchCompileOptions) -> None:
        """Compile `model` or its blocks in place.

        Raises PluginError for an unknown backend, and for a model without repeated blocks when the
        scope is `block`.
        """
        check_backend(options.backend)
        self.options = options
        self.modules = repeated_blocks(model) if options.scope == "block" else [model]
        clear_counters()
        self._seconds_before = compile_seconds()
        for module in self.modules:
            module.compile(
                backend=options.backend,
                mode=options.mode,
                dynamic=options.dynamic,
                fullgraph=options.fullgraph,
            )

    def evidence(self) -> dict[str, Any]:
        """Return JSON of what was compiled; a count that this torch does not keep is null."""
        return {
            "scope": self.options.scope,
            "backend": self.options.backend,
            "compiled_modules": len(self.modules),
            "module_class": type(self.modules[0]).__name__,
            "compile_seconds": self._seconds(),
            **graph_counts(),
            **recompile_counts(),
            **cache_counts(),
        }

    def undo(self) -> None:
        """Give the modules their plain call back and forget all compiled code."""
        for module in self.modules:
            module._compiled_call_impl = None
        torch.compiler.reset()

    def _seconds(self) -> float | None:
        """Wall-clock seconds of tracing and compiling, forward and backward, since `compile`."""
        now = compile_seconds()
        if now is None or self._seconds_before is None:
            return None
        return now - self._seconds_before


def check_backend(name: str) -> None:
    """Raise PluginError when torch knows no backend of that name."""
    known = torch.compiler.list_backends(exclude_tags=())
    if name not in known:
        raise PluginError(f"torch-compile: unknown backend {name!r}{did_you_mean(name, known)}")


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the model's decoder blocks: its longest list of modules of one class.

    Lists inside of a list, such as the experts of a block, do not count, however long.
    """
    uniform = [
        blocks for blocks in _outer_lists(model) if len({type(block) for block in blocks}) == 1
    ]
    if not uniform:
        raise PluginError(
            f"torch-compile: {type(model).__name__} has no list of blocks of one class; "
            "use `scope: model` to compile it whole"
        )
    return max(uniform, key=len)


def _outer_lists(module: nn.Module) -> list[list[nn.Module]]:
    """Contents of all module lists that are not inside of another one."""
    if isinstance(module, nn.ModuleList):
        return [list(module)]
    return [found for child in module.children() for found in _outer_lists(child)]


# The rest reads torch's own counters. They are not public, so a part is null where it is gone.


def clear_counters() -> None:
    """Forget what was counted before; a torch without these counters has nothing to forget."""
    try:
        from torch._dynamo import utils

        utils.counters.clear()
        utils.clear_compilation_metrics()
    except (ImportError, AttributeError):
        return


def compile_seconds() -> float | None:
    """Seconds that this process has spent compiling so far."""
    try:
        from torch._dynamo.utils import calculate_time_spent

        return float(calculate_time_spent()["total_wall_time"])
    except (ImportError, AttributeError, KeyError):
        return None


def graph_counts() -> dict[str, Any]:
    """Graphs, breaks between them, and functions that were left to run as they are.

    Torch files breaks under two headings; branching on a tensor and the recompile limit, say, are
    under `unimplemented`.
    """
    frames, breaks, others = map(_counter, ("frames", "graph_break", "unimplemented"))
    if frames is None or breaks is None or others is None:
        return {"graphs": None, "graph_breaks": None, "uncompiled_frames": None}
    breaks.update(others)
    return {
        "graphs": (_counter("stats") or Counter())["unique_graphs"],
        "graph_breaks": breaks.total(),
        "graph_break_reasons": _first_lines(breaks),
        "uncompiled_frames": frames["total"] - frames["ok"],
    }


def recompile_counts() -> dict[str, Any]:
    """Compilations of a function that had been compiled before, with what had changed."""
    try:
        from torch._dynamo.utils import get_compilation_metrics

        reasons = [entry.recompile_reason for entry in get_compilation_metrics()]
    except (ImportError, AttributeError):
        return {"recompiles": None}
    found = [reason for reason in reasons if reason]
    return {"recompiles": len(found), "recompile_reasons": _first_lines(found)}


def cache_counts() -> dict[str, Any]:
    """Graphs that inductor took from its cache on disk, and those that it compiled."""
    counts = _counter("inductor")
    if counts is None:
        return {"graph_cache_hits": None, "graph_cache_misses": None}
    return {
        "graph_cache_hits": counts["fxgraph_cache_hit"],
        "graph_cache_misses": counts["fxgraph_cache_miss"],
    }


def _counter(name: str) -> Counter[str] | None:
    """One of torch's counters, empty when nothing was counted, or None when there are none."""
    try:
        from torch._dynamo.utils import counters

        return Counter(counters.get(name, {}))
    except (ImportError, AttributeError):
        return None


def _first_lines(reasons: Counter[str] | list[str]) -> list[str]:
    """The first line of each of the first few reasons; the rest of one is a stack trace."""
    return [reason.strip().splitlines()[0] for reason in list(reasons)[:REASONS]]
