"""Parameters that a library keeps and updates in tensors of its own.

DeepSpeed updates parts of long float32 tensors, frees gradients before the optimizer steps, and
leaves placeholders without elements in the model. An engine that trains so declares once how each
parameter is read (`keep_elsewhere`), and shows the gradients of its first step (`show_gradients`):
core reads updates, gradients and sizes from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

ATTRIBUTE = "accel_bench_kept_elsewhere"


class ShownGradient(NamedTuple):
    """What is known of a gradient that is gone when the optimizer steps."""

    norm: float
    """Its L2 norm over all elements."""

    places: frozenset[int]
    """Elements of the parameter that the step should change."""


@dataclass
class KeptElsewhere:
    """How one parameter is read."""

    shape: torch.Size
    """Shape of the whole parameter."""

    dtype: torch.dtype
    """Dtype in which it is updated, or stored where it does not train."""

    placement: str
    """How ranks divide it, in words."""

    held_elements: int
    """Elements of the weight that this rank holds between two steps."""

    ranks: int
    """Ranks that share it."""

    read: Callable[[], torch.Tensor]
    """Returns the whole parameter as it is updated; all ranks call it together."""

    gradient: ShownGradient | None = None
    """Gradient of the first step."""


def keep_elsewhere(parameter: torch.Tensor, kept: KeptElsewhere) -> None:
    """Declare how a parameter is read."""
    setattr(parameter, ATTRIBUTE, kept)


def kept_elsewhere(parameter: torch.Tensor) -> KeptElsewhere | None:
    """Return how a parameter is read; None for one that holds its own values."""
    found: KeptElsewhere | None = getattr(parameter, ATTRIBUTE, None)
    return found


def shape_of(parameter: torch.Tensor) -> torch.Size:
    """Return the shape of a whole parameter, also of a placeholder."""
    kept = kept_elsewhere(parameter)
    return parameter.shape if kept is None else kept.shape


def elements_of(parameter: torch.Tensor) -> int:
    """Return the number of elements of a whole parameter, also of a placeholder."""
    return shape_of(parameter).numel()


def dtype_of(parameter: torch.Tensor) -> torch.dtype:
    """Return the dtype in which a parameter is updated."""
    kept = kept_elsewhere(parameter)
    return parameter.dtype if kept is None else kept.dtype


def show_gradients(
    gradients: Mapping[torch.Tensor, Callable[[], torch.Tensor | None]], most: float | None
) -> None:
    """Keep what core reads of whole gradients, each freed before the next is read.

    Called on all ranks together, before the first step; `most` is the norm to which the engine
    clips all of them together, in the step itself.
    """
    shown: dict[torch.Tensor, ShownGradient] = {}
    for parameter, read in gradients.items():
        kept, gradient = kept_elsewhere(parameter), read()
        if kept is not None and gradient is not None:
            shown[parameter] = describe_gradient(kept.read(), gradient)
    total = sum(one.norm**2 for one in shown.values()) ** 0.5
    factor = 1.0 if most is None else min(1.0, most / (total + 1e-6))
    for parameter, one in shown.items():
        kept = kept_elsewhere(parameter)
        assert kept is not None
        kept.gradient = one._replace(norm=one.norm * factor)


def describe_gradient(weights: torch.Tensor, gradient: torch.Tensor) -> ShownGradient:
    """Return the norm of a gradient, and two places: of its largest element, and of the smallest
    weight that has one.

    An update that is rounded away beside a large weight still shows in a small one.
    """
    weights, gradient = weights.flatten(), gradient.flatten()
    smallest = torch.where(gradient != 0, weights.abs(), float("inf")).argmin()
    places = frozenset({int(gradient.abs().argmax()), int(smallest)})
    return ShownGradient(float(gradient.float().norm()), places)
