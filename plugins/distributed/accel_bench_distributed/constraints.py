"""What a model and a scenario must have to stand on a mesh: checked before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from accel_bench import Scenario, model_config
from accel_bench_distributed.sizes import Sizes

HEADS = ("num_attention_heads", "num_key_value_heads")
"""Keys of a configuration whose values `tensor` divides; and those that count experts."""

EXPERTS = ("num_local_experts", "num_experts")


def problems(scenario: Scenario, sizes: Sizes) -> Iterator[str]:
    """Yield the reasons why a scenario cannot be run on a mesh of these sizes."""
    train, dtype = scenario.train, scenario.model.dtype
    if train.keeps_master_weights and dtype != "float32":
        yield (
            f"{train.precision} keeps weights in model.dtype, which is {dtype}; set "
            "model.dtype: float32"
        )
    if sizes.per_batch > 1:
        yield from _optimizer_problems(scenario)
        yield from _model_problems(model_config(scenario.model) or {}, sizes)


def _optimizer_problems(scenario: Scenario) -> Iterator[str]:
    """Yield options by which torch would update divided and whole tensors in one call."""
    for option in ("foreach", "fused"):
        if scenario.optimizer.options.get(option):
            yield (
                f"torch cannot update divided and whole tensors in one call, and norms stay whole; "
                f"take {option} out of the optimizer"
            )


def _model_problems(config: Mapping[str, Any], sizes: Sizes) -> Iterator[str]:
    """Yield which heads or experts the mesh does not divide, as far as the model is known."""
    for key in HEADS:
        heads = config.get(key)
        if isinstance(heads, int) and heads % sizes.tensor:
            yield f"{key} {heads} cannot be divided by tensor {sizes.tensor}"
    experts = next((config[key] for key in EXPERTS if isinstance(config.get(key), int)), None)
    if experts is None:
        if config and sizes.expert > 1:
            yield f"the model has no experts that expert {sizes.expert} could divide"
    elif sizes.expert == 1:
        yield f"tensor alone leaves experts whole; set expert: {sizes.tensor} beside it"
    elif sizes.expert > experts:
        yield f"expert {sizes.expert} is more than the model's {experts} experts"
    elif experts % sizes.expert:
        yield f"{experts} experts cannot be divided by expert {sizes.expert}"
