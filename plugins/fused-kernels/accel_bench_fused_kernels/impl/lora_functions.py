"""Autograd functions of frozen projections with LoRA.

They store the input once, the adapters' matrices and the low-rank products. The backward
dequantizes a quantized base again, and redraws dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from accel_bench_fused_kernels.impl.lora_dropout import Draw
from accel_bench_fused_kernels.impl.lora_products import (
    BaseProduct,
    LoraPart,
    differentiate,
    multiply_dropped,
    multiply_narrow,
    output,
    prepare_draw,
    smallest,
)


@dataclass(frozen=True)
class Activation:
    """Activation function of a gated MLP, and its derivative."""

    forward: Callable[[torch.Tensor], torch.Tensor]
    """Function that returns the activation in a new tensor."""

    backward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """Function that returns the gate's gradient from the activation's gradient and the gate."""


@dataclass(frozen=True)
class GatedMlp:
    """Three projections of a gated MLP `down(activation(gate(x)) * up(x))`, for one call."""

    gate: BaseProduct
    up: BaseProduct
    down: BaseProduct
    activation: Activation

    @property
    def all(self) -> tuple[BaseProduct, ...]:
        """Projections in the order of computation: gate, up, down."""
        return self.gate, self.up, self.down


def project(
    projections: Sequence[BaseProduct], inputs: torch.Tensor, matrices: Sequence[Any]
) -> tuple[torch.Tensor, ...]:
    """Return outputs of shape (..., out) of several projections of one input of shape (..., in).

    `matrices` are A, of shape (rank, in), and B, of shape (out, rank), of each projection in turn;
    both are None for a projection without an adapter.
    """
    flat = inputs.reshape(-1, inputs.shape[-1])
    outputs = _Projections.apply(tuple(projections), flat, *matrices)
    return tuple(result.view(*inputs.shape[:-1], result.shape[-1]) for result in outputs)


def gated_mlp(mlp: GatedMlp, inputs: torch.Tensor, matrices: Sequence[Any]) -> torch.Tensor:
    """Return a gated MLP's output for inputs of shape (..., in).

    `matrices` are A and B of gate, up and down in turn, None without an adapter. Of the
    intermediate tensors, only gate and up are stored. They are stored before the last product
    begins, so that checkpointing does not recompute this product.
    """
    flat = inputs.reshape(-1, inputs.shape[-1])
    with torch.no_grad():
        first = multiply_narrow(_parts((mlp.gate, mlp.up), matrices[:4]), flat)
        halves = [output(part, flat) for part in first]
        draw = prepare_draw(mlp.down, halves[0]) if mlp.down.dropout else None
    drawn = [*[(part.narrow, part.draw) for part in first], (None, draw)]
    standing_in = _MlpBackward.apply(mlp, drawn, flat, *halves, *matrices)
    last = [None if matrix is None else matrix.detach() for matrix in matrices[4:]]
    result: torch.Tensor = _MlpForward.apply(standing_in, mlp, draw, *halves, *last)
    return result.view(*inputs.shape[:-1], result.shape[-1])


class _Projections(torch.autograd.Function):
    """Autograd function of several projections of one input, which is stored once."""

    @staticmethod
    def forward(ctx: Any, projections: Sequence[BaseProduct], inputs: Any, *matrices: Any) -> Any:
        """Return outputs of shape (tokens, out) of each projection, for inputs of shape (tokens,
        in).

        `matrices` are A and B of each projection in turn.
        """
        parts = multiply_narrow(_parts(projections, matrices), inputs)
        ctx.projections, ctx.dtype = projections, inputs.dtype
        _save(ctx, [smallest(inputs, parts)], parts)
        ctx.set_materialize_grads(False)
        return tuple([output(part, inputs) for part in parts])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        """Return the gradients of the inputs and of each adapter's matrices, given each output's
        gradient or None."""
        _, needed, *needs = ctx.needs_input_grad
        (inputs,), parts = _saved(ctx, 1, _parts(ctx.projections, needs))
        with torch.autocast(inputs.device.type, enabled=False):
            result = differentiate(parts, inputs, gradients, needed)
        whole = None if result.inputs is None else result.inputs.to(ctx.dtype)
        return None, whole, *result.matrices


class _MlpBackward(torch.autograd.Function):
    """Autograd function with the backward of a gated MLP; its forward only stores tensors."""

    @staticmethod
    def forward(ctx: Any, mlp: GatedMlp, found: Sequence[Any], *tensors: Any) -> Any:
        """Return a placeholder of the MLP's output, which takes the memory of one element.

        `found` has a pair for each of gate, up and down: the low-rank product, and the random draw
        of dropout. `tensors` are the inputs, the outputs of gate and up, and the adapters'
        matrices.
        """
        inputs, gate, up, *matrices = tensors
        ctx.mlp, ctx.dtype = mlp, inputs.dtype
        parts = [
            part._replace(narrow=narrow, draw=draw)
            for part, (narrow, draw) in zip(_parts(mlp.all, matrices), found, strict=True)
        ]
        _save(ctx, [smallest(inputs, parts[:2]), gate, up], parts)
        # One element, however large it says it is. Its gradient is that of the answer.
        return gate.new_empty(()).expand(inputs.shape[0], mlp.down.features)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the gradients of the inputs and of each adapter's matrices, given the output's
        gradient."""
        _, _, needed, _, _, *needs = ctx.needs_input_grad
        (inputs, gate, up), (*first, last) = _saved(ctx, 3, _parts(ctx.mlp.all, needs))
        activation: Activation = ctx.mlp.activation
        with torch.autocast(inputs.device.type, enabled=False):
            activated = activation.forward(gate)
            below = needed or any(needs[:4])
            second = differentiate([last], activated * up, [gradient], below)
            halves = _differentiate_product(activation, second.inputs, activated, gate, up)
            del activated, gate, up
            result = differentiate(first, inputs, halves, needed)
        whole = None if result.inputs is None else result.inputs.to(ctx.dtype)
        return None, None, whole, None, None, *result.matrices, *second.matrices


class _MlpForward(torch.autograd.Function):
    """Autograd function with a gated MLP's forward, which passes its gradient to `_MlpBackward`."""

    @staticmethod
    def forward(ctx: Any, standing_in: Any, mlp: GatedMlp, draw: Draw | None, *tensors: Any) -> Any:
        """Return the MLP's output, of shape (tokens, out).

        `standing_in` is the placeholder through which gradients flow, and `draw` the random draw of
        the dropout of down. `tensors` are the outputs of gate and up, and the matrices of down.
        """
        gate, up, *matrices = tensors
        product = mlp.activation.forward(gate).mul_(up)
        (part,) = _parts((mlp.down,), matrices)
        if draw is None:
            (part,) = multiply_narrow([part], product)
        else:
            part = part._replace(narrow=multiply_dropped(part._replace(draw=draw), product))
        return output(part, product)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the output's gradient unchanged, as the gradient of the placeholder."""
        return gradient, *[None] * 6


def _differentiate_product(
    activation: Activation,
    gradient: torch.Tensor | None,
    activated: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the gradients of gate and up, given the gradient of `activated * up`.

    Both are None if `gradient` is None. Otherwise `gradient` and `activated` may be overwritten.
    """
    if gradient is None:
        return None, None
    gradient = gradient.to(gate.dtype)
    of_up = activated.mul_(gradient)
    return activation.backward(gradient.mul_(up), gate), of_up


def _parts(projections: Sequence[BaseProduct], matrices: Sequence[Any]) -> list[LoraPart]:
    """Return a `LoraPart` for each projection, with its matrices A and B from `matrices`."""
    return [
        LoraPart(projection, matrices[2 * place], matrices[2 * place + 1])
        for place, projection in enumerate(projections)
    ]


def _save(ctx: Any, tensors: Sequence[torch.Tensor], parts: Sequence[LoraPart]) -> None:
    """Save tensors and states of random generators for the backward.

    `tensors` are saved first, then the products, masks and matrices of `parts`. Hooks and
    checkpointing see all these tensors, but not the states.
    """
    ctx.states = [part.draw.state if part.draw is not None else None for part in parts]
    masks = [part.draw.mask if part.draw is not None else None for part in parts]
    narrow = [part.narrow for part in parts]
    matrices = [matrix for part in parts for matrix in (part.down, part.up)]
    ctx.save_for_backward(*tensors, *narrow, *masks, *matrices)


def _saved(
    ctx: Any, count: int, needs: Sequence[LoraPart]
) -> tuple[list[torch.Tensor], list[LoraPart]]:
    """Return what `_save` has saved: the first `count` tensors, and the parts.

    `needs` are the same parts, with booleans in place of A and B that tell whether gradients of
    these matrices are required.
    """
    every, size = list(ctx.saved_tensors), len(needs)
    rest = every[count:]
    narrow, masks, matrices = rest[:size], rest[size : 2 * size], rest[2 * size :]
    restored = []
    for place, part in enumerate(needs):
        state, mask = ctx.states[place], masks[place]
        draw = None if state is None and mask is None else Draw(state, mask)
        down, up = matrices[2 * place], matrices[2 * place + 1]
        asked: Any = (part.down, part.up)
        restored.append(LoraPart(part.projection, down, up, narrow[place], draw, asked))
    return every[:count], restored
