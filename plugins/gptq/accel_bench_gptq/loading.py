"""Loading of a model with packed weights: by packing, by calibration, or from a checkpoint."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal

from accel_bench import Run, describe_quantized, load_base_model
from accel_bench.errors import PluginError
from accel_bench_gptq.checkpoint import GPTQSettings
from accel_bench_gptq.packing import WORD_BITS, pack

if TYPE_CHECKING:
    from torch import nn

    from accel_bench_gptq import AutoGPTQOptions

Way = Literal["pack", "calibrate", "checkpoint"]


def import_library() -> None:
    """Import GPTQModel, and undo its changes of environment variables.

    Transformers is imported first, which keeps the user's cache folders.
    """
    import transformers  # noqa: F401

    before = dict(os.environ)
    import gptqmodel  # noqa: F401

    for name in {*os.environ} - {*before}:
        del os.environ[name]
    os.environ.update(before)


def load(run: Run, options: AutoGPTQOptions, way: Way) -> tuple[Any, float | None, dict[str, Any]]:
    """Return the model with packed weights, the seconds of quantizing, and JSON evidence.

    `way` is the method of quantization. The model is on the run's device in train mode. The seconds
    are None for a checkpoint. Raises ScenarioError if the model cannot be loaded or contradicts the
    options, PluginError if no layer is quantized.
    """
    import_library()
    from accel_bench_gptq.calibration import calibrate
    from accel_bench_gptq.trainable_checkpoint import load_checkpoint

    packer = ModelPacker(run, options)
    seconds: float | None = None
    if way == "pack":
        model = load_base_model(run, packer.replace)
        seconds = packer.seconds
    elif way == "calibrate":
        folder, seconds = calibrate(run, options)
        model = load_checkpoint(run, packer, options, folder)
    else:
        model = load_checkpoint(run, packer, options, None)
    evidence = packer.evidence(model)
    if not evidence["quantized_modules"]:
        raise PluginError(
            f"autogptq: {type(model).__name__} has no linear layer in its blocks that can be "
            f"packed: both sizes have to be multiples of {WORD_BITS}"
        )
    return model.train(), seconds, {"quantize": way, **evidence}


class ModelPacker:
    """Packer of a model's layers, which records packed layers and layers left unquantized."""

    def __init__(self, run: Run, options: AutoGPTQOptions) -> None:
        self.settings = GPTQSettings.of_options(options)
        """Settings of quantization, replaced by a checkpoint's settings if there is one."""

        self.triton = options.backend == "triton" or (
            options.backend == "auto" and run.device.type == "cuda"
        )
        """True if a Triton kernel unpacks weights, false if torch does."""

        self.seconds = 0.0
        """Seconds spent quantizing so far."""

        again = options.dequantize_in_backward
        checkpointed = run.scenario.train.gradient_checkpointing
        self._again = not checkpointed if again is None else again
        self._device = run.device
        self._packed: dict[str, nn.Module] = {}
        self._kept: dict[str, int] = {}

    def replace(self, name: str, module: nn.Module) -> nn.Module | None:
        """Return the packed form of a module; None if it stays unquantized.

        `name` is the module's dotted name in the model.
        """
        started = time.perf_counter()
        made = self._pack(name, module)
        self._synchronize()
        self.seconds += time.perf_counter() - started
        return made

    def add(self, name: str, layer: Any) -> Any:
        """Record a packed layer under its dotted name, and return the layer.

        The call also sets whether the layer's backward pass unpacks the matrix again.
        """
        layer.unpacks_again = self._again
        self._packed[name] = layer
        return layer

    def keep(self, name: str, module: nn.Module) -> None:
        """Record the number of matrix elements in a module that stays unquantized, if it has any.

        `name` is the module's dotted name in the model.
        """
        if sizes := [p.numel() for p in module.parameters(recurse=False) if p.dim() > 1]:
            self._kept[name] = sum(sizes)

    def evidence(self, model: nn.Module) -> dict[str, Any]:
        """Return JSON evidence of the quantized and unquantized layers, and of the kernel."""
        evidence = describe_quantized(
            model, self._packed, self.settings.bits, "triton" if self.triton else "torch"
        )
        quantized = int(str(evidence["quantized_elements"]))
        return {
            **evidence,
            **self.settings.model_dump(mode="json"),
            "quantized_share": quantized / max(1, quantized + sum(self._kept.values())),
            "unquantized_modules": sorted(self._kept),
            "dequantize_in_backward": self._again,
            "gptqmodel": metadata.version("gptqmodel"),
        }

    def _pack(self, name: str, module: nn.Module) -> nn.Module | None:
        """Return the packed form of a linear layer or of experts; None for any other module.

        The module's packed or unpacked matrices are recorded under its dotted `name`.
        """
        from torch import nn

        from accel_bench_gptq import impl

        if isinstance(module, nn.Linear) and _fits(module.weight):
            layer = impl.make_layer(
                pack(module.weight, self.settings), module.bias, self.triton, self.settings
            )
            return self.add(name, layer)
        if _has_fused_experts(module):
            return self._pack_experts(name, module)
        self.keep(name, module)
        return None

    def _pack_experts(self, name: str, module: Any) -> nn.Module:
        """Return the packed form of experts whose tensors have shape (experts, outputs, inputs)."""
        from accel_bench_gptq import impl

        def matrix(number: int, part: str) -> Any:
            weight = getattr(module, part)[number]
            packed = pack(weight, self.settings)
            made = impl.PackedMatrix(packed, self.settings.bits, self.triton)
            return self.add(f"{name}.{number}.{part}", made)

        return impl.PackedExperts(
            impl.PackedExpert(matrix(e, "gate_up_proj"), matrix(e, "down_proj"), module.act_fn)
            for e in range(len(module.gate_up_proj))
        )

    def _synchronize(self) -> None:
        """Synchronize with the device, so that seconds include its work."""
        if self._device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._device.index)


def _fits(weight: Any) -> bool:
    return all(size % WORD_BITS == 0 for size in weight.shape)


def _has_fused_experts(module: Any) -> bool:
    """Return whether a module has experts like Mixtral's, in sizes that can be packed.

    Such experts are gated, have no biases, and are stored as (experts, outputs, inputs).
    """
    own: Mapping[str, Any] = dict(module.named_parameters(recurse=False))
    return (
        set(own) == {"gate_up_proj", "down_proj"}
        and all(p.dim() == 3 and _fits(p[0]) for p in own.values())
        and not getattr(module, "is_transposed", False)
    )
