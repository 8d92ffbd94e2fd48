"""Quantization of linear layers on loading, and conversion to float8 training."""

from __future__ import annotations

import math
import time
from collections import Counter
from importlib import metadata
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torchao import quantization
from torchao.float8 import Float8LinearConfig, _inductor_patch, convert_to_float8_training
from torchao.float8.float8_linear import Float8Linear

from accel_bench import Run, describe_quantized, load_base_model
from accel_bench.errors import PluginError, ScenarioError
from accel_bench.modeling.blocks import adapter_modules

if TYPE_CHECKING:
    from accel_bench_torchao import TorchAOOptions

LARGEST_SCALER_BLOCK = 256
"""Number of nf4 scales that share a second-level scale, torchao's default."""

FLOAT8_MULTIPLE = 16
"""Divisor of both dimensions of a matrix that float8 products require."""

PATCHED = ("minimum", "maximum")
"""Functions of inductor's code generation that torchao replaces in a conversion."""


class TorchAOBase:
    """A base model, with the linear layers of its decoder quantized while loading."""

    def __init__(self, options: TorchAOOptions) -> None:
        self.options = options
        self.seconds = 0.0
        """Wall-clock seconds of quantizing, including the device's work."""

        self.evidence: dict[str, Any] = {}
        """JSON evidence of the quantized layers in the loaded model."""

        self._config = configuration(options)
        self._quantized: dict[str, nn.Module] = {}
        self._left: Counter[str] = Counter()

    def load(self, run: Run) -> Any:
        """Load and quantize the run's model, and return it on its device.

        Raises ScenarioError if no layer can be quantized, PluginError if a layer can only be
        quantized in part.
        """
        model = load_base_model(run, self._replace)
        if not self._quantized:
            raise ScenarioError(
                f"torchao: no block of {type(model).__name__} holds a linear layer, but "
                f"{', '.join(self._left)}; take the plugin out of the stack"
            )
        self.evidence = {
            **describe_quantized(model, self._quantized, self.options.bits_of_base, self._kernel()),
            "configuration": type(self._config).__name__ if self._config else "NF4Tensor",
            "weight_class": type(next(iter(self._quantized.values())).weight).__name__,
            "group_size": self.options.group_of_base,
            "left_in_full_precision": dict(self._left),
            "torchao": metadata.version("torchao"),
        }
        return model

    def spare_replicas(self, model: nn.Module) -> None:
        """Exclude quantized weights from DDP: they cannot be broadcast, and are equal anyway."""
        names = [
            name
            for name, parameter in model.named_parameters()
            if hasattr(parameter, "__tensor_flatten__")
        ]
        nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            model, names
        )

    def _replace(self, name: str, module: nn.Module) -> nn.Module | None:
        """Quantize a linear layer and return it; return None for any other module.

        `name` is the module's dotted name in the model.
        """
        if type(module).__name__ == "Conv1D":
            module = straightened(module)
        if not isinstance(module, nn.Linear):
            if any(parameter.dim() > 1 for parameter in module.parameters(recurse=False)):
                self._left[type(module).__name__] += 1
            return None
        self._check_group(name, module)
        started = time.perf_counter()
        if self._config is None:
            quantize_nf4(name, module, self.options.group_of_base or 1)
        else:
            quantization.quantize_(module, self._config)
        if module.weight.device.type == "cuda":
            torch.cuda.synchronize(module.weight.device)
        self.seconds += time.perf_counter() - started
        self._quantized[name] = module
        return module

    def _check_group(self, name: str, module: nn.Linear) -> None:
        group = self.options.group_of_base
        size = module.weight.numel() if self._config is None else module.in_features
        if group and size % group:
            what = "weights" if self._config is None else "inputs"
            raise PluginError(
                f"torchao: group_size {group} does not divide the {size} {what} of {name}; "
                "choose one that divides those of every layer"
            )

    def _kernel(self) -> str:
        """Return the operations that multiply with quantized weights, such as `dequantize, mm`.

        They are reported in place of a kernel, since torchao has none of its own for these weights.
        """
        if self._config is None:
            return "dequantize, mm; once more in backward"
        whole = self.options.base == "int8" and self.options.group_of_base is None
        return "cast, mm, scale" if whole else "dequantize, mm"


class Float8Training:
    """Linear layers of one model, converted to torchao's float8 layers until `undo`."""

    def __init__(self, options: TorchAOOptions) -> None:
        self.options = options
        self.evidence: dict[str, Any] = {}
        """JSON evidence of the converted layers."""

        self._swapped: list[tuple[nn.Module, str, nn.Module]] = []
        self._codegen: dict[str, Any] = {}

    def convert(self, model: nn.Module) -> None:
        """Convert the model's linear layers, except the output layer and adapters.

        Raises PluginError if no layer has dimensions that float8 supports.
        """
        linears, fitting = own_linears(model), {}
        for name, module in linears.items():
            if not (module.in_features % FLOAT8_MULTIPLE or module.out_features % FLOAT8_MULTIPLE):
                fitting[name] = module
        if not fitting:
            raise PluginError(
                f"torchao: {type(model).__name__} has no linear layer whose sizes are multiples of "
                f"{FLOAT8_MULTIPLE}, which products in float8 need"
            )
        self._remember(model, fitting)
        chosen = {id(module) for module in fitting.values()}
        convert_to_float8_training(
            model,
            module_filter_fn=lambda module, name: id(module) in chosen,
            config=recipe(self.options.float8_training, self.options.emulate),
        )
        converted = [module for module in model.modules() if isinstance(module, Float8Linear)]
        kernel = "mm of rounded float32" if self.options.emulate else "torch._scaled_mm"
        self.evidence = {
            "summary": f"{len(converted)} linear layers in float8, multiplied by {kernel}",
            "converted_modules": len(converted),
            "module_classes": dict(Counter(type(module).__name__ for module in converted)),
            "unconverted_modules": len(linears) - len(fitting),
            "recipe": self.options.float8_training,
            "emulated": self.options.emulate,
            "kernel": kernel,
            # torchao computes the weight's gradient whether it trains or not.
            "unused_weight_gradients": sum(not m.weight.requires_grad for m in converted),
            "torchao": metadata.version("torchao"),
        }

    def undo(self) -> None:
        """Restore the original layers, and inductor's code generation."""
        for parent, name, module in self._swapped:
            setattr(parent, name, module)
        self._swapped.clear()
        if self._codegen:
            from torch._inductor.codegen.triton import TritonOverrides

            for name, function in self._codegen.items():
                setattr(TritonOverrides, name, function)
            _inductor_patch._PATCHED = False
            self._codegen = {}

    def _remember(self, model: nn.Module, modules: dict[str, nn.Linear]) -> None:
        """Record the layers `modules`, by name, and inductor's functions, before a conversion."""
        for name, module in modules.items():
            parent, _, own = name.rpartition(".")
            self._swapped.append((model.get_submodule(parent), own, module))
        if not _inductor_patch._PATCHED:
            from torch._inductor.codegen.triton import TritonOverrides

            self._codegen = {name: vars(TritonOverrides)[name] for name in PATCHED}


def configuration(options: TorchAOOptions) -> Any:
    """Return torchao's configuration for the options, or None for nf4, which has none.

    The inductor settings that torchao recommends are not applied, since they affect the whole
    process, and a comparison changes one thing.
    """
    group = options.group_of_base
    per_group = quantization.PerGroup(group) if group else None
    if options.base == "int8":
        return quantization.Int8WeightOnlyConfig(
            granularity=per_group or quantization.PerRow(), set_inductor_config=False
        )
    if options.base == "float8":
        return quantization.Float8WeightOnlyConfig(
            granularity=per_group or quantization.PerRow(), set_inductor_config=False
        )
    if options.base == "intx":
        return quantization.IntxWeightOnlyConfig(
            weight_dtype=getattr(torch, f"int{options.bits_of_base}"), granularity=per_group
        )
    return None


def straightened(module: Any) -> nn.Linear:
    """Return the linear layer equivalent to transformers' `Conv1D`, whose weight is (in, out)."""
    inputs, outputs = module.weight.shape
    linear = nn.Linear(inputs, outputs, bias=module.bias is not None, device="meta")
    linear.weight = nn.Parameter(module.weight.detach().T.contiguous(), requires_grad=False)
    linear.bias = module.bias
    return linear


def quantize_nf4(name: str, module: nn.Linear, group: int) -> None:
    """Pack a layer's weight of shape (out, in) into bytes of two values, in blocks of `group`.

    `name` is the layer's dotted name, for messages. The blocks' scales are quantized too, in the
    largest possible blocks. Raises PluginError if the scales cannot be quantized.
    """
    blocks = module.weight.numel() // group
    shared = math.gcd(blocks, LARGEST_SCALER_BLOCK)
    packed = quantization.to_nf4(module.weight.detach(), group, shared)
    if not packed.quantization_factor.isfinite().all():
        raise PluginError(
            f"torchao: nf4 cannot quantize {name}: {shared} of its scales are all alike; "
            "choose another group_size"
        )
    module.weight = nn.Parameter(packed, requires_grad=False)


def recipe(name: str, emulate: bool) -> Float8LinearConfig:
    """Return torchao's float8 training recipe called `name`; `emulate` emulates float8 products."""
    made = Float8LinearConfig.from_recipe_name(name)
    # Frozen, and checked when made; emulation is the only field that no recipe sets.
    object.__setattr__(made, "emulate", emulate)
    return made


def own_linears(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the model's linear layers by name, without adapters and without the output layer."""
    output = getattr(model, "get_output_embeddings", lambda: None)()
    left_out = {id(output), *adapter_modules(model)}
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and id(module) not in left_out
    }
