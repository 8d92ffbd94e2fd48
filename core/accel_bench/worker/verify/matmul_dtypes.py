"""Read in which dtype the linear layers of every block compute, in the first forward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from accel_bench.modeling.tensors import dtype_name
from accel_bench.worker.verify.kernels import plain_linears

PRODUCTS = ("AddmmBackward", "MmBackward", "BmmBackward", "LinearBackward", "MkldnnLinear")
"""Beginnings of the names of autograd's nodes of a matmul."""

REACH = 6
"""Nodes between the output of a linear layer and its matmul, at most."""


class MatmulDtypes:
    """Remember the dtype of the matmul of each linear layer with weights that are not quantized.

    A forward that was replaced may cast to another dtype and back, so that the output alone does
    not show it: autograd's node of the matmul does.
    """

    def __init__(self) -> None:
        self._dtypes: dict[int, str] = {}

    def watch(self, model: torch.nn.Module) -> list[Any]:
        """Register a hook on every plain linear layer; return the handles."""
        return [layer.register_forward_hook(self._see) for layer in plain_linears(model)]

    @property
    def counts(self) -> dict[str, int]:
        """Layers that computed, by dtype, the commonest first."""
        return dict(Counter(self._dtypes.values()).most_common())

    def _see(self, module: Any, inputs: Any, output: Any) -> None:
        if id(module) not in self._dtypes and isinstance(output, torch.Tensor):
            self._dtypes[id(module)] = dtype_name(_dtype_of_product(output))


def _dtype_of_product(output: torch.Tensor) -> torch.dtype:
    """Return the dtype of the last matmul before an output; its own where no matmul is near.

    Only a node's description of its output is read: what it saved may be computed again, or copied
    back from the host, when it is read.
    """
    for node in _nodes(output.grad_fn):
        if node.name().startswith(PRODUCTS):
            found: torch.dtype = node._input_metadata[0].dtype
            return found
    return output.dtype


def _nodes(node: Any) -> Iterator[Any]:
    """Yield the nodes from an output backward, along the first input that has one."""
    for _ in range(REACH):
        if node is None:
            return
        yield node
        node = next((before for before, _ in node.next_functions if before is not None), None)
