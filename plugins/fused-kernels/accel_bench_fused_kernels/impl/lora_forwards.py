"""Fused forward methods of LoRA layers, and of gated MLPs with LoRA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from accel_bench_fused_kernels.impl.lora_functions import Activation, GatedMlp, gated_mlp, project
from accel_bench_fused_kernels.impl.lora_layers import FusedLayer, is_hooked


class Single:
    """Fused forward of a single projection, computed without other projections."""

    def __init__(self, member: FusedLayer) -> None:
        self.member = member

    def forward(self, inputs: torch.Tensor, *others: Any, **keywords: Any) -> torch.Tensor:
        """Return the layer's output. The method replaces the layer's forward.

        The original forward is called if the layer cannot be fused now, or if there are more
        arguments than `inputs`.
        """
        alone = self.member.adapter is None or others or keywords
        if alone or not self.member.ready():
            result: torch.Tensor = self.member.original(inputs, *others, **keywords)
            return result
        return _project((self.member,), inputs)[0]


class InputGroup:
    """Projections that a model calls with the same tensor in succession.

    The first projection's call computes the outputs of all. Each later call returns its
    projection's output if the input and weights are unchanged. Otherwise each projection computes
    alone from then on, since unused outputs would make a group slower.
    """

    def __init__(self, members: Sequence[FusedLayer]) -> None:
        self.members = tuple(members)
        """Layers in the order of their calls."""

        self.apart = False
        """True once the layers were called with different tensors, so that each computes alone."""

        self._waiting: tuple[torch.Tensor, list[int], dict[int, torch.Tensor]] | None = None
        """Last input, versions of input and weights, and outputs not returned yet by index."""

    def forget(self) -> None:
        """Drop the outputs that no call has fetched, so that their memory is freed."""
        self._waiting = None

    def forward_first(self, inputs: torch.Tensor, *others: Any, **keywords: Any) -> torch.Tensor:
        """Compute the outputs of all layers, and return the first layer's output."""
        if self._waiting is not None:
            self._waiting, self.apart = None, True
        alone = self.apart or others or keywords
        if alone or not all([member.ready() for member in self.members]):
            return Single(self.members[0]).forward(inputs, *others, **keywords)
        first, *rest = _project(self.members, inputs)
        self._waiting = inputs, self._versions(inputs), dict(enumerate(rest, 1))
        return first

    def forward_other(
        self, place: int, inputs: torch.Tensor, *others: Any, **keywords: Any
    ) -> torch.Tensor:
        """Return the output of the layer at index `place`, computed by the first layer's call.

        The layer computes alone if the input or weights have changed, or if there are further
        arguments.
        """
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            seen, versions, outputs = waiting
            same = inputs is seen and self._versions(inputs) == versions
            if same and place in outputs and not others and not keywords:
                result = outputs.pop(place)
                self._waiting = waiting if outputs else None
                return result
            self.apart = True
        elif not self.apart:
            # Called before the first: what that leaves behind would be fetched in another pass.
            self.apart = all([member.ready() for member in self.members])
        return Single(self.members[place]).forward(inputs, *others, **keywords)

    def _versions(self, inputs: torch.Tensor) -> list[int]:
        """Return version counters of the input and the weights, which in-place changes increase.

        The list is empty in compiled code, which cannot branch on them.
        """
        if torch.compiler.is_compiling():
            return []
        tensors = (inputs, *_matrices(self.members))
        return [tensor._version for tensor in tensors if tensor is not None]


class LaterLayer:
    """Holder of the `forward` of a projection of an input group that is not the first.

    `forward` is a bound method, since `torch.compile` compiles a method once for all blocks, and a
    partial function once per block.
    """

    def __init__(self, group: InputGroup, place: int) -> None:
        self.group = group
        self.place = place

    def forward(self, inputs: torch.Tensor, *others: Any, **keywords: Any) -> torch.Tensor:
        """Return the layer's output for `inputs`. The method replaces the layer's forward."""
        return self.group.forward_other(self.place, inputs, *others, **keywords)


class Mlp:
    """Fused forward of a gated MLP, which stores its input and the outputs of gate and up."""

    def __init__(
        self, module: nn.Module, members: Sequence[FusedLayer], activation: Activation
    ) -> None:
        self.module = module
        self.members = tuple(members)
        self.activation = activation
        self.inner = (*[member.layer for member in members], module.act_fn)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the MLP's output for `inputs`. The method replaces the MLP's original forward, and
        calls the original if a layer cannot be fused now."""
        unseen = not any([is_hooked(layer) for layer in self.inner])
        if not unseen or not all([member.ready() for member in self.members]):
            result: torch.Tensor = type(self.module).forward(self.module, inputs)
            return result
        gate, up, down = (member.projection(inputs) for member in self.members)
        mlp = GatedMlp(gate, up, down, self.activation)
        return gated_mlp(mlp, inputs, _matrices(self.members))


def _project(members: Sequence[FusedLayer], inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the outputs of several layers for the same `inputs`, with their current weights."""
    projections = [member.projection(inputs) for member in members]
    return project(projections, inputs, _matrices(members))


def _matrices(members: Sequence[FusedLayer]) -> list[Any]:
    return [matrix for member in members for matrix in member.matrices()]
