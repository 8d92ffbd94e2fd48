"""Shard a model block by block with FSDP2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

from accel_bench import Run
from accel_bench.modeling.blocks import decoder_blocks
from accel_bench_distributed.sizes import MASTER_WEIGHTS

if TYPE_CHECKING:
    from accel_bench_distributed import MeshOptions


def shard_blocks(run: Run, mesh: DeviceMesh, options: MeshOptions) -> None:
    """Shard each decoder block, then what is left of the model, in place."""
    names = ("replicate", "shard") if mesh["replicate"].size() > 1 else ("shard",)
    settings: dict[str, object] = {
        "mesh": mesh[names],
        "mp_policy": mixed_precision(run, options),
        **({"offload_policy": CPUOffloadPolicy()} if options.cpu_offload else {}),
    }
    _, blocks = decoder_blocks(run.model)
    for block in blocks:
        fully_shard(block, reshard_after_forward=options.reshard_after_forward, **settings)
    # What is left is needed at the end of the forward and at the start of the backward.
    fully_shard(run.model, reshard_after_forward=False, **settings)


def mixed_precision(run: Run, options: MeshOptions) -> MixedPrecisionPolicy:
    """Return in which dtypes blocks compute, and gradients are averaged."""
    train = run.scenario.train
    dtype = train.work_dtype if train.precision == MASTER_WEIGHTS else None
    return MixedPrecisionPolicy(
        param_dtype=getattr(torch, dtype) if dtype else None,
        reduce_dtype=getattr(torch, options.reduce_dtype) if options.reduce_dtype else None,
        # Tables of positions stay exact.
        cast_forward_inputs=bool(dtype),
    )
