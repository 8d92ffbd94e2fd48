"""Matrix products of frozen projections with LoRA, forward and backward, without autograd.

A projection is `x W^T + b + s dropout(x) A^T B^T`. Tensors have two dimensions: (tokens, features).
Low-rank products are added in place to the large ones, and adapters of the same input are
multiplied together, which reads the input once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from accel_bench_fused_kernels.impl import lora_dropout
from accel_bench_fused_kernels.impl.lora_dropout import Draw


@dataclass(frozen=True)
class BaseProduct:
    """Frozen projection for one call, with its adapter's settings but not its matrices."""

    dequantize: Callable[[torch.dtype], torch.Tensor]
    """Function that returns the dense matrix of shape (out, in) in a dtype."""

    multiply: Callable[[torch.Tensor], torch.Tensor]
    """Function that returns inputs of shape (tokens, in) times the matrix, plus the bias."""

    features: int
    """Number of output features."""

    backward_dtype: torch.dtype | None = None
    """Dtype of the backward's products with the matrix; None for the dtype of the outputs."""

    scaling: float = 1.0
    """Scaling factor of the adapter's product."""

    dropout: float = 0.0
    """Probability of dropping an element of the adapter's input."""

    dropout_dtype: torch.dtype = torch.float32
    """Dtype of the dropped tensor, on which a GPU's random draw depends."""

    adapter_dtype: torch.dtype = torch.float32
    """Dtype of the adapter's products."""


class LoraPart(NamedTuple):
    """Projection with its adapter's matrices, and the tensors stored for its backward."""

    projection: BaseProduct
    """Frozen projection, and the adapter's settings."""

    down: torch.Tensor | None
    """Matrix A, of shape (rank, in); None without an adapter."""

    up: torch.Tensor | None
    """Matrix B, of shape (out, rank); None without an adapter."""

    narrow: torch.Tensor | None = None
    """Dropped input times A^T, of shape (tokens, rank); None before it is computed."""

    draw: Draw | None = None
    """Random draw of dropout; None without dropout."""

    needs: tuple[bool, bool] = (True, True)
    """Flags that tell if the gradients of A and of B are required."""


class Gradients(NamedTuple):
    """Gradients of projections of one input; None for gradients that are not required."""

    inputs: torch.Tensor | None
    """Gradient of the input, of shape (tokens, in)."""

    matrices: list[torch.Tensor | None]
    """Gradients of A and B of each projection in turn."""


def multiply_narrow(parts: Sequence[LoraPart], inputs: torch.Tensor) -> list[LoraPart]:
    """Return copies of the parts in which `narrow`, the product of `inputs` with A, is set.

    Dropout is drawn in the order of the parts.
    """
    results = list(parts)
    for dtype, places in _undropped(parts).items():
        chosen = [parts[place] for place in places]
        together = inputs.to(dtype) @ _stacked(chosen, dtype).T
        for place, narrow in zip(places, together.split(_ranks(chosen), 1), strict=True):
            results[place] = results[place]._replace(narrow=_own(narrow))
    for place, part in enumerate(parts):
        if part.down is not None and part.projection.dropout:
            drawn = part._replace(draw=prepare_draw(part.projection, inputs))
            results[place] = drawn._replace(narrow=multiply_dropped(drawn, inputs))
    return results


def prepare_draw(projection: BaseProduct, like: torch.Tensor) -> Draw:
    """Return the random state (or mask) of a projection's dropout for an input like `like`."""
    return lora_dropout.prepare(like.to(projection.dropout_dtype), projection.dropout)


def multiply_dropped(part: LoraPart, inputs: torch.Tensor) -> torch.Tensor:
    """Draw the part's prepared dropout, and return the product of the dropped inputs with A."""
    projection, dtype = part.projection, part.projection.adapter_dtype
    assert part.draw is not None
    left = lora_dropout.drop(inputs.to(projection.dropout_dtype), projection.dropout, part.draw)
    return left.to(dtype) @ _given(part.down).to(dtype).T


def output(part: LoraPart, inputs: torch.Tensor) -> torch.Tensor:
    """Return a projection's output of shape (tokens, out) for `inputs`, with the adapter's product
    added."""
    result, scaling = part.projection.multiply(inputs), part.projection.scaling
    if part.narrow is None:
        return result
    up = _given(part.up).to(part.narrow.dtype)
    # Dynamo of torch 2.11 cuts the gradient of an autograd function whose forward returns what an
    # operation in place returned; inductor writes in place by itself where it may.
    if not torch.compiler.is_compiling() and not _is_kept_elsewhere():
        return _add(result, part.narrow, up.T, scaling)
    if part.narrow.dtype == result.dtype:
        return torch.addmm(result, part.narrow, up.T, alpha=scaling)
    return torch.add(result, part.narrow @ up.T, alpha=scaling).to(result.dtype)


def smallest(inputs: torch.Tensor, parts: Sequence[LoraPart]) -> torch.Tensor:
    """Return the inputs to store for the backward, in the adapters' dtype if that is smaller."""
    adapted = [part.projection.adapter_dtype for part in parts if part.down is not None]
    widest = adapted[0] if adapted else inputs.dtype
    for dtype in adapted[1:]:
        widest = torch.promote_types(widest, dtype)
    return inputs.to(widest) if widest.itemsize < inputs.dtype.itemsize else inputs


def differentiate(
    parts: Sequence[LoraPart],
    inputs: torch.Tensor,
    gradients: Sequence[torch.Tensor | None],
    needed: bool,
) -> Gradients:
    """Return the gradients of the inputs and of each part's matrices, for projections of one input.

    `gradients` has each output's gradient, or None for an unused output. `needed` tells whether the
    inputs' gradient is required.
    """
    total: torch.Tensor | None = None
    of_narrow: dict[int, torch.Tensor] = {}
    results: list[torch.Tensor | None] = [None] * (2 * len(parts))
    for place, part in enumerate(parts):
        gradient = gradients[place]
        if gradient is None:
            continue
        if needed:
            total = _add_dense(total, gradient, part.projection)
        if part.up is not None:
            of_narrow[place], results[2 * place + 1] = _differentiate_up(part, inputs, gradient)
    for dtype, every in _undropped(parts).items():
        places = [place for place in every if place in of_narrow]
        rows = _differentiate_undropped(
            [parts[place] for place in places],
            inputs.to(dtype),
            [of_narrow[place] for place in places],
            total,
        )
        for place, gradient in zip(places, rows, strict=True):
            results[2 * place] = gradient
    for place, gradient in of_narrow.items():
        if parts[place].draw is not None:
            results[2 * place] = _differentiate_dropped(parts[place], inputs, gradient, total)
    owners = [matrix for part in parts for matrix in (part.down, part.up)]
    typed = zip(results, owners, strict=True)
    return Gradients(total, [g if g is None or o is None else g.to(o.dtype) for g, o in typed])


def _differentiate_up(
    part: LoraPart, inputs: torch.Tensor, gradient: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the gradient of the inputs' product with A, and the gradient of B.

    `gradient` is the gradient of the projection's output. The gradient of B is None if not
    required.
    """
    gradient, scaling = gradient.to(part.projection.adapter_dtype), part.projection.scaling
    narrowed = _scale(gradient @ _given(part.up).to(gradient.dtype), scaling)
    if not part.needs[1]:
        return narrowed, None
    narrow = _multiply_again(part, inputs) if part.narrow is None else part.narrow
    return narrowed, _scale(gradient.T @ narrow, scaling)


def _differentiate_undropped(
    parts: Sequence[LoraPart],
    inputs: torch.Tensor,
    gradients: Sequence[torch.Tensor],
    total: torch.Tensor | None,
) -> list[torch.Tensor | None]:
    """Return the gradients of A for adapters without dropout, None if not required; add the inputs'
    gradient to `total` in place.

    `gradients` are the gradients of the products with A. `total` is None if the inputs' gradient is
    not required.
    """
    asked = any([part.needs[0] for part in parts])
    if not parts or (total is None and not asked):
        return [None] * len(parts)
    together = torch.cat(list(gradients), 1) if len(parts) > 1 else gradients[0]
    if total is not None:
        _add(total, together, _stacked(parts, together.dtype))
    if not asked:
        return [None] * len(parts)
    rows = (together.T @ inputs).split(_ranks(parts))
    return [row if part.needs[0] else None for row, part in zip(rows, parts, strict=True)]


def _differentiate_dropped(
    part: LoraPart, inputs: torch.Tensor, gradient: torch.Tensor, total: torch.Tensor | None
) -> torch.Tensor | None:
    """Return the gradient of A for an adapter with dropout, or None if not required; add the
    inputs' gradient to `total` in place.

    `gradient` is the gradient of the product with A. `total` is None if the inputs' gradient is not
    required.
    """
    left, mask = _drop_again(part, inputs)
    of_down = gradient.T @ left.to(gradient.dtype) if part.needs[0] else None
    del left
    if total is not None:
        through = gradient @ _given(part.down).to(gradient.dtype)
        total.add_(through.mul_(mask), alpha=lora_dropout.scale(part.projection.dropout))
    return of_down


def _multiply_again(part: LoraPart, inputs: torch.Tensor) -> torch.Tensor:
    """Return the product of the dropped inputs with A, of shape (tokens, rank), recomputed as in
    the forward."""
    dtype = part.projection.adapter_dtype
    left = inputs if part.draw is None else _drop_again(part, inputs)[0]
    return left.to(dtype) @ _given(part.down).to(dtype).T


def _drop_again(part: LoraPart, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the dropped inputs and the mask of a part's dropout, redrawn as in the forward."""
    projection = part.projection
    assert part.draw is not None
    before = inputs.to(projection.dropout_dtype)
    return lora_dropout.drop_again(before, projection.dropout, part.draw)


def _undropped(parts: Sequence[LoraPart]) -> dict[torch.dtype, list[int]]:
    """Return the indices in `parts` of adapters without dropout, by the dtype of their products."""
    places: dict[torch.dtype, list[int]] = {}
    for place, part in enumerate(parts):
        if part.down is not None and not part.projection.dropout:
            places.setdefault(part.projection.adapter_dtype, []).append(place)
    return places


def _stacked(parts: Sequence[LoraPart], dtype: torch.dtype) -> torch.Tensor:
    """Return the matrices A of several adapters in a dtype, concatenated to shape (sum of ranks,
    in)."""
    several = [_given(part.down).to(dtype) for part in parts]
    return torch.cat(several) if len(several) > 1 else several[0]


def _ranks(parts: Sequence[LoraPart]) -> list[int]:
    return [_given(part.down).shape[0] for part in parts]


def _add_dense(
    total: torch.Tensor | None, gradient: torch.Tensor, projection: BaseProduct
) -> torch.Tensor:
    """Return `total` (None: 0) plus the input's gradient through a projection's frozen matrix.

    `gradient` is the gradient of the projection's output. A given `total` is changed in place.
    """
    dtype = projection.backward_dtype or gradient.dtype
    matrix, gradient = projection.dequantize(dtype), gradient.to(dtype)
    return gradient @ matrix if total is None else _add(total, gradient, matrix)


def _add(
    total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, factor: float = 1.0
) -> torch.Tensor:
    """Add `factor` times the product of `left` and `right` to `total` in place; return `total`."""
    if left.dtype == total.dtype:
        return total.addmm_(left, right.to(total.dtype), alpha=factor)
    return total.add_(left @ right, alpha=factor)


def _own(narrow: torch.Tensor) -> torch.Tensor:
    """Return `narrow`, copied in compiled code, where a view cannot be saved for the backward."""
    return narrow.clone() if torch.compiler.is_compiling() else narrow


def _is_kept_elsewhere() -> bool:
    """Return whether a torch dispatch mode is active, such as that of selective checkpointing.

    Such a mode keeps matrix products, which must not change afterwards.
    """
    return torch._C._len_torch_dispatch_stack() > 0


def _scale(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    return tensor if factor == 1 else tensor.mul_(factor)


def _given(matrix: torch.Tensor | None) -> torch.Tensor:
    """Return an adapter's matrix, asserting that it is not None."""
    assert matrix is not None
    return matrix
