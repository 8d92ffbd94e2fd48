"""A reference of DPO of which each device holds a part of every matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from accel_bench import Run
from accel_bench.modeling.tensor_parallel import divide_matrices

OPTION = "task.reference_tensor_parallel_size"
"""What a user sets, by the name that errors give it."""


class DividedReference:
    """Computes a model whose matrices are divided over ranks that follow one another.

    The ranks of such a group compute the batch of each of them together, one after the other, and
    each keeps what it needs: the output of its own. Ranks that have the same batch anyway, since
    they share the policy, compute it once.
    """

    def __init__(self, run: Run, model: Any, size: int) -> None:
        """Divide the model in place. Raises ScenarioError where it cannot be divided."""
        shape = (run.world_size // size, size)
        names = ("groups", "tensor")
        mesh = init_device_mesh(run.device.type, shape, mesh_dim_names=names)["tensor"]
        self.divided = divide_matrices(model, mesh, OPTION)
        """How many matrices are divided, by their style in the model's plan."""

        self.model = model
        """The model, of which this rank holds a part."""

        self._group = mesh.get_group()
        self._rank = mesh.get_local_rank()
        sharing = min(size, run.world_size // run.data_parallel)
        self._owners = range(0, size, sharing)
        self._own = self._rank - self._rank % sharing

    def __call__(self, **inputs: torch.Tensor) -> Any:
        """Return the model's output for this rank's inputs."""
        if len(self._owners) == 1:
            return self.model(**inputs)
        found: Any = None
        for owner in self._owners:
            shared = {name: self._shared(inputs[name], owner) for name in sorted(inputs)}
            output = self.model(**shared)
            found = output if owner == self._own else found
        return found

    def _shared(self, tensor: torch.Tensor, owner: int) -> torch.Tensor:
        """Return the tensor of one rank of the group on all of them; shapes may differ."""
        shape = torch.tensor(tensor.shape, device=tensor.device)
        distributed.broadcast(shape, group=self._group, group_src=owner)
        own = owner == self._rank
        sent = tensor.contiguous() if own else tensor.new_empty(shape.tolist())
        distributed.broadcast(sent, group=self._group, group_src=owner)
        return sent
