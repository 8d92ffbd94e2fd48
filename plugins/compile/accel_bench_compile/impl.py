"""Compile modules in place, and read back what the compiler really did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from accel_bench import forget_compilation, read_compilation
from accel_bench.errors import PluginError, did_you_mean

if TYPE_CHECKING:
    from accel_bench_compile import TorchCompileOptions


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
        forget_compilation()
        self._seconds_before = read_compilation()["compile_seconds"]
        for module in self.modules:
            module.compile(
                backend=options.backend,
                mode=options.mode,
                dynamic=options.dynamic,
                fullgraph=options.fullgraph,
            )

    def evidence(self) -> dict[str, Any]:
        """Return JSON of what was compiled; a count that this torch does not keep is null."""
        counts = read_compilation()
        return {
            "scope": self.options.scope,
            "backend": self.options.backend,
            "compiled_modules": len(self.modules),
            "module_class": type(self.modules[0]).__name__,
            **counts,
            "compile_seconds": self._since_then(counts["compile_seconds"]),
        }

    def undo(self) -> None:
        """Give the modules their plain call back and forget all compiled code."""
        for module in self.modules:
            module._compiled_call_impl = None
        torch.compiler.reset()

    def _since_then(self, now: float | None) -> float | None:
        """Wall-clock seconds of tracing and compiling, forward and backward, since `compile`."""
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
