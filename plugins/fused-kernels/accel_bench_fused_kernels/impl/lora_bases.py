"""Frozen base layers under LoRA adapters: their matrix products, and dequantized matrices.

A layer's kind is recognized by its library's class, if the library is already imported.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WORD_BITS = 32
"""Number of bits in a packed word of GPTQ."""


@dataclass(frozen=True)
class Base:
    """Frozen linear layer under an adapter: torch's own kind, and base class of the other kinds.
    The layer's attributes are read at each call."""

    layer: Any
    """Module with the weights."""

    kind = "dense"
    """Name of the kind of base layer in evidence."""

    casts_under_autocast = True
    """True if PEFT casts the adapter's input to the adapter's dtype even under autocast."""

    @property
    def features(self) -> int:
        """Number of output features."""
        return int(self.layer.out_features)

    @property
    def readable(self) -> bool:
        """True if the layer's weight matrix can be dequantized in its current state."""
        return True

    def multiply(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs of shape (tokens, in) times the weight matrix, plus the bias."""
        return functional.linear(inputs, self.layer.weight, self.layer.bias)

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the dense weight matrix of shape (out, in), in the given dtype."""
        weight: torch.Tensor = self.layer.weight
        return weight.to(dtype)

    def backward_dtype(self, inputs: torch.dtype) -> torch.dtype | None:
        """Return the dtype of the backward's matrix products, given that of the inputs; None for
        the dtype of the outputs."""
        return None


class TransposedBase(Base):
    """Base layer that is a `Conv1D` of transformers, whose weight has shape (in, out)."""

    kind = "transposed"

    @property
    def features(self) -> int:
        """Number of output features."""
        return int(self.layer.nf)

    def multiply(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs of shape (tokens, in) times the weight matrix, plus the bias."""
        return torch.addmm(self.layer.bias, inputs, self.layer.weight)

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the dense weight matrix of shape (out, in), in the given dtype."""
        weight: torch.Tensor = self.layer.weight
        return weight.T.to(dtype)


class TensorBase(Base):
    """Base layer whose weight is a tensor subclass, such as torchao's."""

    kind = "tensor"

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the dense weight matrix of shape (out, in), in the given dtype."""
        weight: Any = self.layer.weight
        # torchao's nf4 has a `dequantize` too, which does something else.
        whole = getattr(weight, "get_original_weight", None) or weight.dequantize
        matrix: torch.Tensor = whole()
        return matrix.to(dtype)


class FourBitBase(Base):
    """Base layer that is a `Linear4bit` of bitsandbytes."""

    kind = "bnb-4bit"
    casts_under_autocast = False

    def multiply(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs of shape (tokens, in) times the weight matrix, plus the bias, in the
        inputs' dtype."""
        dtype = self.backward_dtype(inputs.dtype)
        bias = None if self.layer.bias is None else self.layer.bias.to(dtype)
        # The layer's own kernel is not under autocast.
        with torch.autocast(inputs.device.type, enabled=False):
            outputs = functional.linear(inputs.to(dtype), self.dequantize(dtype), bias)
        return outputs.to(inputs.dtype)

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the dense weight matrix of shape (out, in), in the given dtype."""
        from bitsandbytes.functional import dequantize_4bit

        weight = self.layer.weight
        matrix: torch.Tensor = dequantize_4bit(weight.data, weight.quant_state)
        return matrix.to(dtype)

    @property
    def readable(self) -> bool:
        """True unless evaluation on a CPU has packed the weights in an unsupported order."""
        return not getattr(self.layer.weight.quant_state, "packing_format_for_cpu", False)

    def backward_dtype(self, inputs: torch.dtype) -> torch.dtype:
        """Return the layer's compute dtype, or the inputs' dtype if the layer has none yet."""
        computed: torch.dtype | None = self.layer.compute_dtype
        return inputs if computed is None else computed


class EightBitBase(Base):
    """Base layer that is a `Linear8bitLt` of bitsandbytes, which quantizes its inputs too."""

    kind = "bnb-int8"
    casts_under_autocast = False

    def multiply(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs of shape (tokens, in) times the weight matrix, plus the bias, computed by
        bitsandbytes."""
        outputs: torch.Tensor = self.layer(inputs)
        return outputs

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the dense weight matrix of shape (out, in), in the given dtype."""
        state, weight = self.layer.state, self.layer.weight
        # They move from the weight to the state in the first forward.
        codes = weight.CB if state.CB is None else state.CB
        scales = weight.SCB if state.SCB is None else state.SCB
        matrix: torch.Tensor = codes.to(dtype, copy=True).mul_(scales[:, None].mul(1 / 127))
        return matrix

    def backward_dtype(self, inputs: torch.dtype) -> torch.dtype:
        """Return the dtype of the inputs, in which the backward's products are computed."""
        return inputs


class PackedBase(Base):
    """Base layer of GPTQModel in version 2 of GPTQ's format, unpacked by torch."""

    kind = "gptq"

    def multiply(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs of shape (tokens, in) times the weight matrix, plus the bias."""
        dtype, bias = compute_dtype(inputs), self.layer.bias
        bias = None if bias is None else bias.to(dtype)
        return functional.linear(inputs.to(dtype), self.dequantize(dtype), bias)

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the dense weight matrix of shape (out, in), in the given dtype."""
        return _unpack(self.layer).to(dtype).T


class TritonPackedBase(PackedBase):
    """Base layer of GPTQModel that its Triton kernel unpacks."""

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the dense weight matrix of shape (out, in), in the given dtype."""
        # The kernel's module needs a GPU to be imported.
        from gptqmodel.nn_modules.triton_utils.dequant import dequant

        layer = self.layer
        parts = layer.qweight, layer.scales, layer.qzeros, layer.g_idx
        matrix: torch.Tensor = dequant(dtype, *parts, layer.bits, WORD_BITS, 2**layer.bits - 1)
        return matrix.T


def find_base(layer: nn.Module) -> Base | str:
    """Return a wrapper of a frozen layer by its kind, or a short reason why it is unsupported."""
    bitsandbytes: Any = sys.modules.get("bitsandbytes")
    if bitsandbytes is not None and isinstance(layer, bitsandbytes.nn.Linear4bit):
        return FourBitBase(layer)
    if bitsandbytes is not None and isinstance(layer, bitsandbytes.nn.Linear8bitLt):
        trains = layer.state.has_fp16_weights
        return "the base's 8-bit weights train" if trains else EightBitBase(layer)
    if isinstance(layer, _class("torch", "TorchLinear")):
        return _packed(layer)
    weight: Any = getattr(layer, "weight", None)
    if type(layer).forward is nn.Linear.forward and isinstance(weight, torch.Tensor):
        return _linear(layer, weight)
    if type(layer).__name__ == "Conv1D" and hasattr(layer, "nf"):
        return TransposedBase(layer)
    return f"the base is a {type(layer).__name__}"


def compute_dtype(inputs: torch.Tensor) -> torch.dtype:
    """Return the dtype of matrix products with `inputs`: autocast's if enabled, else their own."""
    kind = inputs.device.type
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return inputs.dtype


def _linear(layer: nn.Module, weight: Any) -> Base | str:
    """Return a wrapper of torch's linear layer by the kind of `weight`, or why there is none."""
    if type(weight) in (torch.Tensor, nn.Parameter):
        return Base(layer) if weight.is_floating_point() else "the base's weight is of integers"
    if callable(getattr(weight, "dequantize", None)):
        return TensorBase(layer)
    return f"the base's weight is a {type(weight).__name__}"


def _packed(layer: Any) -> Base | str:
    """Return a wrapper of GPTQModel's layer by its packing and kernel, or why there is none."""
    if layer.bits not in (2, 4, 8) or layer.qzero_format() != 2 or layer.adapter:
        return "the base's packing is not known"
    if isinstance(layer, _class("tritonv2", "TritonV2Linear")):
        return TritonPackedBase(layer)
    return PackedBase(layer)


def _class(module: str, name: str) -> Any:
    """Return the layer class `name` of GPTQModel's `module`, or an empty tuple if the module is not
    imported."""
    imported = sys.modules.get(f"gptqmodel.nn_modules.qlinear.{module}")
    return getattr(imported, name, ())


def _unpack(layer: Any) -> torch.Tensor:
    """Return a packed layer's weight matrix, of shape (in, out), in the dtype of its scales."""
    words, most = layer.qweight, 2**layer.bits - 1
    shifts = torch.arange(0, WORD_BITS, layer.bits, dtype=torch.int32, device=words.device)
    codes = (words[:, None] >> shifts[:, None]).bitwise_and_(most).flatten(0, 1)
    zeros = (layer.qzeros[:, :, None] >> shifts).bitwise_and_(most).flatten(1)
    groups = layer.g_idx.long()
    matrix: torch.Tensor = codes.sub_(zeros[groups]) * layer.scales[groups]
    return matrix
