"""Fusion of LoRA layers, by forward methods bound to the module instances that PEFT adapted.

Parameters and their names are unchanged. A single projection becomes one autograd function.
Projections with the same input share one function, as do the projections of a gated MLP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from pydantic import JsonValue
from torch import nn
from torch.nn import functional

from accel_bench.modeling.checkpointing import RECOMPUTES_LAST_MATMUL
from accel_bench_fused_kernels.impl.lora_forwards import InputGroup, LaterLayer, Mlp, Single
from accel_bench_fused_kernels.impl.lora_functions import Activation
from accel_bench_fused_kernels.impl.lora_layers import FusedLayer, read_frozen, read_layer

SAME_INPUT = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of sibling modules that a model calls with the same tensor, in this order."""

GATED = ("gate_proj", "up_proj", "down_proj")
"""Names of the modules of a gated MLP."""

ATEN: Any = torch.ops.aten

SILU = Activation(functional.silu, ATEN.silu_backward)
GELUS = {
    how: Activation(
        partial(functional.gelu, approximate=how), partial(ATEN.gelu_backward, approximate=how)
    )
    for how in ("none", "tanh")
}
"""Fused GELU activations, by torch's name of the approximation."""


class Fusion:
    """Record of the fused LoRA layers of one model, by which the fusion is reported and undone."""

    def __init__(self) -> None:
        self._bound: list[nn.Module] = []
        self._reasons: Counter[str] = Counter()
        self._groups: list[InputGroup] = []
        self._within_mlps = 0
        self._members: dict[str, FusedLayer] = {}
        self._mlps: list[str] = []

    @property
    def fused_mlps(self) -> frozenset[str]:
        """Names of the gated MLPs that are each fused into one function."""
        return frozenset(self._mlps)

    def undo(self) -> None:
        """Remove all bound forward methods, which restores PEFT's model."""
        for module in self._bound:
            del module.forward
            vars(module).pop(RECOMPUTES_LAST_MATMUL, None)
        for group in self._groups:
            group.forget()
        self._bound.clear()

    def evidence(self) -> dict[str, JsonValue]:
        """Return JSON evidence with counts of fused and skipped layers, groups and MLPs."""
        members = self._members.values()
        adapted = [member for member in members if member.adapter is not None]
        ends = Counter(member.name.rpartition(".")[2] for member in adapted)
        return {
            "adapted_layers": dict(ends),
            "frozen_layers_beside": len(members) - len(adapted),
            "bases": dict(Counter(member.base.kind for member in members)),
            "gated_mlps": len(self._mlps),
            "groups_of_one_input": len(self._groups) - self._within_mlps,
            "groups_computed_apart": sum(group.apart for group in self._groups),
            "left_alone": dict(self._reasons),
        }

    def _fuse(self, model: nn.Module) -> None:
        """Find a model's adapted layers, and bind their fused forward methods."""
        adapted = self._read(model)
        for name, module in model.named_modules():
            children = {f"{name}.{own}" if name else own for own, _ in module.named_children()}
            if children & adapted.keys():
                self._fuse_children(name, module, adapted)
        for member in adapted.values():
            self._bind(member, Single(member).forward)

    def _read(self, model: nn.Module) -> dict[str, FusedLayer]:
        """Return the adapted layers that can be fused, by name; count the others by reason."""
        layers: dict[str, FusedLayer] = {}
        for name, module in model.named_modules():
            if isinstance(module, LoraLayer):
                read = read_layer(name, module)
                if isinstance(read, FusedLayer):
                    layers[name] = read
                else:
                    self._reasons[read] += 1
        return layers

    def _fuse_children(self, name: str, parent: nn.Module, adapted: dict[str, FusedLayer]) -> None:
        """Fuse children of `parent` that have the same input, and remove them from `adapted`.

        `name` is the parent's name in the model. `adapted` has the layers that are not fused yet.
        """
        whole = self._gated_mlp(name, parent, adapted)
        for names in SAME_INPUT:
            members = _members(name, parent, names, adapted)
            if len(members) < 2 or all(member.adapter is None for member in members):
                continue
            group = InputGroup(members)
            self._groups.append(group)
            self._within_mlps += whole
            for place, member in enumerate(members):
                self._bind(
                    member, LaterLayer(group, place).forward if place else group.forward_first
                )
                adapted.pop(member.name, None)

    def _gated_mlp(self, name: str, parent: nn.Module, adapted: dict[str, FusedLayer]) -> bool:
        """Fuse `parent` if it is a gated MLP with an adapter; return whether it was fused.

        `name` is the parent's name in the model, and `adapted` has the adapted layers by name.
        """
        members = _members(name, parent, GATED, adapted)
        if len(members) < len(GATED) or all(member.adapter is None for member in members):
            return False
        activation = find_activation(getattr(parent, "act_fn", None))
        if activation is None or "forward" in vars(parent) or not is_gated(type(parent)):
            return False
        parent.forward = Mlp(parent, members, activation).forward
        # It has kept all that it needs when its last product begins, so that checkpointing breaks
        # off there; core counts FLOPs by this.
        setattr(parent, RECOMPUTES_LAST_MATMUL, False)
        self._bound.append(parent)
        self._mlps.append(name)
        self._members |= {member.name: member for member in members}
        return True

    def _bind(self, member: FusedLayer, forward: Callable[..., torch.Tensor]) -> None:
        member.layer.forward = forward
        self._bound.append(member.layer)
        self._members[member.name] = member


def fuse_lora(model: nn.Module) -> Fusion:
    """Fuse a model's LoRA layers in place, and return a record of the fused layers.

    Layers that do not compute plain LoRA are left out. Frozen linear layers of torch, GPTQModel,
    bitsandbytes and torchao are supported.
    """
    fusion = Fusion()
    fusion._fuse(model)
    return fusion


def find_activation(module: Any) -> Activation | None:
    """Return the function and derivative of an activation module, or None if it is neither SiLU nor
    GELU."""
    if type(module).__name__ in ("SiLU", "SiLUActivation"):
        return SILU
    if isinstance(module, nn.GELU):
        return GELUS.get(module.approximate)
    function = getattr(module, "act", None)
    if isinstance(function, partial) and function.func is functional.gelu and not function.args:
        return GELUS.get(function.keywords.get("approximate", "none"))
    return GELUS["none"] if function is functional.gelu else None


def is_gated(kind: type[nn.Module]) -> bool:
    """Return whether the forward of a module class computes `down_proj(act_fn(gate_proj(x)) *
    up_proj(x))`.

    The forward is traced with symbolic terms, so that its computation is checked.
    """
    given = _Term("x")
    gate, up = _Term("act_fn", _Term("gate_proj", given)), _Term("up_proj", given)
    try:
        traced = kind.forward(_Traced(), given)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return False
    return traced in (_Term("down_proj", gate * up), _Term("down_proj", up * gate))


class _Term(tuple[Any, ...]):
    """Symbolic result of a computation, as a nested tuple of names."""

    def __new__(cls, *parts: Any) -> _Term:
        return super().__new__(cls, parts)

    def __mul__(self, other: Any) -> _Term:
        return _Term("*", self, other)


class _Traced:
    """Stand-in for a gated MLP whose forward is traced, with the attributes of such an MLP."""

    def gate_proj(self, value: Any) -> _Term:
        return _Term("gate_proj", value)

    def up_proj(self, value: Any) -> _Term:
        return _Term("up_proj", value)

    def act_fn(self, value: Any) -> _Term:
        return _Term("act_fn", value)

    def down_proj(self, value: Any) -> _Term:
        return _Term("down_proj", value)


def _members(
    name: str, parent: nn.Module, names: Sequence[str], adapted: dict[str, FusedLayer]
) -> list[FusedLayer]:
    """Return the children of `parent` that can be fused, of those in `names`, in this order.

    `name` is the parent's name in the model. `adapted` has the adapted layers by name; children
    without an adapter can be fused too.
    """
    members = []
    for own in names:
        child, path = parent._modules.get(own), f"{name}.{own}" if name else own
        if path in adapted:
            members.append(adapted[path])
        elif child is not None and not isinstance(child, LoraLayer):
            frozen = read_frozen(path, child)
            members += [frozen] if frozen else []
    return members
