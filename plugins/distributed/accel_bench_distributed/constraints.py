"""Requirements of a mesh on the model and the scenario, checked before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

from accel_bench import Scenario, model_config
from accel_bench.modeling.tensor_parallel_plan import tensor_parallel_problems
from accel_bench_distributed.sizes import Sizes

EXPERTS = ("num_local_experts", "num_experts")
"""Configuration keys of the number of experts."""


def problems(scenario: Scenario, sizes: Sizes, asked: Set[str]) -> Iterator[str]:
    """Yield reasons why a scenario cannot run on a mesh of these sizes.

    `asked` are the names of the dimensions that the options set. If `tensor` or `expert` is among
    them, the model must have matrices or experts to divide, even on one device.
    """
    train, dtype = scenario.train, scenario.model.dtype
    if train.keeps_master_weights and dtype != "float32":
        yield (
            f"{train.precision} keeps weights in model.dtype, which is {dtype}; set "
            "model.dtype: float32"
        )
    if train.keeps_master_weights and sizes.dispatch:
        yield f"{train.precision} makes no copies of experts that tokens are sent to; use autocast"
    for node, devices in enumerate(scenario.resources.devices_by_node or ()):
        if (group := sizes.within_a_node) > 1 and devices % group:
            yield (
                f"node {node} has {devices} devices, and {sizes} would spread groups of {group} "
                "over nodes that differ; use shard alone, or sizes that divide every node's devices"
            )
    if sizes.per_batch > 1:
        yield from _optimizer_problems(scenario)
    if "tensor" in asked:
        yield from tensor_parallel_problems(scenario.model, sizes.tensor, "tensor")
    if asked & {"tensor", "expert"}:
        yield from _expert_problems(model_config(scenario.model) or {}, sizes, "expert" in asked)


def _optimizer_problems(scenario: Scenario) -> Iterator[str]:
    """Yield a reason for each optimizer option that updates sharded and whole tensors in one
    call."""
    for option in ("foreach", "fused"):
        if scenario.optimizer.options.get(option):
            yield (
                f"torch cannot update divided and whole tensors in one call, and norms stay whole; "
                f"take {option} out of the optimizer"
            )


def _expert_problems(config: Mapping[str, Any], sizes: Sizes, asked: bool) -> Iterator[str]:
    """Yield reasons why the mesh cannot divide the model's experts.

    `config` is the model's configuration; if empty, nothing is checked. `asked` is True if the
    options set the dimension `expert`.
    """
    experts = next((config[key] for key in EXPERTS if isinstance(config.get(key), int)), None)
    if experts is None:
        if config and asked:
            yield "the model has no experts that expert could divide; set expert to 1"
    elif sizes.expert == 1 < sizes.tensor:
        yield f"tensor alone leaves experts whole; set expert: {sizes.tensor} beside it"
    elif sizes.expert > experts:
        yield f"expert {sizes.expert} is more than the model's {experts} experts"
    elif experts % sizes.expert:
        yield f"{experts} experts cannot be divided by expert {sizes.expert}"
