"""Parameters that DeepSpeed partitions, declared to core with the functions that read them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from deepspeed.utils import safe_get_full_fp32_param

from accel_bench.errors import ScenarioError
from accel_bench.modeling.kept_elsewhere import KeptElsewhere, keep_elsewhere

NOT_SENT = "ds_optim_param"
"""Attribute of parameters that DeepSpeed does not broadcast at initialization."""


def check_scalars(model: torch.nn.Module, stage: int, ranks: int) -> None:
    """Raise ScenarioError if the model has scalar parameters that a stage of ZeRO cannot train.

    Stage 3 broadcasts parameters as bytes, and a scalar has no view as bytes. Stage 0 changes the
    shape of a scalar's averaged gradient if there are several ranks.
    """
    scalars = {name: scalar for name, scalar in model.named_parameters() if not scalar.dim()}
    if stage == 0:
        trained = {name: scalar for name, scalar in scalars.items() if scalar.requires_grad}
        scalars = trained if ranks > 1 else {}
    if scalars and stage in (0, 3):
        raise ScenarioError(
            f"deepspeed: stage {stage} fails on a parameter of a single number: "
            f"{', '.join(scalars)}; use stage 1 or 2, the plugin mesh, or ddp"
        )


@contextlib.contextmanager
def scalars_sent(model: torch.nn.Module) -> Iterator[None]:
    """Broadcast scalar parameters from rank 0; DeepSpeed does not send them in the `with` block."""
    scalars = [scalar for scalar in model.parameters() if not scalar.dim()]
    for scalar in scalars:
        torch.distributed.broadcast(scalar.data, src=0)
        setattr(scalar, NOT_SENT, True)
    try:
        yield
    finally:
        for scalar in scalars:
            delattr(scalar, NOT_SENT)


def declare_parameters(model: torch.nn.Module, engine: Any) -> None:
    """Report to core each parameter that ZeRO partitions, with a function that gathers it.

    `engine` is DeepSpeed's engine of the model.
    """
    size = torch.distributed.get_world_size()
    stage = int(engine.zero_optimization_stage())
    updated = _updated_dtype(engine.optimizer)
    for parameter in model.parameters():
        placeholder = hasattr(parameter, "ds_id")
        if not placeholder and not hasattr(parameter, "_hp_mapping"):
            continue
        keep_elsewhere(
            parameter,
            KeptElsewhere(
                shape=torch.Size(parameter.ds_shape if placeholder else parameter.shape),
                dtype=updated if parameter.requires_grad else parameter.dtype,
                placement=f"ZeRO-{stage} over {size}",
                held_elements=_held(parameter) if placeholder else parameter.numel(),
                ranks=size,
                read=lambda weight=parameter: _read(weight),
            ),
        )


def _updated_dtype(optimizer: Any) -> torch.dtype | None:
    """Return the dtype of the flat tensors that the optimizer updates; None if it has none."""
    for name in ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups"):
        for flat in getattr(optimizer, name, ()):
            dtype: torch.dtype = flat.dtype
            return dtype
    return None


def _read(parameter: Any) -> torch.Tensor:
    """Return a parameter gathered from all ranks, from its float32 master copy if there is one."""
    whole = safe_get_full_fp32_param(parameter)
    assert whole is not None, "frozen parameters are not read"
    return whole


def _held(parameter: Any) -> int:
    """Return the number of a partitioned parameter's elements on this rank.

    DeepSpeed keeps small parameters whole on each rank.
    """
    if getattr(parameter, "ds_persist", False):
        return int(parameter.ds_numel)
    return int(parameter.ds_tensor.numel())
