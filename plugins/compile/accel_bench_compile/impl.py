"""Compilation of modules in place, with evidence of the compiler's work."""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from accel_bench import read_compilation, reset_compiler
from accel_bench.errors import PluginError, did_you_mean
from accel_bench.modeling.blocks import block_lists
from accel_bench_compile.cudagraphs import StepMarker
from accel_bench_compile.thunder_backend import make_thunder, thunder_parts

if TYPE_CHECKING:
    from accel_bench_compile import TorchCompileOptions


LIMIT_OF_A_BLOCK = 8
"""Limit of compilations for each block that fills a key-value cache: torch's default limit."""


class CompiledModules:
    """The compiled modules of one model, until `undo` restores the model."""

    def __init__(
        self, model: nn.Module, options: TorchCompileOptions, caches: bool = False
    ) -> None:
        """Compile `model` or its blocks in place.

        With `caches` each block is compiled for its own index in a key-value cache. Then each block
        has a limit of compilations of its own.

        Raises PluginError for an unknown backend or option, for a backend that cannot be imported,
        and for a model without repeated blocks if the scope is `block`.
        """
        self.options = options
        self.modules = repeated_blocks(model) if options.scope == "block" else [model]
        settings = compile_settings(options)
        if caches and options.recompile_limit is None and _takes_limit():
            settings["recompile_limit"] = LIMIT_OF_A_BLOCK * len(self.modules)
        self._limits = contextlib.ExitStack()
        if (limit := settings.get("recompile_limit")) is not None:
            self._limits.enter_context(_accumulated_limit(limit))
        self._backend = settings["backend"]
        self._marker: StepMarker | None = None
        reset_compiler()
        self._seconds_before: float | None = read_compilation()["compile_seconds"]
        for module in self.modules:
            _compile(module, settings)
        if options.asks_cudagraphs:
            self._marker = StepMarker(model)

    def evidence(self) -> dict[str, Any]:
        """Return JSON evidence: compiled modules, graphs, graph breaks, recompilations and seconds.

        Counts unknown to this torch are null.
        """
        counts = read_compilation()
        thunder = self.options.backend == "thunder"
        return {
            "summary": f"compiled modules {len(self.modules)}, graphs {counts['graphs']}, "
            f"graph breaks {counts['graph_breaks']}, recompilations {counts['recompiles']}"
            + (f", left uncompiled {left}" if (left := counts["uncompiled_frames"]) else ""),
            "scope": self.options.scope,
            "backend": self.options.backend,
            "compiled_modules": len(self.modules),
            "module_class": type(self.modules[0]).__name__,
            **counts,
            **cache_counts(),
            "compile_seconds": self._since_then(counts["compile_seconds"]),
            "thunder": thunder_parts(self._backend) if thunder else None,
        }

    def undo(self) -> None:
        """Restore the model's uncompiled calls, and reset the compiler."""
        if self._marker is not None:
            self._marker.remove()
        for module in self.modules:
            module._compiled_call_impl = None
        self._limits.close()
        torch.compiler.reset()

    def _since_then(self, now: float | None) -> float | None:
        """Return the seconds spent compiling since `__init__`; None if unknown.

        `now` is the process's total of seconds spent compiling.
        """
        if now is None or self._seconds_before is None:
            return None
        return now - self._seconds_before


def compile_settings(options: TorchCompileOptions) -> dict[str, Any]:
    """Return the arguments of `torch.compile` for these options.

    Raises PluginError for a backend, executor or inductor setting that is unknown here.
    """
    settings: dict[str, Any] = {"dynamic": options.dynamic, "fullgraph": options.fullgraph}
    if options.backend == "thunder":
        return {**settings, "backend": make_thunder(options.executors), **_recompile_limit(options)}
    check_backend(options.backend)
    if options.mode is not None:
        settings["mode"] = options.mode
    if options.inductor_options:
        check_inductor_options(options.inductor_options)
        settings["options"] = dict(options.inductor_options)
    return {**settings, "backend": options.backend, **_recompile_limit(options)}


def check_backend(name: str) -> None:
    """Raise PluginError if torch has no backend called `name`."""
    known = [*torch.compiler.list_backends(exclude_tags=()), "thunder"]
    if name not in known:
        raise PluginError(f"torch-compile: unknown backend {name!r}{did_you_mean(name, known)}")


def check_inductor_options(options: dict[str, Any]) -> None:
    """Raise PluginError if `options` names a setting that inductor does not have."""
    known = torch._inductor.list_options()
    for name in options:
        if name not in known:
            near = did_you_mean(name, known)
            listed = near if near.startswith("; did") else "; torch._inductor.config has them all"
            raise PluginError(f"torch-compile: inductor_options has no {name!r}{listed}")


def cache_counts() -> dict[str, int]:
    """Return counts of inductor's cache bypasses, and of autograd's hits, misses and bypasses."""
    inductor = torch._dynamo.utils.counters["inductor"]
    autograd = torch._dynamo.utils.counters["aot_autograd"]
    return {
        "graph_cache_bypasses": inductor["fxgraph_cache_bypass"],
        "autograd_cache_hits": autograd["autograd_cache_hit"],
        "autograd_cache_misses": autograd["autograd_cache_miss"],
        "autograd_cache_bypasses": autograd["autograd_cache_bypass"],
    }


def _compile(module: nn.Module, settings: dict[str, Any]) -> None:
    """Compile one module in place with the arguments `settings` of `torch.compile`.

    Raises PluginError if an inductor option has a value of the wrong type.
    """
    try:
        module.compile(**settings)
    except RuntimeError as error:
        raise PluginError(f"torch-compile: {error}") from error


def _recompile_limit(options: TorchCompileOptions) -> dict[str, int]:
    """Return the limit of compilations as an argument of `torch.compile`; empty if none is set.

    Raises PluginError if this torch does not take a limit.
    """
    if options.recompile_limit is None:
        return {}
    if not _takes_limit():
        raise PluginError(
            f"torch-compile: torch {torch.__version__} takes no recompile_limit; 2.13 does"
        )
    return {"recompile_limit": options.recompile_limit}


def _accumulated_limit(limit: int) -> contextlib.AbstractContextManager[None]:
    """Return a context that raises torch's limit of compilations of a code object to `limit`."""
    config = torch._dynamo.config
    most = max(limit, config.accumulated_recompile_limit)
    patched: contextlib.AbstractContextManager[None] = config.patch(
        accumulated_recompile_limit=most
    )
    return patched


def _takes_limit() -> bool:
    return "recompile_limit" in inspect.signature(torch.compile).parameters


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the model's repeated blocks in one list.

    Raises PluginError if the model has none, or if a list of blocks mixes classes.
    """
    lists = block_lists(model).values()
    blocks = [block for stack in lists for block in stack]
    if not blocks or any(len({type(block) for block in stack}) != 1 for stack in lists):
        raise PluginError(
            f"torch-compile: {type(model).__name__} has no list of blocks of one class; "
            "use `scope: model` to compile it whole"
        )
    return blocks
