"""Layers adapted by PEFT, and frozen layers next to them, read as projections to fuse."""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import nn

from accel_bench_fused_kernels.impl.lora_bases import Base, compute_dtype, find_base
from accel_bench_fused_kernels.impl.lora_products import BaseProduct

PLAIN = frozenset({"Linear", "Linear4bit", "Linear8bitLt", "GPTQLoraLinear", "TorchaoLoraLinear"})
"""Names of PEFT's classes of layers that compute plain LoRA."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Attributes of a module that hold its hooks."""


class FusedLayer:
    """Layer of a model that can be fused: a frozen base layer with at most one adapter of PEFT."""

    def __init__(self, name: str, layer: nn.Module, base: Base, adapter: str | None) -> None:
        self.name = name
        """The layer's name in the model."""

        self.layer: Any = layer
        """Module that the model calls: PEFT's layer, or the base layer itself."""

        self.base = base
        """Base layer, which multiplies with frozen weights."""

        self.adapter = adapter
        """Name of the adapter, or None without an adapter."""

        self.inner: tuple[nn.Module, ...] = ()
        """Submodules of PEFT's layer that a fused forward does not call."""

        if adapter is not None:
            parts = self.layer.lora_dropout, self.layer.lora_A, self.layer.lora_B
            self.inner = (self.layer.base_layer, *[part[adapter] for part in parts])

    def ready(self) -> bool:
        """Return whether the layer can be fused now: gradients are enabled, the adapter is active
        and unmerged, and no submodule has hooks."""
        if not torch.is_grad_enabled() or not self.base.readable:
            return False
        layer = self.layer
        if self.adapter is not None:
            if layer.disable_adapters or layer.merged or not layer.cast_input_dtype_enabled:
                return False
            if len(layer.active_adapters) != 1 or layer.active_adapters[0] != self.adapter:
                return False
        return not any(map(is_hooked, self.inner))

    def original(self, *inputs: Any, **keywords: Any) -> Any:
        """Call the original forward of the layer's class, and return its output."""
        return type(self.layer).forward(self.layer, *inputs, **keywords)

    def matrices(self) -> tuple[Any, Any]:
        """Return the adapter's matrices A and B, or None for both without an adapter."""
        if self.adapter is None:
            return None, None
        layer = self.layer
        return layer.lora_A[self.adapter].weight, layer.lora_B[self.adapter].weight

    def projection(self, inputs: torch.Tensor) -> BaseProduct:
        """Return the layer's projection for a call with `inputs`, in the layer's current state."""
        base = self.base
        backward_dtype = base.backward_dtype(inputs.dtype)
        if self.adapter is None:
            return BaseProduct(base.dequantize, base.multiply, base.features, backward_dtype)
        dropout = self.layer.lora_dropout[self.adapter]
        stored = self.layer.lora_A[self.adapter].weight.dtype
        under_autocast = torch.is_autocast_enabled(inputs.device.type)
        # The one that PEFT's layers for bitsandbytes ask for is that of GPUs.
        kept = not base.casts_under_autocast and torch.is_autocast_enabled("cuda")
        return BaseProduct(
            base.dequantize,
            base.multiply,
            base.features,
            backward_dtype,
            scaling=self.layer.scaling[self.adapter],
            dropout=dropout.p if isinstance(dropout, nn.Dropout) and dropout.training else 0.0,
            dropout_dtype=inputs.dtype if kept else stored,
            adapter_dtype=compute_dtype(inputs) if under_autocast else stored,
        )


def read_layer(name: str, layer: Any) -> FusedLayer | str:
    """Return PEFT's layer, called `name` in the model, as a layer to fuse, or a short reason why it
    cannot be fused."""
    kind = type(layer).__name__
    if kind not in PLAIN or not type(layer).__module__.startswith("peft.tuners.lora"):
        return f"the adapter is a {kind}"
    reason = _why_not_plain(layer)
    return reason or _member(name, layer, layer.get_base_layer(), layer.active_adapters[0])


def read_frozen(name: str, layer: nn.Module) -> FusedLayer | None:
    """Return a layer without an adapter, called `name` in the model, as a layer to fuse, or None if
    it cannot be fused."""
    member = _member(name, layer, layer, None)
    return member if isinstance(member, FusedLayer) else None


def is_hooked(module: nn.Module) -> bool:
    """Return whether a module has hooks on its inputs, outputs or gradients."""
    own = vars(module)
    return any(own[name] for name in HOOKS)


def _member(name: str, layer: nn.Module, base: nn.Module, adapter: str | None) -> FusedLayer | str:
    """Return a layer to fuse if its `base` is known, frozen and unpatched, or else the reason.

    `adapter` is the name of its adapter, or None.
    """
    if any("forward" in vars(module) for module in layer.modules()):
        return "its forward is replaced already"
    if any(parameter.requires_grad for parameter in base.parameters()):
        return "the base trains"
    read = find_base(base)
    return FusedLayer(name, layer, read, adapter) if isinstance(read, Base) else read


def _why_not_plain(layer: LoraLayer) -> str | None:
    """Return the reason why PEFT's layer does not compute plain LoRA, or None if it does."""
    active = [name for name in layer.active_adapters if name in layer.lora_A]
    if layer.disable_adapters or layer.merged:
        return "its adapter is merged" if layer.merged else "its adapters are disabled"
    if len(active) != 1 or len(layer.active_adapters) != 1:
        return "it has several active adapters" if active else "it has no active adapter"
    (name,) = active
    if name in layer.lora_variant:
        return f"its adapter is of the form {type(layer.lora_variant[name]).__name__}"
    matrices = layer.lora_A[name], layer.lora_B[name]
    if any(type(matrix) is not nn.Linear or matrix.bias is not None for matrix in matrices):
        return "its adapter has a bias or is not of linear layers"
    known = isinstance(layer.lora_dropout[name], nn.Dropout | nn.Identity)
    return None if known else "its dropout is not torch's"
