"""Fused equivalents of the modules and functions of micro-benchmarks."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from accel_bench_fused_kernels.impl.replacements import ABSENT, Replacements

MEAN = {"ignore_index": -100, "reduction": "mean"}
"""Arguments of the mean cross-entropy that benchmarks compute."""


def by_library(library: str | None, operation: str, fn: Any) -> Callable[..., Any]:
    """Return a kernel of the library `liger` or `torch` for a benchmark operation.

    `fn` is the benchmark's own function or module, whose weights the kernel uses.
    """
    kernels: Any
    if library == "torch":
        from accel_bench_fused_kernels.impl import torch_kernels as kernels
    else:
        from accel_bench_fused_kernels.impl import liger_kernels as kernels
    if operation == "rms_norm":
        return _method(kernels.norm_forward(0.0, False, False), fn)
    if operation == "swiglu_mlp":
        return _method(kernels.MLPS["silu"], fn)
    if operation == "geglu_mlp":
        return _method(kernels.MLPS["gelu_tanh"], fn)
    if operation == "rotary":
        rotate: Callable[..., Any] = kernels.rotary(fn)
        return rotate
    if operation == "cross_entropy":
        return lambda logits, target: kernels.cross_entropy(logits, target, **MEAN)
    return lambda hidden, target: kernels.linear_cross_entropy(
        hidden, fn.head, target, softcap=None, **MEAN
    )


def by_liger(operation: str, fn: Any) -> Callable[..., Any]:
    """Return Liger's kernel for a benchmark operation. `fn` is the benchmark's own function or
    module, whose weights the kernel uses."""
    if operation == "causal_lm":
        return with_liger_model(fn)
    if operation == "layer_norm":
        from liger_kernel.transformers.functional import liger_layer_norm

        return lambda x: liger_layer_norm(x, fn.weight, fn.bias, fn.eps)
    return by_library("liger", operation, fn)


def with_fused_lora(fn: nn.Module) -> Callable[..., Any]:
    """Return a copy of a module, with the same weights and with fused LoRA layers."""
    from accel_bench_fused_kernels.impl.lora import fuse_lora

    twin = twin_of(fn)
    fuse_lora(twin)
    return twin


def with_fused_model(fn: nn.Module, device: str) -> Callable[..., Any]:
    """Return a copy of a model, with the same weights and with all default kernels installed.

    `device` is the device type, by which the kernels' libraries are chosen.
    """
    from accel_bench_fused_kernels.impl import FusedModel
    from accel_bench_fused_kernels.plugin import FusedKernels, FusedKernelsOptions

    plugin = FusedKernels(FusedKernelsOptions(), "fused-kernels")
    twin = twin_of(fn)
    fused = FusedModel(twin, plugin.options, plugin.libraries(device, os.environ))
    fused.install()
    return Within(twin, fused.replacements)


def with_liger_model(fn: nn.Module) -> Callable[..., Any]:
    """Return a copy of a model, with the same weights and patched by Liger with its defaults."""
    from accel_bench_fused_kernels.impl.liger_patch import LigerPatch

    twin = twin_of(fn)
    patch = LigerPatch(twin)
    patch.apply({})
    return Within(twin, patch.replacements)


def twin_of(module: nn.Module) -> nn.Module:
    """Return a copy of a module, with the same parameter and buffer objects."""
    shared = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(tensor): tensor for tensor in shared})


class Within(nn.Module):
    """Copy of a model that replaces functions of Python modules only during its calls.

    Permanent replacements would affect all models of the process, such as the float64 reference.
    """

    def __init__(self, twin: nn.Module, replacements: Replacements) -> None:
        super().__init__()
        self.twin = twin
        self._shared = [
            (owner, name, before, getattr(owner, name))
            for owner, name, before in replacements.changes
            if not isinstance(owner, nn.Module)
        ]
        self._leave()

    def forward(self, *args: Any, **keywords: Any) -> Any:
        """Call the model with the replacements in place."""
        for owner, name, _, ours in self._shared:
            setattr(owner, name, ours)
        try:
            return self.twin(*args, **keywords)
        finally:
            self._leave()

    def _leave(self) -> None:
        for owner, name, before, _ in reversed(self._shared):
            if before is ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def _method(forward: Callable[..., Any], module: nn.Module) -> Callable[..., Any]:
    """Return a function of one tensor that calls a forward method `forward` on a module, without
    changing the module."""

    def call(x: torch.Tensor) -> Any:
        return forward(module, x)

    return call
