"""Declare to core where DeepSpeed keeps parameters, by its own functions that read them."""

from __future__ import annotations

from typing import Any

import torch
from deepspeed.utils import safe_get_full_fp32_param

from accel_bench.modeling.kept_elsewhere import KeptElsewhere, keep_elsewhere


def declare_parameters(model: torch.nn.Module, engine: Any) -> None:
    """Declare each parameter that a stage of ZeRO updates in parts, or holds as a placeholder."""
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
                read=lambda one=parameter: _read(one),
            ),
        )


def _updated_dtype(optimizer: Any) -> torch.dtype | None:
    """Return the dtype of the long tensors that the optimizer updates; None for stage 0."""
    for name in ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups"):
        for flat in getattr(optimizer, name, ()):
            dtype: torch.dtype = flat.dtype
            return dtype
    return None


def _read(parameter: Any) -> torch.Tensor:
    """Return a whole parameter, from its float32 master where it trains."""
    whole = safe_get_full_fp32_param(parameter)
    assert whole is not None, "frozen parameters are not read"
    return whole


def _held(parameter: Any) -> int:
    """Return the elements of a placeholder's part on this rank; a small one stays whole."""
    if getattr(parameter, "ds_persist", False):
        return int(parameter.ds_numel)
    return int(parameter.ds_tensor.numel())
