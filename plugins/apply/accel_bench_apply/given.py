"""Functions that read, check, change and restore a module that a script gives to `accelerate`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from accel_bench.catalog.models import CONFIG_FILE
from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.machine.devices import device_types, of_torch_type
from accel_bench.modeling.contract import has_attention
from accel_bench.modeling.module_calls import is_compiled
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.uses import DType, slot_defaults
from accel_bench.worker.verify.wrapping import strategy_of

HOOK = "_require_grads_hook"
"""Attribute with the handle of a hook that transformers registers when checkpointing is enabled."""

STATE = (
    "training",
    "gradient_checkpointing",
    "_gradient_checkpointing_func",
    HOOK,
    f"{HOOK}s",
)
"""Attributes of a module whose values are restored when its stack is closed."""


def read_module(
    model: Any, draft: Draft, folder: Path, device: str | None, dtype: str | None
) -> dict[str, Any]:
    """Return the scenario settings that describe a script's module.

    The module's configuration is written into `folder`. `draft` is the scenario. The module will be
    moved to `device` and converted to `dtype`, unless they are None. Raises ScenarioError for a
    module that cannot be accelerated: it has no weights, has an adapter, or is wrapped or compiled.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise ScenarioError(
            "model is a torch.nn.Module, a local directory or hub id, a mapping as in a scenario, "
            f"or None for the scenario's, and no {type(model).__name__}"
        )
    _refuse_changed(model)
    parameter = next(model.parameters(), None)
    if parameter is None or any(weight.is_meta for weight in model.parameters()):
        raise ScenarioError(f"the model {type(model).__name__} has no weights to train")
    config: Any = getattr(model, "config", None)
    written = config.to_dict() if hasattr(config, "to_dict") else {}
    written["architectures"] = [type(model).__name__]
    (folder / CONFIG_FILE).write_text(json.dumps(written, default=str), encoding="utf8")
    own = getattr(config, "_attn_implementation", None) or "sdpa"
    name = device if device in device_types() else draft.get("resources.device")
    kind = of_torch_type(torch_device(device or parameter.device).type, name or "")
    return {
        "model": {
            "use": slot_defaults().slots["model"],
            "id": str(folder),
            "weights": "random",
            "dtype": dtype or str(parameter.dtype).removeprefix("torch."),
            "attention": draft.get("model.attention") or own,
        },
        "resources.device": next(n for n, entry in device_types().items() if entry is kind),
    }


def _refuse_changed(model: Any) -> None:
    """Raise ScenarioError if a module has an adapter, or is wrapped or compiled."""
    if hasattr(model, "peft_config"):
        raise ScenarioError(
            "the model has an adapter already, and a stack adds it at its own place: give the base "
            "model, and overrides={'adapter.use': 'lora'}"
        )
    name, strategy = type(model).__name__, strategy_of(model)
    if strategy is not None:
        raise ScenarioError(
            f"the model is wrapped already ({strategy}): give accelerate the model itself, and "
            "wrap `.model` of what it returns"
        )
    if any(map(is_compiled, model.modules())):
        raise ScenarioError(
            f"the model {name} is compiled already, and what plugins change in it would not be "
            "seen: give it before it is compiled, in a stack with torch-compile"
        )


def refuse_settings(settings: Mapping[str, Any], module: Mapping[str, Any]) -> None:
    """Raise ScenarioError if a stack sets a property that is fixed when a module is built.

    `settings` are the stack's, by dotted key. `module` is the `model` section that `read_module`
    returned. The attention of a module can be changed, so that its setting is allowed.
    """
    for key, value in settings.items():
        section, _, name = key.partition(".")
        if section != "model" or key == "model.attention" or module.get(name) == value:
            continue
        way = f"give dtype={value!r}" if key == "model.dtype" else "give its directory or hub id"
        raise ScenarioError(
            f"the stack sets {key} to {value!r}, and the model is a module that is made already: "
            f"{way}"
        )


def deviations(draft: Draft, module: Mapping[str, Any]) -> list[str]:
    """Return a list with a warning if the scenario `draft` and the module differ in dtype, else [].

    `module` is the `model` section that `read_module` returned.
    """
    asked = draft.get("model.dtype")
    if asked in (None, module["dtype"]):
        return []
    return [
        f"the scenario says model.dtype {asked}, and the model that is given is in "
        f"{module['dtype']}; dtype={asked!r} converts it"
    ]


def checked_dtype(dtype: Any) -> str | None:
    """Return the name of a dtype without `torch.`, or None for None. Raises ScenarioError for a
    dtype that no model is trained in."""
    if dtype is None:
        return None
    name, known = str(dtype).removeprefix("torch."), get_args(DType)
    if name not in known:
        raise ScenarioError(f"no model is trained in dtype {name!r}{did_you_mean(name, known)}")
    return name


def torch_device(device: Any) -> Any:
    """Return the torch.device for a device type or torch's device name. Raises ScenarioError if
    there is no such device."""
    import torch

    known = device_types()
    kind = known.get(str(device))
    try:
        return torch.device(kind.torch_type if kind else device)
    except (RuntimeError, TypeError):
        problem = f"there is no device {device!r}{did_you_mean(str(device), known)}"
        raise ScenarioError(problem) from None


def device_of_trainer(model: Any, arguments: Any) -> str | None:
    """Return the device to which Trainer moves a module, or None if Trainer leaves it where it is.

    `arguments` are the TrainingArguments, or None. Trainer leaves modules that are sharded, divided
    among devices or quantized.
    """
    leaves = getattr(arguments, "place_model_on_device", False) is False
    shards = any(getattr(arguments, name, None) for name in ("deepspeed", "fsdp"))
    fixed = any(getattr(model, name, None) for name in ("hf_device_map", "quantization_method"))
    return None if leaves or shards or fixed else str(arguments.device)


def place_of(model: Any, device: str | None) -> Any:
    """Return the torch.device, with its index, on which a module is once it is moved to `device`.
    None leaves it where it is."""
    import torch

    return torch.empty(0, device=torch_device(device or next(model.parameters()).device)).device


def move(model: Any, device: str | None, dtype: str | None) -> None:
    """Move a script's module to `device`, and convert it to `dtype`, a name such as `bfloat16`.
    None changes nothing.

    Buffers that are not saved keep their dtype, as if the module were loaded in `dtype`: rounded
    frequencies of rotary embeddings would be other positions.
    """
    import torch

    if device is not None:
        model.to(torch_device(device))
    if dtype is not None:
        unsaved = [
            (module._buffers, name, module._buffers[name])
            for module in model.modules()
            for name in module._non_persistent_buffers_set
        ]
        model.to(getattr(torch, dtype))
        for buffers, name, buffer in unsaved:
            buffers[name] = buffer


def set_attention(model: Any, asked: str) -> Callable[[], object] | None:
    """Set the attention of a module to the implementation `asked`, and return a function that
    undoes it.

    Returns None if the module has that attention already, or has no attention at all. Raises
    ScenarioError if the module's attention cannot be changed.
    """
    config = getattr(model, "config", None)
    before = getattr(config, "_attn_implementation", None)
    if config is None or before is None or before == asked or not has_attention(config):
        return None
    try:
        model.set_attn_implementation(asked)
        problem = "" if config._attn_implementation == asked else "it keeps its own"
    except (AttributeError, ImportError, ValueError) as error:
        problem = str(error)
    if problem:
        raise ScenarioError(
            f"model.attention is {asked}, and the {type(model).__name__} that is given has "
            f"{before}: {problem}"
        )
    return lambda: model.set_attn_implementation(before)


def recomputes(model: Any) -> bool:
    """Return whether any block of a model recomputes its activations in the backward pass."""
    return any(
        getattr(module, "gradient_checkpointing", False) is True for module in model.modules()
    )


def remembered_parts(model: Any) -> Callable[[], None]:
    """Return a function that removes an adapter from a model that has none now: it restores which
    modules the model consists of, and which weights are trained."""
    modules = [(module._modules, dict(module._modules)) for module in model.modules()]
    weights = [(weight, weight.requires_grad) for weight in model.parameters()]

    def restore_parts() -> None:
        for present, before in modules:
            present.clear()
            present.update(before)
        for weight, trained in weights:
            weight.requires_grad_(trained)
        vars(model).pop("peft_config", None)

    return restore_parts


def remembered(model: Any) -> Callable[[], None]:
    """Return a function that restores the train mode and checkpointing that all modules have
    now."""
    before = [
        (module, {name: vars(module)[name] for name in STATE if name in vars(module)})
        for module in model.modules()
    ]

    def put_back() -> None:
        for module, values in before:
            attributes = vars(module)
            if attributes.get(HOOK) is not values.get(HOOK):
                module.disable_input_require_grads()
            for name in STATE:
                attributes.pop(name, None)
            attributes.update(values)

    return put_back
