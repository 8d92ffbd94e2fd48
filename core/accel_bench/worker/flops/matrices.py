"""Weight matrices of a model's modules: of plain and quantized layers, of experts, of LoRA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from accel_bench.flops.workload import Matmul
from accel_bench.modeling.kept_elsewhere import elements_of, shape_of
from accel_bench.modeling.tensors import dtype_name
from accel_bench.worker.verify.kernels import experts_implementation


class UnknownPartError(Exception):
    """Error for a module whose matrix products are unknown; its model then has no workload."""


@dataclass(frozen=True)
class ModelFacts:
    """Properties of a model that are read from its configuration, not from its weights."""

    dtype: str
    """Dtype of matmuls with quantized weights."""

    experts_per_token: int | None
    """Number of experts for each token; None if the model's configuration does not state it."""


class WeightMatrix(Matmul):
    """Matrix product with a weight, or with the same weight of all experts of a layer.

    `name` is the full path of the module, without adapters' names; `dtype` is the weights' dtype.
    """

    after: tuple[str, ...] = ()
    """Names of matrices of the same module whose output is this matrix's input."""

    plain: bool = False
    """True if torch's own linear multiplies the matrix, which saves its inputs before it starts."""

    autocast: bool = True
    """True if the matmul has the dtype of autocast when that is enabled."""


@dataclass(frozen=True)
class WeightedModule:
    """Module with weights of its own (its adapters' included), with its path and its matrices."""

    path: str
    module: nn.Module
    parent: nn.Module

    matrices: tuple[WeightMatrix, ...]
    """Matrices in the order of multiplication; empty for a norm or an embedding."""

    trains: bool
    """True if any parameter of the module trains, biases and adapters included."""


def parts_of(module: nn.Module, path: str, facts: ModelFacts) -> Iterator[WeightedModule]:
    """Yield the modules with weights below `module` at `path`. May raise UnknownPartError."""
    for name, listed in module.named_children():
        place, child = f"{path}.{name}" if path else name, _in_use(listed)
        matrices = matrices_of(child, place, facts)
        whole = _sizes(child) is not None or hasattr(child, "base_layer")
        if matrices is not None:
            trains = any(p.requires_grad for p in child.parameters(recurse=whole))
            yield WeightedModule(place, child, module, tuple(matrices), trains)
        if not whole:
            yield from parts_of(child, place, facts)


def matrices_of(module: nn.Module, path: str, facts: ModelFacts) -> list[WeightMatrix] | None:
    """Return one module's weight matrices, without its children's; None if it has no weights."""
    if hasattr(module, "base_layer"):
        return _adapted(module, path, facts)
    if _sizes(module) is not None:
        return [_linear(module, path, facts)]
    own = dict(module.named_parameters(recurse=False))
    if isinstance(module, nn.Embedding):
        return []
    # Experts that are kept as tensors have biases of two dimensions.
    large = {n: p for n, p in own.items() if len(shape_of(p)) > 1 and not n.endswith("bias")}
    if set(large) == {"weight"} and len(shape_of(large["weight"])) == 2:
        weight = large["weight"]
        rows, columns = shape_of(weight)
        dtype, trains = dtype_name(weight.dtype), weight.requires_grad
        return [WeightMatrix(name=path, rows=rows, columns=columns, trains=trains, dtype=dtype)]
    convolution = isinstance(module, nn.Conv1d)
    if large and all(len(shape_of(tensor)) == 3 for tensor in large.values()) and not convolution:
        return _experts(module, large, path, facts)
    if large:
        name = next(iter(large))
        raise UnknownPartError(f"{path} ({type(module).__name__}) holds {name}")
    return [] if own else None


def _in_use(module: nn.Module) -> nn.Module:
    """Return PEFT's trained copy of a module, if there is one, else the module itself."""
    copies = getattr(module, "modules_to_save", None)
    if isinstance(copies, nn.ModuleDict) and hasattr(module, "original_module") and len(copies):
        return next(iter(copies.values()))
    return module


def _sizes(module: nn.Module) -> tuple[int, int] | None:
    """Return rows and columns of a linear module's weight; None for another module."""
    for rows, columns in (("out_features", "in_features"), ("nf", "nx")):
        sizes = getattr(module, rows, None), getattr(module, columns, None)
        if isinstance(sizes[0], int) and isinstance(sizes[1], int):
            return sizes[0], sizes[1]
    return None


def packed_sizes(module: nn.Module) -> tuple[int, int] | None:
    """Return rows and columns of a linear module whose weight is packed; None for other modules."""
    sizes = _sizes(module)
    outer = hasattr(module, "base_layer") or next(module.children(), None) is not None
    return None if sizes is None or outer or _is_whole(module, sizes) else sizes


def _is_whole(module: nn.Module, sizes: tuple[int, int]) -> bool:
    weight: Any = getattr(module, "weight", None)
    stored = isinstance(weight, torch.Tensor) and weight.is_floating_point()
    return stored and elements_of(weight) == sizes[0] * sizes[1]


def _linear(module: nn.Module, path: str, facts: ModelFacts) -> WeightMatrix:
    sizes = _sizes(module)
    assert sizes is not None
    weight: Any = getattr(module, "weight", None)
    stored = isinstance(weight, torch.Tensor)
    whole = _is_whole(module, sizes)
    # Linears of a model's own are plain; those of integrations are quantized.
    own = type(module).__module__.startswith(("transformers.pytorch_utils", "transformers.models."))
    return WeightMatrix(
        name=path,
        rows=sizes[0],
        columns=sizes[1],
        trains=stored and weight.requires_grad,
        dtype=dtype_name(weight.dtype) if whole else facts.dtype,
        plain=type(module) is nn.Linear or own,
    )


def _experts(
    module: nn.Module, tensors: dict[str, Any], path: str, facts: ModelFacts
) -> list[WeightMatrix]:
    """Return the matrices of experts in tensors of shape (expert, row, column), or transposed."""
    if facts.experts_per_token is None:
        raise UnknownPartError(
            f"{path} ({type(module).__name__}): it is not known how many experts a token uses"
        )
    first = tuple(f"{path}.{name}" for name in tensors if "down" not in name)
    transposed = bool(getattr(module, "is_transposed", False))
    matrices = []
    for name, tensor in tensors.items():
        experts, *sizes = shape_of(tensor)
        rows, columns = reversed(sizes) if transposed else sizes
        matrices.append(
            WeightMatrix(
                name=f"{path}.{name}",
                rows=rows,
                columns=columns,
                trains=tensor.requires_grad,
                dtype=dtype_name(tensor.dtype),
                count=experts,
                share=facts.experts_per_token / experts,
                after=first if "down" in name else (),
                autocast=experts_implementation(module) != "grouped_mm",
            )
        )
    return matrices


def _adapted(module: nn.Module, path: str, facts: ModelFacts) -> list[WeightMatrix]:
    """Return the matrices of a module under LoRA: those of its base and of its active adapters."""
    base: Any = module.base_layer
    matrices = matrices_of(base, path, facts)
    pairs: list[Any] = [getattr(module, f"lora_{letter}", None) for letter in "AB"]
    known = {id(p) for kept in (base, *pairs) if kept is not None for p in kept.parameters()}
    others = [p for p in module.parameters() if len(shape_of(p)) > 1 and id(p) not in known]
    if matrices is None or others or hasattr(module, "parameter_name"):
        raise UnknownPartError(f"{path} has an adapter that is not known ({type(module).__name__})")
    if getattr(module, "merged", False) or getattr(module, "disable_adapters", False):
        return matrices
    for adapter in getattr(module, "active_adapters", ()):
        if any(pair is None or adapter not in pair for pair in pairs):
            continue
        down, up = (
            _linear(pair[adapter], f"{path}.lora_{letter}", facts)
            for pair, letter in zip(pairs, "AB", strict=True)
        )
        matrices += [down, up.model_copy(update={"after": (down.name,)})]
    return matrices
