"""Application of a mesh to a model: it divides matrices and experts, then shards blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from accel_bench import Run
from accel_bench.modeling.process_group import backends_for
from accel_bench.modeling.tensor_parallel import divide_matrices
from accel_bench_distributed.impl.blocks import shard_blocks
from accel_bench_distributed.impl.experts import divide_experts
from accel_bench_distributed.sizes import Sizes

if TYPE_CHECKING:
    from accel_bench_distributed import MeshOptions


class Sharding:
    """A run's model, sharded in place on a device mesh."""

    def __init__(self, run: Run, sizes: Sizes, options: MeshOptions) -> None:
        """Shard the run's model in place over a mesh of these sizes."""
        self.model: nn.Module = run.model
        self._sizes = sizes
        self._mesh = make_mesh(run, sizes)
        self._matrices: dict[str, int] = {}
        self._layers_of_experts = 0
        if sizes.tensor > 1:
            self._matrices = divide_matrices(self.model, self._mesh["tensor"], "tensor of mesh")
        if sizes.expert > 1:
            shared = self._mesh["shard" if sizes.dispatch else "tensor"]
            self._layers_of_experts = divide_experts(self.model, shared, sizes.dispatch)
        if sizes.shards_blocks(run.scenario.train.keeps_master_weights):
            shard_blocks(run, self._mesh, options)

    def evidence(self) -> dict[str, Any]:
        """Return JSON evidence of the mesh, and of this rank's fraction of the weights."""
        total = sum(parameter.numel() for parameter in self.model.parameters())
        held = sum(_local(parameter).numel() for parameter in self.model.parameters())
        return {
            "summary": f"{self._sizes}; this rank holds {held / total:.0%} of the weights",
            "mesh": dict(zip(self._mesh.mesh_dim_names or (), self._mesh.shape, strict=True)),
            "divided_matrices": self._matrices,
            "divided_layers_of_experts": self._layers_of_experts,
            "dispatch": self._sizes.dispatch,
            "parameters": total,
            "parameters_held": held,
        }


def make_mesh(run: Run, sizes: Sizes) -> DeviceMesh:
    """Return the mesh of all ranks; its dimensions are `replicate` (outermost), `shard`,
    `tensor`."""
    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        kind = backends_for(run.device_type, run.scenario.resources.backend)
        torch.distributed.init_process_group(kind, store=store, rank=0, world_size=1)
        run.on_close(torch.distributed.destroy_process_group)
    shape = {"replicate": sizes.replicate, "shard": sizes.sharded, "tensor": sizes.per_batch}
    return init_device_mesh(run.device.type, tuple(shape.values()), mesh_dim_names=tuple(shape))


def _local(parameter: Any) -> torch.Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter
