"""Expert parallelism over ranks that compute one batch together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from accel_bench.errors import ScenarioError


def divide_experts(model: nn.Module, mesh: DeviceMesh) -> int:
    """Divide all layers' experts in place; return the number of layers.

    Raises ScenarioError for a model without experts, or with an indivisible number.
    """
    layers = [module for module in model.modules() if is_experts(module)]
    if not layers:
        raise ScenarioError(
            f"mesh: {type(model).__name__} holds no experts that could be divided; set expert to 1"
        )
    for layer in layers:
        _divide(layer, mesh)
    return len(layers)


def is_experts(module: Any) -> bool:
    """Return whether a module stores a layer's experts as three-dimensional tensors."""
    return hasattr(module, "num_experts") and any(
        one.dim() == 3 and one.shape[0] == module.num_experts
        for one in module.parameters(recurse=False)
    )


def _divide(layer: Any, mesh: DeviceMesh) -> None:
    """Keep this rank's experts of a layer; skip tokens of other ranks' experts."""
    size, experts = mesh.size(), layer.num_experts
    if experts % size:
        raise ScenarioError(
            f"mesh: {experts} experts cannot be divided evenly over expert: {size} devices"
        )
    for name, parameter in layer.named_parameters(recurse=False):
        divided = distribute_tensor(parameter.detach(), mesh, [Shard(0)], src_data_rank=None)
        layer._parameters[name] = nn.Parameter(divided, requires_grad=parameter.requires_grad)
    layer.num_experts = experts // size
    layer._is_expert_parallel = True  # By it transformers' grouped product passes rows over.
    layer.forward = DividedExperts(layer, mesh)


class DividedExperts:
    """Forward of a layer's experts on a rank that holds a part of them.

    All ranks hold the same tokens: each computes its experts' contribution, and contributions are
    summed.
    """

    def __init__(self, layer: Any, mesh: DeviceMesh) -> None:
        self._forward = layer.forward
        self._layer, self._mesh = layer, mesh
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
            if not added.requires_grad:  # No token came here: the others wait for our gradients.
                added = added + sum(0.0 * part.flatten()[:1].sum() for part in (*parts, hidden))
        summed = DTensor.from_local(added, self._mesh, [Partial()], run_check=False)
        return summed.redistribute(placements=[Replicate()]).to_local()

    def _to_all(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor whose gradient is summed over the ranks."""
        spread = DTensor.from_local(tensor, self._mesh, [Replicate()], run_check=False)
        return spread.to_local(grad_placements=[Partial()])


@contextmanager
def _own_parts(layer: Any) -> Iterator[list[torch.Tensor]]:
    """Replace the layer's parameters by plain tensors of its own experts within the block."""
    whole = dict(layer._parameters)
    parts = {name: one.to_local() for name, one in whole.items()}
    try:
        layer._parameters.update(parts)
        yield list(parts.values())
    finally:
        layer._parameters.update(whole)
