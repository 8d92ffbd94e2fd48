"""PEFT's LoRA layers over frozen base layers, and equal dense layers in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn

from accel_bench_op.benchmarks.impl.seeded import SPREAD

ADAPTER = "default"
"""Name of the LoRA adapter in PEFT's layers."""

GROUP = 32
"""Number of inputs that share a scale in GPTQ's layer."""

WORD_BITS = 32
"""Bits of a packed word of GPTQ."""

OUTLIERS = 6.0
"""Default magnitude of outliers, from the paper of LLM.int8."""


class ProjectionModule(nn.Module):
    """Module with a layer named `proj`, which PEFT adapts."""

    def __init__(self, proj: nn.Module) -> None:
        super().__init__()
        self.proj = proj

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the projection of inputs of shape (..., in)."""
        return self.proj(x)


def adapted(base: str, inputs: int, outputs: int, rank: int) -> ProjectionModule:
    """Return a frozen linear layer with a nonzero LoRA adapter of the rank `rank`.

    `base` is the kind of the layer in `BASES`. `inputs` and `outputs` are numbers of features.
    """
    module: Any = ProjectionModule(BASES[base](inputs, outputs).requires_grad_(False))
    module.is_loaded_in_4bit, module.is_loaded_in_8bit = base == "nf4", base == "int8"
    # A packed layer has no parameter that would say where it is.
    module.hf_device_map = {"": torch.get_default_device()}
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["proj"])
    inject_adapter_in_model(config, module, adapter_name=ADAPTER)
    for matrix in (module.proj.lora_A[ADAPTER].weight, module.proj.lora_B[ADAPTER].weight):
        nn.init.normal_(matrix.requires_grad_(True), std=rank**-0.5)
    return module.train()


def in_float64(module: Any, base: str) -> ProjectionModule:
    """Return a float64 copy of an adapted layer, with a dense base that has equal weights.

    `base` is the kind of the original base in `BASES`.
    """
    layer = module.proj
    matrix = DEQUANTIZE[base](layer.get_base_layer()).double()
    outputs, inputs = matrix.shape
    dense = nn.Linear(inputs, outputs, bias=False, device=matrix.device, dtype=torch.float64)
    dense.weight = nn.Parameter(matrix, requires_grad=False)
    doubled: Any = ProjectionModule(dense)
    rank = layer.r[ADAPTER]
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["proj"])
    inject_adapter_in_model(config, doubled, adapter_name=ADAPTER)
    for ours, theirs in ((doubled.proj.lora_A, layer.lora_A), (doubled.proj.lora_B, layer.lora_B)):
        ours[ADAPTER].weight = nn.Parameter(theirs[ADAPTER].weight.detach().double())
    return doubled.train()


def _linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=SPREAD)
    return layer


def _nf4(inputs: int, outputs: int) -> nn.Module:
    """Return bitsandbytes' 4-bit layer, quantized on the device."""
    import bitsandbytes

    weight = _linear(inputs, outputs).weight.detach()
    made: nn.Module = bitsandbytes.nn.Linear4bit(
        inputs, outputs, bias=False, compute_dtype=weight.dtype, quant_type="nf4"
    )
    made.weight = bitsandbytes.nn.Params4bit(
        weight, requires_grad=False, quant_type="nf4", module=made
    ).to(weight.device)
    return made


def _int8(inputs: int, outputs: int) -> nn.Module:
    """Return bitsandbytes' 8-bit layer."""
    import bitsandbytes

    made: nn.Module = bitsandbytes.nn.Linear8bitLt(
        inputs, outputs, bias=False, has_fp16_weights=False, threshold=OUTLIERS
    )
    weight = _linear(inputs, outputs).weight.detach().half()
    codes, scales, _ = bitsandbytes.functional.int8_vectorwise_quant(weight)
    made.weight = bitsandbytes.nn.Int8Params(
        codes, requires_grad=False, has_fp16_weights=False, CB=codes, SCB=scales
    )
    # Else the first forward would do it, and take them from a copy that shares the weight.
    made.init_8bit_state()
    return made


def _gptq(inputs: int, outputs: int) -> nn.Module:
    """Return GPTQModel's torch layer with random 4-bit weights of about the usual magnitude."""
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.quantization import FORMAT

    made: Any = TorchLinear(
        bits=4,
        group_size=GROUP,
        sym=True,
        desc_act=False,
        in_features=inputs,
        out_features=outputs,
        bias=False,
        pack_dtype=torch.int32,
        format=FORMAT.GPTQ_V2,
        register_buffers=True,
    )
    for name, tensor in _packed(inputs, outputs).items():
        setattr(made, name, tensor)
    made.qzero_format(format=2)
    # It would compile its unpacking in the first call, in every layer.
    made.optimize = lambda *_, **__: None
    made.post_init()
    return made.train()


def _packed(inputs: int, outputs: int) -> dict[str, torch.Tensor]:
    """Return GPTQ's packed tensors (format 2) by name: random codes 0 to 15, zero points 8."""
    words, groups = inputs * 4 // WORD_BITS, inputs // GROUP
    limit = 2**31
    # Codes are uniform, so their standard deviation is a square root of (16 * 16 - 1) / 12.
    step = SPREAD / (255 / 12) ** 0.5
    return {
        "qweight": torch.randint(-limit, limit - 1, (words, outputs)).to(torch.int32),
        "qzeros": torch.full((groups, outputs * 4 // WORD_BITS), 0x88888888 - 2**32).to(
            torch.int32
        ),
        "scales": (step * (0.75 + 0.5 * torch.rand(groups, outputs))).half(),
        "g_idx": (torch.arange(inputs) // GROUP).to(torch.int32),
    }


def _from_nf4(layer: Any) -> torch.Tensor:
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(layer.weight.data, layer.weight.quant_state)


def _from_int8(layer: Any) -> torch.Tensor:
    return layer.state.CB.double() * layer.state.SCB[:, None].double() / 127


def _from_gptq(layer: Any) -> torch.Tensor:
    shifts = torch.arange(0, WORD_BITS, 4, dtype=torch.int32, device=layer.qweight.device)
    codes = ((layer.qweight[:, None] >> shifts[:, None]) & 15).flatten(0, 1)
    matrix: torch.Tensor = (codes - 8).double() * layer.scales[layer.g_idx.long()].double()
    return matrix.T.contiguous()


BASES: dict[str, Callable[[int, int], nn.Module]] = {
    "dense": _linear,
    "nf4": _nf4,
    "int8": _int8,
    "gptq": _gptq,
}
"""Constructors of base layers by kind, from the numbers of input and output features."""

DEQUANTIZE: dict[str, Callable[[Any], torch.Tensor]] = {
    "dense": lambda layer: layer.weight.detach(),
    "nf4": _from_nf4,
    "int8": _from_int8,
    "gptq": _from_gptq,
}
"""Functions that return a base layer's matrix of shape (out, in), by kind."""
