"""Quantization of linear layers while loading, preparation of the frozen model, and optimizers."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import bitsandbytes
import torch
import transformers
from bitsandbytes.nn.parametrize import replace_parameter_4bit
from peft import prepare_model_for_kbit_training
from torch import nn
from transformers import BitsAndBytesConfig
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.auto import AutoHfQuantizer

from accel_bench import ModelUse, Run, architecture_of, describe_quantized, load_base_model
from accel_bench.errors import InvalidRunError, PluginError, ScenarioError
from accel_bench.modeling.tensors import dtype_name, elements_by_dtype
from accel_bench_bitsandbytes.flops import register_flops

if TYPE_CHECKING:
    from accel_bench_bitsandbytes import BitsAndBytesOptions

DEFAULT_THRESHOLD = 6.0
"""Default magnitude from which an input is an outlier, from the paper of LLM.int8."""

OPTIMIZERS = {
    "adamw_8bit": "AdamW8bit",
    "paged_adamw_8bit": "PagedAdamW8bit",
    "paged_adamw_32bit": "PagedAdamW32bit",
    "lion_8bit": "Lion8bit",
    "paged_lion_8bit": "PagedLion8bit",
}
"""Class names in `bitsandbytes.optim` by the optimizers' common names."""


class BitsAndBytesBase:
    """A run's base model, which is quantized module by module while loading, then frozen."""

    def __init__(self, run: Run, options: BitsAndBytesOptions) -> None:
        """Load, quantize and freeze the model.

        Raises ScenarioError if no linear layer of the model's blocks can be quantized, and the
        errors of `load_base_model`.
        """
        register_flops()
        self.quantize_seconds = 0.0
        """Wall-clock seconds of quantizing, with the device synchronized."""

        self._options = options
        self._device = torch.device(str(run.device))
        self._dtype: torch.dtype = getattr(torch, options.compute_dtype or run.scenario.model.dtype)
        self._kept = kept_in_float32(run.scenario.model)
        self._linear: dict[str, nn.Module] = {}
        self._experts: dict[str, nn.Module] = {}
        self._elements: Counter[str] = Counter()
        self.model: Any = load_base_model(run, replace=self._replace)
        """The quantized model, an instance of transformers' class."""

        if not self._linear and not self._experts:
            raise ScenarioError(
                f"bitsandbytes: the blocks of {type(self.model).__name__} hold no linear layer in "
                "full precision; take the plugin out of the stack, or choose a model with some"
            )
        self._announce()
        upcast = prepare(self.model, options.prepare)
        self.evidence: dict[str, Any] = {**self._describe(), **upcast}
        """JSON evidence of the quantized modules and their format."""

    def _replace(self, name: str, module: nn.Module) -> nn.Module | None:
        """Return the quantized form of a module in a decoder block; None to leave it unquantized.

        `name` is the module's dotted name in the model.
        """
        own = module.parameters(recurse=False)
        elements = sum(parameter.numel() for parameter in own if parameter.dim() > 1)
        self._elements["all"] += elements
        if name.rpartition(".")[2] in self._kept:
            return None
        started = self._now()
        made: nn.Module | None = None
        if type(module) is nn.Linear or isinstance(module, Conv1D):
            made = self._linear[name] = self._quantized(module)
        elif self._options.quant_type != "int8" and holds_experts(module):
            self._refuse_for_experts(name)
            quantize_experts(module, self._options)
            self._experts[name] = made = module
        if made is not None:
            self._elements["quantized"] += elements
            self._elements["experts"] += elements if name in self._experts else 0
            self.quantize_seconds += self._now() - started
        return made

    def _refuse_for_experts(self, name: str) -> None:
        """Raise PluginError if an option is set that quantized experts do not support.

        `name` is the dotted name of the experts' module, for the message.
        """
        for option in ("quant_storage", "compute_dtype"):
            if option in self._options.model_fields_set:
                raise PluginError(
                    f"bitsandbytes: {option} does not reach the experts of {name}, which are kept "
                    "as uint8 and computed in the dtype of their input; leave it out"
                )

    def _quantized(self, module: Any) -> nn.Module:
        """Return the quantized form of a linear layer, or of GPT-2's transposed `Conv1D`."""
        weight = module.weight.detach()
        weight = weight.T.contiguous() if isinstance(module, Conv1D) else weight
        make = linear_8bit if self._options.quant_type == "int8" else linear_4bit
        made = make(weight, self._options, self._dtype)
        # Transformers looks here when it loads what it has saved.
        made.source_cls = type(module)
        if module.bias is not None:
            made.bias = nn.Parameter(module.bias.detach(), requires_grad=False)
        return made

    def _now(self) -> float:
        """Synchronize with the device, and return the host's clock in seconds."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def _announce(self) -> None:
        left = [
            name
            for name, module in self.model.named_modules()
            if isinstance(module, nn.Linear | Conv1D) and name not in self._linear
        ]
        config = quantization_config(self._options, self._dtype, left)
        quantizer = AutoHfQuantizer.from_config(config, pre_quantized=False)
        self.model.hf_quantizer = quantizer
        self.model.quantization_method = config.quant_method
        quantizer.postprocess_model(self.model)

    def _describe(self) -> dict[str, Any]:
        """Return JSON evidence of the quantized modules, before an adapter is added."""
        options, counts = self._options, self._elements
        four_bits = options.quant_type != "int8"
        evidence = describe_quantized(
            self.model,
            {**self._linear, **self._experts},
            bits=4 if four_bits else 8,
            kernel=self._kernel(),
            elements=counts["quantized"],
        )
        return {
            **evidence,
            "quant_type": options.quant_type,
            "double_quant": options.double_quant if four_bits else None,
            "quant_storage": options.quant_storage if four_bits else None,
            "compute_dtype": dtype_name(self._dtype) if four_bits else None,
            "llm_int8_threshold": None if four_bits else threshold_of(options),
            "quantized_share_of_blocks": counts["quantized"] / counts["all"],
            "quantized_expert_modules": len(self._experts),
            "quantized_expert_elements": counts["experts"],
        }

    def _kernel(self) -> str:
        """Return the name of the kernel that multiplies with quantized weights in training."""
        if self._options.quant_type != "int8":
            return "MatMul4Bit: gemm_4bit"
        if self._device.type == "cpu":
            return "MatMul8bitFp: dequantize, then linear"
        mixed = threshold_of(self._options) > 0
        return f"MatMul8bitLt: int8_{'mixed_' if mixed else ''}scaled_mm"


def kept_in_float32(use: ModelUse) -> frozenset[str]:
    """Return the names of the modules that transformers keeps in float32 in the model of `use`.

    T5 casts the inputs of its layers `wo` to the dtype of their weight. Packed weights are
    integers, so this cast would silently destroy the values and their gradients.
    """
    kind = getattr(transformers, architecture_of(use) or "", None)
    return frozenset(getattr(kind, "_keep_in_fp32_modules", None) or ())


def linear_4bit(
    weight: torch.Tensor, options: BitsAndBytesOptions, compute_dtype: torch.dtype
) -> Any:
    """Return a layer that stores `weight`, of shape (out, in), in 4-bit blocks of 64 values.

    It multiplies in `compute_dtype`.
    """
    rows, columns = weight.shape
    storage = getattr(torch, options.quant_storage)
    made: Any = bitsandbytes.nn.Linear4bit(
        columns,
        rows,
        bias=False,
        compute_dtype=compute_dtype,
        compress_statistics=options.double_quant,
        quant_type=options.quant_type,
        quant_storage=storage,
        device="meta",
    )
    # The parameter quantizes itself on its way to a device, that on which it is already included.
    made.weight = bitsandbytes.nn.Params4bit(
        weight,
        requires_grad=False,
        compress_statistics=options.double_quant,
        quant_type=options.quant_type,
        quant_storage=storage,
        module=made,
    ).to(weight.device)
    if weight.device.type == "cpu":
        _check_restored(made.weight)
    return made


def _check_restored(packed: Any) -> None:
    """Raise PluginError if the CPU kernel dequantizes the packed weight incorrectly.

    On processors with AVX-512, bitsandbytes 0.50 reads the wrong scales if a row ends within a
    block; the same numbers in one long row are dequantized correctly.
    """
    dequantize = bitsandbytes.functional.dequantize_4bit
    flat = copy.copy(packed.quant_state)
    flat.shape = torch.Size([packed.quant_state.shape.numel()])
    restored = dequantize(packed.data, packed.quant_state).flatten()
    if not torch.equal(restored, dequantize(packed.data, flat).flatten()):
        columns, block = packed.quant_state.shape[-1], packed.quant_state.blocksize
        raise PluginError(
            f"bitsandbytes: on this processor a matrix with rows of {columns} comes back wrong "
            f"from 4 bits, since that is no multiple of its blocks of {block}; choose sizes that "
            f"are (model.overrides), quant_type: int8, or a GPU"
        )


def linear_8bit(
    weight: torch.Tensor, options: BitsAndBytesOptions, compute_dtype: torch.dtype
) -> Any:
    """Return a layer that stores `weight`, of shape (out, in), as int8, with a scale for each row.

    It multiplies in the dtype of its input: `compute_dtype` has no effect.
    """
    rows, columns = weight.shape
    made: Any = bitsandbytes.nn.Linear8bitLt(
        columns,
        rows,
        bias=False,
        has_fp16_weights=False,
        threshold=threshold_of(options),
        device="meta",
    )
    # The parameter would quantize itself on its way from the host only, and the weight is on the
    # device already.
    integers, scales, _ = bitsandbytes.functional.int8_vectorwise_quant(weight.half())
    made.weight = bitsandbytes.nn.Int8Params(
        integers, requires_grad=False, has_fp16_weights=False, CB=integers, SCB=scales
    )
    return made


def holds_experts(module: nn.Module) -> bool:
    """Return whether a module stores the weights of experts as three-dimensional tensors."""
    large = [parameter for parameter in module.parameters(recurse=False) if parameter.dim() > 1]
    convolution = isinstance(module, nn.Conv1d)
    return bool(large) and all(weight.dim() == 3 for weight in large) and not convolution


def quantize_experts(module: nn.Module, options: BitsAndBytesOptions) -> None:
    """Quantize the expert matrices of a module to 4 bits in place.

    The module's forward pass dequantizes them in full.
    """
    names = [name for name, weight in module.named_parameters(recurse=False) if weight.dim() == 3]
    for name in names:
        replace_parameter_4bit(
            module,
            name,
            compress_statistics=options.double_quant,
            quant_type=options.quant_type,
        )
        kept: Any = module.parametrizations[name]
        # So that the scales are found, and counted, where those of linear layers are.
        kept.original.quant_state = kept[0].quant_state


def quantization_config(
    options: BitsAndBytesOptions, compute_dtype: torch.dtype, left: list[str]
) -> BitsAndBytesConfig:
    """Return transformers' configuration for the options; `left` names the unquantized modules."""
    if options.quant_type == "int8":
        return BitsAndBytesConfig(
            load_in_8bit=True,
            llm_int8_threshold=threshold_of(options),
            llm_int8_skip_modules=left,
        )
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=options.quant_type,
        bnb_4bit_use_double_quant=options.double_quant,
        bnb_4bit_quant_storage=options.quant_storage,
        bnb_4bit_compute_dtype=compute_dtype,
        llm_int8_skip_modules=left,
    )


def threshold_of(options: BitsAndBytesOptions) -> float:
    """Return the magnitude from which an int8 layer's input is an outlier; 0 disables outliers."""
    given = options.llm_int8_threshold
    return DEFAULT_THRESHOLD if given is None else given


def prepare(model: Any, how: str) -> dict[str, Any]:
    """Freeze a quantized model; return JSON evidence of the weights whose dtype was changed.

    `how` is the option `prepare`: `fast` or `peft`.
    """
    before = {name: parameter.dtype for name, parameter in model.named_parameters()}
    if how == "peft":
        # Checkpointing is switched on by core, once, in the same way for every stack.
        prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    else:
        model.requires_grad_(False)
    upcast = {n: p for n, p in model.named_parameters() if p.dtype != before[n]}
    return {
        "prepare": how,
        "upcast_modules": dict(Counter(name.split(".")[-2:][0] for name in upcast)),
        "upcast_elements": sum(parameter.numel() for parameter in upcast.values()),
    }


def build_optimizer(
    name: str,
    parameters: Iterable[nn.Parameter],
    learning_rate: float,
    arguments: dict[str, Any],
) -> Any:
    """Return the named bitsandbytes optimizer over the parameters that require a gradient.

    `name` is a key of `OPTIMIZERS`, and `arguments` are its further keyword arguments. Raises
    InvalidRunError if no parameter requires a gradient.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        raise InvalidRunError(["no parameter requires a gradient"])
    kind = getattr(bitsandbytes.optim, OPTIMIZERS[name])
    return kind(trained, lr=learning_rate, **arguments)


def describe_optimizer(optimizer: Any) -> dict[str, Any]:
    """Return JSON evidence of an optimizer: class, paging, elements and bytes of its state."""
    states = optimizer.state.values()
    # The code books are shared by all states.
    kept = {id(v): v for state in states for v in state.values() if isinstance(v, torch.Tensor)}
    return {
        "class": type(optimizer).__name__,
        "paged": bool(optimizer.is_paged),
        "state_elements": elements_by_dtype(kept.values()),
        "state_bytes": sum(tensor.numel() * tensor.element_size() for tensor in kept.values()),
    }


def library_version() -> str:
    """Return the version of bitsandbytes."""
    return str(bitsandbytes.__version__)
