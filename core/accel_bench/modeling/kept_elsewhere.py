"""Parameters that a library stores and updates in tensors outside the model.

DeepSpeed updates parts of long float32 tensors, frees gradients before the optimizer steps, and
leaves placeholders without elements in the model. Its engine declares once how each parameter is
read (`keep_elsewhere`), and shows the gradients of its first step (`show_gradients`). The core
measures updates, gradients and sizes by these two declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

ATTRIBUTE = "accel_bench_kept_elsewhere"


class ShownGradient(NamedTuple):
    """Norm of a gradient that is freed early, and indices of two weights that should change."""

    norm: float
    """L2 norm of the whole gradient."""

    places: frozenset[int]
    """Indices of the parameter's elements that the step should change."""


@dataclass
class KeptElsewhere:
    """Shape, dtype, sharding and reader of one parameter that a library stores elsewhere."""

    shape: torch.Size
    """Shape of the whole parameter."""

    dtype: torch.dtype
    """Dtype in which the parameter is updated, or stored if it is frozen."""

    placement: str
    """Description of the parameter's sharding over ranks."""

    held_elements: int
    """Number of the parameter's elements on this rank between two steps."""

    ranks: int
    """Number of ranks that share the parameter."""

    read: Callable[[], torch.Tensor]
    """Function that returns the whole parameter as it is updated; all ranks call it together."""

    gradient: ShownGradient | None = None
    """Gradient of the parameter in the first step."""


def keep_elsewhere(parameter: torch.Tensor, kept: KeptElsewhere) -> None:
    """Declare how to read a parameter that a library stores in tensors outside the model."""
    setattr(parameter, ATTRIBUTE, kept)


def kept_elsewhere(parameter: torch.Tensor) -> KeptElsewhere | None:
    """Return the declaration that `keep_elsewhere` stored for a parameter, or None without one."""
    kept: KeptElsewhere | None = getattr(parameter, ATTRIBUTE, None)
    return kept


def shape_of(parameter: torch.Tensor) -> torch.Size:
    """Return the shape of a whole parameter, even if the model has only a placeholder."""
    kept = kept_elsewhere(parameter)
    return parameter.shape if kept is None else kept.shape


def elements_of(parameter: torch.Tensor) -> int:
    """Return a whole parameter's number of elements, even if the model has a placeholder."""
    return shape_of(parameter).numel()


def dtype_of(parameter: torch.Tensor) -> torch.dtype:
    """Return the dtype in which a parameter is updated."""
    kept = kept_elsewhere(parameter)
    return parameter.dtype if kept is None else kept.dtype


def show_gradients(
    gradients: Mapping[torch.Tensor, Callable[[], torch.Tensor | None]], most: float | None
) -> None:
    """Store each gradient's norm, and indices of two parameter elements that should change.

    An engine calls this on all ranks together, before its first step. `gradients` has, for each
    parameter, a function that returns its whole gradient; they are called one at a time. `most` is
    the total norm to which the engine clips the gradients in that step.
    """
    shown: dict[torch.Tensor, ShownGradient] = {}
    for parameter, read in gradients.items():
        kept, gradient = kept_elsewhere(parameter), read()
        if kept is not None and gradient is not None:
            shown[parameter] = describe_gradient(kept.read(), gradient)
    total = sum(summary.norm**2 for summary in shown.values()) ** 0.5
    factor = 1.0 if most is None else min(1.0, most / (total + 1e-6))
    for parameter, summary in shown.items():
        kept = kept_elsewhere(parameter)
        assert kept is not None
        kept.gradient = summary._replace(norm=summary.norm * factor)


def describe_gradient(weights: torch.Tensor, gradient: torch.Tensor) -> ShownGradient:
    """Return a gradient's norm, and the indices of two weights that a step should change.

    They are the weight with the largest gradient, and the smallest weight with a gradient: an
    update that is rounded away in a large weight still shows in a small weight.
    """
    weights, gradient = weights.flatten(), gradient.flatten()
    smallest = torch.where(gradient != 0, weights.abs(), float("inf")).argmin()
    places = frozenset({int(gradient.abs().argmax()), int(smallest)})
    return ShownGradient(float(gradient.float().norm()), places)
