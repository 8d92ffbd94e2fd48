"""Reading of the strategy by which the model is replicated or sharded, from objects in memory."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

import torch

from accel_bench.modeling.kept_elsewhere import elements_of, kept_elsewhere
from accel_bench.modeling.sharding import is_sharded, on_this_rank
from accel_bench.run_context import Run
from accel_bench.worker.settings import has_process_group

SHARDED = "FSDPModule"
"""Name of the base class that FSDP2 adds to a module's class."""

DEEPSPEED = "DeepSpeedEngine"

STRATEGIES = (
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    SHARDED,
    "DataParallel",
    DEEPSPEED,
)
"""Names of the classes of wrappers by which ranks divide the work."""

REPLICATES = "DistributedDataParallel"
"""Strategy that keeps a whole model on each rank."""


def strategy_of(module: torch.nn.Module) -> str | None:
    """Return the strategy for which a module is a wrapper; None if it is no wrapper."""
    names = {kind.__name__ for kind in type(module).__mro__}
    return next((strategy for strategy in STRATEGIES if strategy in names), None)


def is_sharding(kind: type) -> bool:
    """Return whether a class is FSDP2's, or the class that FSDP2 puts in place of a module's."""
    return any(base.__name__ == SHARDED for base in kind.__mro__)


def read_wrapping(run: Run) -> dict[str, Any]:
    """Return fields of the effective configuration: strategy, sharding, wrappers, sent buffers.

    An engine may wrap the model by itself: every wrapper in this process that holds the model
    counts.
    """
    outer = _outermost(run)
    wrappers = list(filter(None, map(strategy_of, outer.modules())))
    strategy = strategy_of(outer) or next(iter(wrappers), None) or _other(run)
    if strategy == DEEPSPEED:
        strategy = f"{DEEPSPEED} ZeRO-{zero_stage(outer)}"
    # Sharding block by block nests by design; a replica within another strategy does not.
    mixed = len(wrappers) > 1 and REPLICATES in wrappers
    inner = next((name for name in wrappers if name != wrappers[0]), REPLICATES)
    return {
        "strategy": strategy,
        **read_sharding(run.unwrapped_model),
        "nested_wrapping": [wrappers[0], inner] if mixed else [],
        "synchronized_buffer_bytes": _synchronized_buffer_bytes(outer),
    }


def zero_stage(engine: Any) -> int:
    """Return the ZeRO stage of DeepSpeed's optimizer; the configuration may state another."""
    optimizer = engine.optimizer
    names = {kind.__name__ for kind in type(optimizer).__mro__}
    if "DeepSpeedZeroOptimizer_Stage3" in names:
        return 3
    if "DeepSpeedZeroOptimizer" in names:
        return 2 if optimizer.partition_gradients else 1
    return int("BF16_Optimizer" in names)


def read_sharding(model: torch.nn.Module) -> dict[str, Any]:
    """Return fields of the effective configuration: the numbers of elements by placement, of
    elements on this rank, and of ranks that share the parameters; empty if nothing is sharded."""
    parameters = list(model.parameters())
    sharded = [parameter for parameter in parameters if is_sharded(parameter)]
    kept = list(filter(None, map(kept_elsewhere, parameters)))
    if not sharded and not kept:
        return {}
    counts: Counter[str] = Counter()
    for parameter in parameters:
        counts[_placement(parameter)] += elements_of(parameter)
    return {
        "sharding": dict(counts.most_common()),
        "held_elements": sum(map(_held_elements, parameters)),
        "sharing_ranks": max(
            [*(tensor.device_mesh.size() for tensor in sharded), *(entry.ranks for entry in kept)]
        ),
    }


def _held_elements(parameter: Any) -> int:
    kept = kept_elsewhere(parameter)
    return on_this_rank(parameter).numel() if kept is None else kept.held_elements


def _placement(parameter: Any) -> str:
    """Return a parameter's placement as text, `whole` or such as `shard 2: Shard(dim=0)`."""
    kept = kept_elsewhere(parameter)
    if kept is not None:
        return kept.placement
    if not is_sharded(parameter):
        return "whole"
    mesh = parameter.device_mesh
    names = mesh.mesh_dim_names or [f"dimension {number}" for number in range(mesh.ndim)]
    parts = zip(names, mesh.shape, parameter.placements, strict=True)
    return ", ".join(f"{name} {size}: {placement!r}" for name, size, placement in parts)


def _outermost(run: Run) -> torch.nn.Module:
    """Return the outermost wrapper that holds the model, or the model itself if there is none."""
    outer: torch.nn.Module = run.model
    if has_process_group():
        wrappers = (
            thing
            for thing in gc.get_objects()
            if issubclass(type(thing), torch.nn.Module) and strategy_of(thing) is not None
        )
        # Smaller ones first, so that the last one holds the most.
        for module in sorted(wrappers, key=lambda module: sum(1 for _ in module.modules())):
            if any(inner is outer for inner in module.modules()):
                outer = module
    return outer


def _other(run: Run) -> str:
    """Return the strategy if no wrapper is known: `DTensor`, the wrapper's class, or `none`."""
    if any(map(is_sharded, run.model.parameters())):
        return "DTensor"
    return "none" if run.model is run.unwrapped_model else type(run.model).__name__


def _synchronized_buffer_bytes(outer: torch.nn.Module) -> int:
    """Return the bytes of the buffers that ranks send to one another before every forward pass."""
    return sum(
        buffer.numel() * buffer.element_size()
        for module in outer.modules()
        if getattr(module, "forward_sync_buffers", getattr(module, "broadcast_buffers", False))
        for buffer in module.buffers()
    )
