"""Forwards that stand for those of layers and gated MLPs while these are fused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from accel_bench_fused_kernels.impl.lora_functions import Activation, GatedMlp, gated_mlp, project
from accel_bench_fused_kernels.impl.lora_layers import Member, is_hooked


class Single:
    """One projection that shares its input with no other, as far as is known."""

    def __init__(self, member: Member) -> None:
        self.member = member

    def forward(self, inputs: torch.Tensor, *others: Any, **keywords: Any) -> torch.Tensor:
        """Stands for the layer's forward."""
        alone = self.member.adapter is None or others or keywords
        if alone or not self.member.ready():
            answer: torch.Tensor = self.member.original(inputs, *others, **keywords)
            return answer
        return _project((self.member,), inputs)[0]


class Group:
    """Projections that are called with the same tensor one after the other.

    The first call computes all of them and hands the others theirs when they are called, before the
    forward of the module that holds them ends. Whenever that turns out otherwise, each is computed
    by itself from then on: a group that computes what nobody fetches would be slower than none.
    """

    def __init__(self, parent: nn.Module, members: Sequence[Member]) -> None:
        self.members = tuple(members)
        """In the order in which they are called."""

        self.apart = False
        """Whether they have turned out to see different tensors."""

        self._waiting: tuple[torch.Tensor, int, dict[int, torch.Tensor]] | None = None
        """The input with its version, and what was computed from it and not fetched yet."""

        self._handle = parent.register_forward_hook(self._forget, always_call=True)

    def remove(self) -> None:
        """Look at the module that holds the layers no more."""
        self._handle.remove()
        self._waiting = None

    def _forget(self, *_: Any) -> None:
        """Drop what nobody fetched: in the next call it would be of other weights."""
        if self._waiting is not None:
            self._waiting, self.apart = None, True

    def forward_first(self, inputs: torch.Tensor, *others: Any, **keywords: Any) -> torch.Tensor:
        """Stands for the forward of the first layer."""
        self._forget()
        alone = self.apart or others or keywords
        if alone or not all([member.ready() for member in self.members]):
            return Single(self.members[0]).forward(inputs, *others, **keywords)
        first, *rest = _project(self.members, inputs)
        self._waiting = inputs, _version(inputs), dict(enumerate(rest, 1))
        return first

    def forward_other(
        self, place: int, inputs: torch.Tensor, *others: Any, **keywords: Any
    ) -> torch.Tensor:
        """Stands for the forward of another layer."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            seen, version, answers = waiting
            same = inputs is seen and _version(inputs) == version
            if same and place in answers and not others and not keywords:
                answer = answers.pop(place)
                self._waiting = waiting if answers else None
                return answer
            self.apart = True
        return Single(self.members[place]).forward(inputs, *others, **keywords)


class Mlp:
    """A gated MLP that is computed whole, by one function that keeps its input and its halves."""

    def __init__(
        self, module: nn.Module, members: Sequence[Member], activation: Activation
    ) -> None:
        self.module = module
        self.members = tuple(members)
        self.activation = activation
        self.inner = (*[member.layer for member in members], module.act_fn)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Stands for the MLP's forward."""
        unseen = not any([is_hooked(layer) for layer in self.inner])
        if not unseen or not all([member.ready() for member in self.members]):
            answer: torch.Tensor = type(self.module).forward(self.module, inputs)
            return answer
        gate, up, down = (member.projection(inputs) for member in self.members)
        mlp = GatedMlp(gate, up, down, self.activation)
        return gated_mlp(mlp, inputs, _matrices(self.members))


def _version(inputs: torch.Tensor) -> int:
    """How often a tensor was changed in place; compiled code cannot branch on that."""
    return 0 if torch.compiler.is_compiling() else inputs._version


def _project(members: Sequence[Member], inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Compute some projections of one input as they are at this moment."""
    projections = [member.projection(inputs) for member in members]
    return project(projections, inputs, _matrices(members))


def _matrices(members: Sequence[Member]) -> list[Any]:
    """A and B of each in turn."""
    return [matrix for member in members for matrix in member.matrices()]
