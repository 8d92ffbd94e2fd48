"""Checks of models' tensor-parallel plans that only read files, without importing a model."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from accel_bench.catalog.models import model_config, model_type_of
from accel_bench.scenario.uses import ModelUse

HEADS = ("num_attention_heads", "num_key_value_heads")
"""Configuration keys whose values must be divisible by the number of devices."""

PLAN = "base_model_tp_plan"
"""Attribute of transformers' configurations that holds a tensor-parallel plan."""


def tensor_parallel_problems(model: ModelUse, size: int, option: str) -> Iterator[str]:
    """Yield reasons why `size` devices cannot share a model's matrices, without importing it.

    `option` is the key of the user's setting `size`. Nothing is yielded for a model on a hub.
    """
    config = model_config(model) or {}
    for key in HEADS:
        heads = config.get(key)
        if isinstance(heads, int) and heads % size:
            yield f"{key} {heads} cannot be divided by {option} {size}"
    kind = model_type_of(model)
    source = _configuration_source(kind) if kind else None
    if source is not None and PLAN not in source.read_text(encoding="utf8"):
        yield f"transformers has no tensor-parallel plan for {kind} models; set {option} to 1"


def _configuration_source(model_type: str) -> Path | None:
    """Return the source file of a transformers configuration, or None if there is no such file."""
    package = find_spec("transformers")
    if package is None or package.origin is None:
        return None
    name = model_type.replace("-", "_")
    path = Path(package.origin).parent / "models" / name / f"configuration_{name}.py"
    return path if path.is_file() else None
