"""Trainable layers that hold GPTQModel's packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.nn_modules.qlinear.tritonv2 import TritonV2Linear
from gptqmodel.quantization import FORMAT
from torch import nn

from accel_bench_gptq.checkpoint import GPTQSettings
from accel_bench_gptq.packing import Packed, unpack

BUFFERS = Packed._fields
"""Names of a layer's packed tensors."""


class DequantizedMatmul(torch.autograd.Function):
    """Product of inputs and a packed matrix, which the backward pass unpacks a second time."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, bits: int, triton: bool, *packed: Any) -> Any:
        """Return `inputs`, of shape (tokens, inputs), times the unpacked matrix: (tokens, outputs).

        `packed` are the tensors of `Packed` with `bits` per weight. With `triton` a Triton kernel
        unpacks them, else torch.
        """
        ctx.save_for_backward(*packed)
        ctx.bits, ctx.triton = bits, triton
        return inputs @ dequantize(packed, bits, triton, inputs.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Return the gradient of the inputs, and None for arguments without a gradient."""
        (gradient,) = gradients
        matrix = dequantize(ctx.saved_tensors, ctx.bits, ctx.triton, gradient.dtype)
        return gradient @ matrix.T, *[None] * (2 + len(BUFFERS))


def dequantize(
    packed: Sequence[torch.Tensor], bits: int, triton: bool, dtype: torch.dtype
) -> torch.Tensor:
    """Return the unpacked matrix, of shape (inputs, outputs).

    `packed` are the tensors of `Packed`. With `triton` GPTQModel's Triton kernel unpacks them, else
    torch.
    """
    tensors = Packed(*packed)
    if not triton:
        return unpack(tensors, bits, dtype)
    # The kernel's module needs a GPU to be imported.
    from gptqmodel.nn_modules.triton_utils.dequant import dequant

    qweight, qzeros, scales, g_idx = tensors
    matrix: torch.Tensor = dequant(dtype, qweight, scales, qzeros, g_idx, bits, 32, 2**bits - 1)
    return matrix


class TrainableForward:
    """Mixin for packed layers: a forward pass that can be trained, also after an evaluation.

    GPTQModel's own layers compile their unpacking one by one in the first steps. If they choose a
    kernel automatically, they keep the kernel of an evaluation when training continues.
    """

    bits: int
    out_features: int
    bias: torch.Tensor | None

    triton = False
    """True if a Triton kernel unpacks the matrix, false if torch does."""

    unpacks_again = True
    """True to unpack the matrix again in the backward pass; false to store it unpacked."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return `inputs`, of shape (..., in_features), times the packed matrix, plus the bias."""
        flat = inputs.reshape(-1, inputs.shape[-1])
        packed = [getattr(self, name) for name in BUFFERS]
        if self.unpacks_again:
            output = DequantizedMatmul.apply(flat, self.bits, self.triton, *packed)
        else:
            output = flat @ dequantize(packed, self.bits, self.triton, inputs.dtype)
        output = output if self.bias is None else output + self.bias.to(output.dtype)
        return output.reshape(*inputs.shape[:-1], self.out_features)


class _LibraryLayer(TrainableForward):
    """Base class of packed layers that keeps GPTQModel from compiling and verifying them."""

    optimized: bool

    @classmethod
    def verify_supports_params(cls) -> None:
        """Skip GPTQModel's check of parameters, which the parent class has passed already."""

    def optimize(self, *_: Any, **__: Any) -> None:
        """Mark the layer as optimized without compiling."""
        self.optimized = True

    @property
    def weight(self) -> Any:
        """Raise AttributeError: GPTQModel's placeholder would be mistaken for a weight tensor."""
        raise AttributeError("a packed layer has no weight")


class GptqTorchLinear(_LibraryLayer, TorchLinear):
    """Packed layer that torch unpacks, on any device."""


class GptqTritonLinear(_LibraryLayer, TritonV2Linear):
    """Packed layer that a Triton kernel unpacks, on a GPU."""

    triton = True


class PackedMatrix(TrainableForward, nn.Module):
    """Packed matrix of an expert; adapters skip it, since it is not a linear layer."""

    def __init__(self, packed: Packed, bits: int, triton: bool) -> None:
        super().__init__()
        self.bits, self.triton, self.bias = bits, triton, None
        self.in_features, self.out_features = len(packed.g_idx), packed.scales.shape[1]
        for name, tensor in packed._asdict().items():
            self.register_buffer(name, tensor)


class PackedExpert(nn.Module):
    """One expert: two packed matrices with a gated activation in between."""

    def __init__(self, gate_up_proj: PackedMatrix, down_proj: PackedMatrix, act_fn: Any) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj, self.act_fn = gate_up_proj, down_proj, act_fn

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the expert's output for tokens of shape (tokens, hidden size)."""
        gate, up = self.gate_up_proj(tokens).chunk(2, dim=-1)
        output: torch.Tensor = self.down_proj(self.act_fn(gate) * up)
        return output


class PackedExperts(nn.ModuleList):
    """Experts that the model stores as three-dimensional tensors, each packed separately."""

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted sum of the outputs of each token's experts.

        `hidden_states` has shape (tokens, hidden size). The indices and weights of the chosen
        experts have shape (tokens, experts per token).
        """
        output = torch.zeros_like(hidden_states)
        for number in top_k_index.unique().tolist():
            tokens, places = torch.where(top_k_index == number)
            part = self[number](hidden_states[tokens]) * top_k_weights[tokens, places, None]
            output = output.index_add(0, tokens, part.to(output.dtype))
        return output


def make_layer(
    packed: Packed, bias: torch.Tensor | None, triton: bool, settings: GPTQSettings
) -> Any:
    """Return a frozen layer of GPTQModel that holds the packed tensors.

    With `triton` a Triton kernel unpacks them, else torch. Raises NotImplementedError for sizes or
    settings that the kernel does not support.
    """
    layer: Any = (GptqTritonLinear if triton else GptqTorchLinear)(
        **settings.model_dump(),
        in_features=len(packed.g_idx),
        out_features=packed.scales.shape[1],
        bias=False,
        register_buffers=False,
        format=FORMAT.GPTQ_V2,
    )
    for name, tensor in packed._asdict().items():
        layer.register_buffer(name, tensor)
    if bias is None:
        layer.bias = None
    else:
        layer.register_buffer("bias", bias.detach())
    layer.qzero_format(format=2)
    layer.post_init()
    return layer
