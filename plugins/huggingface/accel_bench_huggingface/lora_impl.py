"""Low-rank adapters by PEFT, whose initial weights are equal in every stack."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import peft
import torch
from peft.tuners.lora import LoraLayer
from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as USUAL_TARGETS

from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.modeling.random_state import keep_random_state
from accel_bench.modeling.random_weights import seed_generators, seed_of
from accel_bench.modeling.tensors import dtype_name

if TYPE_CHECKING:
    from accel_bench_huggingface.lora import LoraOptions


def import_what_adapting_imports() -> None:
    """Adapt a small model once, since PEFT imports installed quantizers with its first adapter.

    Later, those imports would count as memory and time of stacks that do not quantize.
    """
    probe = torch.nn.Sequential(torch.nn.Linear(1, 1))
    with torch.random.fork_rng(devices=[]):
        peft.get_peft_model(probe, peft.LoraConfig(r=1, target_modules=["0"]))


def add_adapter(model: Any, options: LoraOptions, seed: int) -> Any:
    """Return a model wrapped in PEFT, with adapters drawn from `seed` and the modules' names only.

    The global random state is restored. Raises ScenarioError if a target matches no module.
    """
    _check_targets(model, options.target_modules)
    targets = options.target_modules
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if targets is None and kind is not None and kind not in USUAL_TARGETS:
        targets = "all-linear"
    config = peft.LoraConfig(
        task_type="CAUSAL_LM" if _is_decoder(model) else None,
        r=options.r,
        lora_alpha=options.alpha,
        lora_dropout=options.dropout,
        target_modules=_all_linear(model) if targets == "all-linear" else targets and list(targets),
        bias="none",
        # Weights of these are stored as (in, out).
        fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in model.modules()),
    )
    places = {p.device for p in model.parameters()}
    with keep_random_state(places), warnings.catch_warnings():
        # PEFT uses a name of transformers that is being replaced.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        torch.manual_seed(seed)
        try:
            adapted = peft.get_peft_model(
                model, config, autocast_adapter_dtype=options.autocast_adapter_dtype
            )
        except ValueError as error:
            raise ScenarioError(
                f"adapter: PEFT cannot adapt {type(model).__name__}: {error} The model's linear "
                f"modules are {', '.join(linear_names(model))}; name some in adapter.target_modules"
            ) from error
        _draw_matrices(adapted, seed)
    return adapted.train()


def lora_evidence(model: Any) -> dict[str, Any]:
    """Return JSON evidence: numbers of adapted modules and trained weights, and dtypes."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return {
        "adapted_modules": len(model.base_model.targeted_module_names),
        "trainable_parameters": sum(parameter.numel() for parameter in trained),
        "adapter_dtypes": sorted({dtype_name(p.dtype) for p in trained}),
    }


def _is_decoder(model: Any) -> bool:
    """Return whether a model is a decoder, which PEFT's wrapper of causal models requires.

    Such a model generates, and has no encoder.
    """
    config = getattr(model, "config", None)
    generates = getattr(model, "can_generate", lambda: True)()
    return generates and not getattr(config, "is_encoder_decoder", False)


def linear_names(model: Any) -> list[str]:
    """Return the last parts of the names of all linear modules, quantized ones included."""
    named = model.named_modules()
    return sorted({name.rpartition(".")[2] for name, module in named if _is_linear(module)})


def _all_linear(model: Any) -> list[str]:
    """Return the full names of all linear modules, quantized or not, except the output layer."""
    output = model.get_output_embeddings()
    return [name for name, m in model.named_modules() if _is_linear(m) and m is not output]


def _is_linear(module: Any) -> bool:
    """Return whether a module is itself a linear layer; a container of linear attention is not."""
    kind = type(module).__name__
    return ("Linear" in kind and hasattr(module, "in_features")) or kind == "Conv1D"


def _draw_matrices(adapted: Any, seed: int) -> None:
    """Draw each adapter's matrices again from `seed`, so that they are equal on every base model.

    `adapted` is PEFT's model. The order in which PEFT draws depends on the base's module classes.
    """
    # The order in which PEFT draws depends on the classes of the base's modules.
    for name, module in adapted.named_modules():
        if isinstance(module, LoraLayer):
            seed_generators(seed_of(seed, name), {p.device.type for p in module.parameters()})
            for adapter in (*module.lora_A, *module.lora_embedding_A):
                module.reset_lora_parameters(adapter, init_lora_weights=True)


def _check_targets(model: Any, targets: tuple[str, ...] | str | None) -> None:
    """Raise ScenarioError if any target matches no module; PEFT raises only if none matches.

    `targets` are module names; other kinds of targets are not checked.
    """
    if not isinstance(targets, tuple):
        return
    modules = [name for name, _ in model.named_modules()]
    for target in targets or ("",):
        if not any(name == target or name.endswith(f".{target}") for name in modules if target):
            names = linear_names(model)
            raise ScenarioError(
                f"adapter.target_modules: {type(model).__name__} has no module {target!r}"
                f"{did_you_mean(target, names)} (linear modules: {', '.join(names)})"
            )
