"""Sharding of weight matrices over devices by the model's own tensor-parallel plan."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from accel_bench.errors import ScenarioError

GATHERED = "colwise_gather_output"
COLUMNS = ("colwise", GATHERED)
ROWS = ("rowwise", "rowwise_split_input")
"""Styles in transformers' plans of linear layers that are sharded row-wise."""

EMBEDDING = "embedding_rowwise"
"""Style of an embedding whose rows are sharded."""

EXPERTS = ("packed_colwise", "moe_tp_experts", "grouped_gemm")
"""Styles of experts, which are not sharded here."""


def divide_matrices(model: nn.Module, mesh: DeviceMesh, option: str) -> dict[str, int]:
    """Shard a model's layers in place; return the number of sharded layers by the plan's style.

    `option` is the key of the user's setting, for errors. Raises ScenarioError for a model without
    a plan, and for layers that cannot be sharded.
    """
    planned = dict(_planned(model, option))
    if not planned:
        raise ScenarioError(
            f"transformers has no tensor-parallel plan for {_name(model)}; set {option} to 1"
        )
    _check(model, planned, mesh.size(), option)
    styles: dict[str, ParallelStyle] = {}
    for name, style in planned.items():
        styles |= (
            _adapted(name, style)
            if hasattr(model.get_submodule(name), "base_layer")
            else {name: _style(style)}
        )
    # Every rank has loaded the same weights: there is nothing to send.
    parallelize_module(model, mesh, styles, src_data_rank=None)
    return dict(Counter(planned.values()))


def _planned(model: Any, option: str) -> Iterator[tuple[str, str]]:
    """Yield name and plan style of each layer to shard; experts and tied weights are left out."""
    inner = getattr(model, "get_base_model", lambda: model)()
    prefix = next(name for name, module in model.named_modules() if module is inner)
    plan = {_pattern(key): style for key, style in (getattr(inner, "tp_plan", None) or {}).items()}
    tied = _tied(model)
    for name, module in model.named_modules():
        plain = name.removeprefix(f"{prefix}.") if prefix else name
        style = next((style for key, style in plan.items() if key.fullmatch(plain)), None)
        weight = getattr(getattr(module, "base_layer", module), "weight", None)
        if style in EXPERTS or style is None or id(weight) in tied:
            continue
        if style not in (*COLUMNS, *ROWS, EMBEDDING):
            raise ScenarioError(
                f"the tensor-parallel plan of {_name(model)} has {style!r} for {plain}, which is "
                f"not known here; set {option} to 1"
            )
        yield name, style


def _check(model: Any, planned: dict[str, str], size: int, option: str) -> None:
    """Raise ScenarioError for a planned layer that cannot be sharded over `size` devices."""
    for name, style in planned.items():
        module = model.get_submodule(name)
        layer = getattr(module, "base_layer", module)
        if type(layer) is not (nn.Embedding if style == EMBEDDING else nn.Linear):
            raise ScenarioError(
                f"{name} is a {type(layer).__name__}, and torch's tensor parallelism divides plain "
                f"linear layers; take what quantizes out of the stack, or set {option} to 1"
            )
        side = 1 if style in ROWS else 0
        if (divided := layer.weight.shape[side]) % size:
            raise ScenarioError(
                f"{name} has {divided} {('rows', 'columns')[side]}, which the {size} devices of "
                f"{option} cannot divide evenly"
            )


def _style(style: str) -> ParallelStyle:
    """Return torch's parallel style for the name of a style in transformers' plan."""
    if style in COLUMNS:
        whole = style == GATHERED
        return ColwiseParallel(output_layouts=Replicate() if whole else Shard(-1))
    whole = style in (EMBEDDING, "rowwise_split_input")
    return RowwiseParallel(input_layouts=Replicate() if whole else Shard(-1))


def _adapted(name: str, style: str) -> dict[str, ParallelStyle]:
    """Return the sharding styles, by module name, for the parts of the LoRA layer `name`.

    They are the base layer and one matrix: B of a column-wise layer, A of a row-wise layer.
    """
    matrix = "lora_B" if style in COLUMNS else "lora_A"
    return {f"{name}.base_layer": _style(style), f"{name}.{matrix}.*": _style(style)}


def _pattern(key: str) -> re.Pattern[str]:
    return re.compile(re.escape(key).replace(r"\*", r"\d+"))


def _tied(model: nn.Module) -> set[int]:
    owned = (weight for module in model.modules() for weight in module._parameters.values())
    seen = Counter(id(weight) for weight in owned if weight is not None)
    return {weight for weight, count in seen.items() if count > 1}


def _name(model: Any) -> str:
    return type(getattr(model, "get_base_model", lambda: model)()).__name__
