"""Sharding of a model block by block with FSDP2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.nn.modules.batchnorm import _BatchNorm

from accel_bench import Run
from accel_bench.errors import ScenarioError
from accel_bench.modeling.blocks import repeated_blocks
from accel_bench.modeling.sharding import is_sharded
from accel_bench.modeling.tensors import dtype_name

if TYPE_CHECKING:
    from accel_bench_distributed import MeshOptions


PACKED = "Params4bit"
"""Class of bitsandbytes' 4-bit parameters."""


def shard_blocks(run: Run, mesh: DeviceMesh, options: MeshOptions) -> None:
    """Shard each repeated block of the run's model, then the rest of the model, in place."""
    names = ("replicate", "shard") if mesh["replicate"].size() > 1 else ("shard",)
    settings: dict[str, Any] = {
        "mesh": mesh[names],
        "mp_policy": mixed_precision(run, options),
        "ignored_params": replicate_scalars(run.model) | dispatched_experts(run.model, options),
        **({"offload_policy": CPUOffloadPolicy()} if options.cpu_offload else {}),
    }
    check_weights(run.model, settings["mp_policy"])
    blocks = repeated_blocks(run.model)
    shard_batch_norms([*blocks, run.model], settings)
    for block in blocks:
        fully_shard(block, reshard_after_forward=options.reshard_after_forward, **settings)
    # What is left is needed at the end of the forward and at the start of the backward.
    fully_shard(run.model, reshard_after_forward=False, **settings)


def dispatched_experts(model: nn.Module, options: MeshOptions) -> set[nn.Parameter]:
    """Return the parameters of experts to which tokens are sent: FSDP2 must not shard them.

    The set is empty without the option `dispatch`.
    """
    return {weight for weight in model.parameters() if options.dispatch and is_sharded(weight)}


def shard_batch_norms(parts: Sequence[nn.Module], settings: Mapping[str, Any]) -> None:
    """Shard the batch norms of each part as one group, without 16-bit copies of their weights.

    `parts` are the repeated blocks, then the whole model. In this order no group mixes batch norms
    of a recomputed block with others. `settings` are the arguments of `fully_shard`. The statistics
    of batch norms are float32, so torch requires float32 weights too, even for 16-bit inputs and
    outputs.
    """
    policy: MixedPrecisionPolicy = settings["mp_policy"]
    if policy.param_dtype is None:
        return
    whole = {**settings, "mp_policy": replace(policy, param_dtype=None)}
    for part in parts:
        norms = [
            module for module in part.modules() if isinstance(module, _BatchNorm) and module.affine
        ]
        if left := [norm for norm in norms if not isinstance(norm, FSDPModule)]:
            fully_shard(left, reshard_after_forward=False, **whole)


def replicate_scalars(model: nn.Module) -> set[nn.Parameter]:
    """Average gradients of scalar parameters over all ranks in each backward; return the scalars.

    FSDP2 supports no tensor without dimensions, such as CLIP's temperature. Accumulated gradients
    are averaged again after each micro-batch, which keeps them correct.
    """
    scalars = {scalar for scalar in model.parameters() if not scalar.dim()}
    for scalar in scalars:
        if scalar.requires_grad:
            scalar.register_post_accumulate_grad_hook(_average_gradient)
    return scalars


def _average_gradient(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    torch.distributed.all_reduce(parameter.grad)
    parameter.grad /= torch.distributed.get_world_size()


def check_weights(model: nn.Module, policy: MixedPrecisionPolicy) -> None:
    """Raise ScenarioError if the model has quantized weights that FSDP2 would destroy.

    FSDP2 gathers plain parameters. It loses the metadata of other libraries' tensor classes, except
    for bitsandbytes' 4-bit weights, whose modules keep a copy. Packed weights, several in an
    element, lose their meaning if the elements are cast to another dtype.
    """
    for name, weight in model.named_parameters():
        kind = type(weight)
        if kind.__name__ == PACKED:
            if policy.param_dtype is not None and weight.is_floating_point():
                raise ScenarioError(
                    f"mesh: {name} holds packed bits as {dtype_name(weight.dtype)}, and copies of "
                    f"the weights are {dtype_name(policy.param_dtype)}; set quant_storage: uint8"
                )
        elif kind is not nn.Parameter and not is_sharded(weight):
            if not hasattr(weight, "fsdp_pre_all_gather"):
                raise ScenarioError(
                    f"mesh: {name} is a {kind.__name__}, which FSDP2 cannot gather with what it "
                    "needs beside its numbers; quantize by nf4, or use ddp"
                )


def mixed_precision(run: Run, options: MeshOptions) -> MixedPrecisionPolicy:
    """Return FSDP2's policy of dtypes for computation and gradient averaging."""
    train = run.scenario.train
    dtype = train.work_dtype if train.keeps_master_weights else None
    return MixedPrecisionPolicy(
        param_dtype=getattr(torch, dtype) if dtype else None,
        reduce_dtype=getattr(torch, options.reduce_dtype) if options.reduce_dtype else None,
        # Tables of positions stay exact.
        cast_forward_inputs=bool(dtype),
    )
