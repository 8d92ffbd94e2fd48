"""Expert parallelism, over ranks that compute one batch together or that exchange tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed._functional_collectives import (
    all_to_all_single,
    all_to_all_single_autograd,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from accel_bench.errors import ScenarioError


def divide_experts(model: nn.Module, mesh: DeviceMesh, dispatch: bool = False) -> int:
    """Divide the experts of all layers over the ranks in place; return the number of these layers.

    With `dispatch` each rank has its own tokens, and sends them to the ranks of their experts.
    Raises ScenarioError if the model has no experts, or if the number of experts is no multiple of
    the number of ranks.
    """
    layers = [module for module in model.modules() if is_experts(module)]
    if not layers:
        raise ScenarioError(
            f"mesh: {type(model).__name__} holds no experts that could be divided; set expert to 1"
        )
    for layer in layers:
        _divide(layer, mesh)
        layer.forward = (DispatchedExperts if dispatch else DividedExperts)(layer, mesh)
    return len(layers)


def is_experts(module: Any) -> bool:
    """Return whether a module stores a layer's experts as three-dimensional tensors."""
    return hasattr(module, "num_experts") and any(
        weight.dim() == 3 and weight.shape[0] == module.num_experts
        for weight in module.parameters(recurse=False)
    )


def _divide(layer: Any, mesh: DeviceMesh) -> None:
    """Replace a layer's experts by this rank's share of them.

    Raises ScenarioError if the number of experts is no multiple of the number of ranks.
    """
    size, experts = mesh.size(), layer.num_experts
    if experts % size:
        raise ScenarioError(
            f"mesh: {experts} experts cannot be divided evenly over expert: {size} devices"
        )
    for name, parameter in layer.named_parameters(recurse=False):
        divided = distribute_tensor(parameter.detach(), mesh, [Shard(0)], src_data_rank=None)
        layer._parameters[name] = nn.Parameter(divided, requires_grad=parameter.requires_grad)
    layer.num_experts = experts // size


class DividedExperts:
    """Forward pass of a layer's experts on a rank that holds a part of the experts.

    All ranks hold the same tokens. Each rank computes what its own experts contribute to the
    output, and the contributions of all ranks are summed.
    """

    def __init__(self, layer: Any, mesh: DeviceMesh) -> None:
        self._forward = layer.forward
        self._layer, self._mesh = layer, mesh
        layer._is_expert_parallel = True  # By it transformers' grouped product passes rows over.
        self._first = mesh.get_local_rank() * layer.num_experts

    def __call__(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        here = top_k_index - self._first
        elsewhere = (here < 0) | (here >= self._layer.num_experts)
        # The number after the last expert is that of none.
        here = here.masked_fill(elsewhere, self._layer.num_experts)
        with _own_parts(self._layer) as parts:
            hidden, weights = map(self._to_all, (hidden_states, top_k_weights))
            added = self._forward(hidden, here, weights.masked_fill(elsewhere, 0.0))
            added = _joined(added, (*parts, hidden))
        summed = DTensor.from_local(added, self._mesh, [Partial()], run_check=False)
        return summed.redistribute(placements=[Replicate()]).to_local()

    def _to_all(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the same tensor; in the backward pass its gradient is summed over the ranks."""
        spread = DTensor.from_local(tensor, self._mesh, [Replicate()], run_check=False)
        return spread.to_local(grad_placements=[Partial()])


class DispatchedExperts:
    """Forward pass of a layer's experts on a rank with its own tokens.

    Each token is sent to the ranks of its experts, and their outputs are sent back. Expert
    gradients cover the tokens of all ranks: they are divided by the number of ranks, like FSDP2's
    averages.
    """

    def __init__(self, layer: Any, mesh: DeviceMesh) -> None:
        self._forward = layer.forward
        self._layer, self._group, self._size = layer, mesh.get_group(), mesh.size()

    def __call__(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        experts, order = top_k_index.flatten().sort(stable=True)
        sent = torch.bincount(experts // self._layer.num_experts, minlength=self._size)
        counts = all_to_all_single(sent, None, None, self._group)
        there, back = sent.tolist(), counts.tolist()
        choices = top_k_index.shape[-1]
        hidden = self._exchange(hidden_states[order // choices], back, there)
        index = all_to_all_single(experts % self._layer.num_experts, back, there, self._group)
        with _own_parts(self._layer) as parts:
            for part in parts:
                if part.requires_grad:
                    part.register_hook(self._average)
            ones = hidden.new_ones(len(index), 1, dtype=top_k_weights.dtype)
            computed = _joined(self._forward(hidden, index[:, None], ones), (*parts, hidden))
        returned = self._exchange(computed, there, back)[order.argsort()]
        weighted = returned.unflatten(0, top_k_weights.shape) * top_k_weights[..., None]
        return weighted.sum(1).to(hidden_states.dtype)

    def _exchange(self, rows: torch.Tensor, received: list[int], sent: list[int]) -> torch.Tensor:
        """Send rows to all ranks, and return the rows that all ranks send to this rank.

        `rows` and the result are in order of ranks. `sent` and `received` are the numbers of rows
        to and from each rank.
        """
        exchanged: torch.Tensor = all_to_all_single_autograd(rows, received, sent, self._group)
        return exchanged

    def _average(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / self._size


def _joined(computed: torch.Tensor, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the experts' output `computed`, which depends on `inputs` even if no token was
    received.

    Without this dependency autograd would skip exchanges of gradients, for which other ranks wait.
    """
    if computed.requires_grad:
        return computed
    return computed + sum(0.0 * part.flatten()[:1].sum() for part in inputs)


@contextmanager
def _own_parts(layer: Any) -> Iterator[list[torch.Tensor]]:
    """In the `with` block, replace a layer's parameters by this rank's shards, and yield these."""
    whole = dict(layer._parameters)
    parts = {name: weight.to_local() for name, weight in whole.items()}
    try:
        layer._parameters.update(parts)
        yield list(parts.values())
    finally:
        layer._parameters.update(whole)
