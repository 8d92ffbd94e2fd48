"""Loading of transformers models: configuration with overrides, random weights, real weights."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from accel_bench import Run
from accel_bench.catalog.models import (
    architecture_of,
    model_directory,
    model_problems,
    read_card,
)
from accel_bench.documents.presets import find_presets
from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.modeling.contract import has_attention, text_config
from accel_bench.modeling.random_weights import MODEL_CLASS, Replace, place_model, random_model
from accel_bench.scenario.uses import ModelUse

RESERVED = {
    "use_cache": "it is always false in training",
    "dtype": "set model.dtype",
    "torch_dtype": "set model.dtype",
    "attn_implementation": "set model.attention",
    "model_type": "choose another model.id",
    "architectures": "choose another model.id",
}
"""Configuration keys that may not be overridden, each with the alternative."""


def import_model_class(model: ModelUse) -> None:
    """Import the model's transformers class early, if the model's local files name the class."""
    if architecture := architecture_of(model):
        # An architecture that transformers lacks is reported when it is loaded.
        getattr(transformers, architecture, None)


def load_base_model(run: Run, replace: Replace | None = None) -> Any:
    """Return the scenario's model on the run's device, in train mode.

    Sets `run.weights_fingerprint`. Loaders that quantize pass `replace(name, module)`: it is called
    for every module in the repeated blocks that has weights of its own, once they are on the
    device, and returns the module's replacement, or None to keep it. Thus at most one block is on
    the device in full precision, and all stacks get equal weights. Raises ScenarioError if the id,
    the overrides, the vocabulary or the length do not fit.
    """
    use = run.scenario.model
    config = build_config(use, run.trust_remote_code)
    check_fit(config, run)
    model_class = model_class_of(run)
    check_model_class(config, model_class, run)
    device = str(run.device)
    if use.weights == "random":
        dtype, seed = getattr(torch, use.dtype), run.scenario.train.seed
        model, fingerprint = random_model(
            config,
            dtype,
            device,
            seed,
            attention=use.attention,
            model_class=model_class,
            replace=replace,
        )
    else:
        model = _pretrained_model(config, use, model_class, run.trust_remote_code)
        model, fingerprint = place_model(model, torch.device(device), replace)
    run.weights_fingerprint = fingerprint
    return model.train()


def load_other_model(run: Run, name: str) -> Any:
    """Return the model with id `name`, such as the draft model for speculative decoding.

    Raises ScenarioError if it cannot be loaded, or has another vocabulary than the run's model.
    """
    use = run.scenario.model.model_copy(update={"id": name, "overrides": {}, "revision": None})
    config = build_config(use, run.trust_remote_code)
    ours, theirs = (text_config(part).vocab_size for part in (run.unwrapped_model.config, config))
    if ours != theirs:
        raise ScenarioError(
            f"the model {name!r} has a vocabulary of {theirs} tokens, and model.id one of {ours}; "
            "choose another model of the same family"
        )
    if not run.scenario.generates:
        check_fit(config, run, name)
    place, dtype = str(run.device), getattr(torch, use.dtype)
    if use.weights == "random":
        seed = run.scenario.train.seed
        return random_model(config, dtype, place, seed, attention=use.attention)[0]
    model = _pretrained_model(config, use, model_class_of(run), run.trust_remote_code)
    return place_model(model, torch.device(place))[0]


def build_config(use: ModelUse, trust_remote_code: bool = False) -> PreTrainedConfig:
    """Return the configuration of a model, with overrides applied and no key-value cache.

    Overrides are applied before the configuration is built, since other values follow from them,
    such as the list of layer types from the number of layers. Raises ScenarioError if that fails.
    """
    published, raw = _published_config(use, trust_remote_code)
    config = _apply_overrides(published, raw, use.overrides) if use.overrides else published
    for part in (config, config.get_text_config()):
        part.use_cache = False
    return config


def model_class_of(run: Run) -> str:
    """Return the name of the transformers class that loads the run's model, by its task."""
    if run.task is None:
        return MODEL_CLASS
    name: str = run.task.model_class_of(run.scenario.model)
    return name


def check_model_class(config: Any, model_class: str, run: Run) -> None:
    """Raise ScenarioError for a configuration that the task's class cannot load.

    Configurations that come with their own code are accepted, since they name their classes.
    """
    known = getattr(getattr(transformers, model_class), "_model_mapping", None)
    foreign = not type(config).__module__.startswith("transformers.")
    if known is None or foreign or type(config) in known:
        return
    raise ScenarioError(
        f"the model {run.scenario.model.id!r} ({config.model_type}) has no {model_class}, which "
        f"task {run.scenario.task.use!r} trains; choose another task, or another model.id"
    )


def count_parameters(model: Any, trainable: bool = False) -> int:
    """Return the number of parameters, or only of trainable ones; tied parameters count once."""
    return sum(
        parameter.numel()
        for parameter in model.parameters()
        if parameter.requires_grad or not trainable
    )


def _published_config(
    use: ModelUse, trust_remote_code: bool
) -> tuple[PreTrainedConfig, dict[str, Any]]:
    """Return a model's configuration without overrides, as an object and as its JSON."""
    if use.id in find_presets("models"):
        card = read_card(use.id)
        return CONFIG_MAPPING[card.model_type](**card.config), dict(card.config)
    source = pretrained_source(use, trust_remote_code)
    try:
        raw, _ = PreTrainedConfig.get_config_dict(**source)
        _check_code(use, raw, trust_remote_code)
        return AutoConfig.from_pretrained(**source, trust_remote_code=trust_remote_code), raw
    except (OSError, ValueError, StrictDataclassError) as error:
        raise _unloadable(use, "configuration", error) from error


def _check_code(use: ModelUse, raw: dict[str, Any], trust_remote_code: bool) -> None:
    needed = "auto_map" in raw and raw.get("model_type") not in CONFIG_MAPPING
    if needed and not trust_remote_code:
        raise ScenarioError(
            f"model.id {use.id!r} needs code that comes with it; read it, then allow it with "
            "--trust-remote-code (and, for a hub id, model.revision)"
        )


def _apply_overrides(
    published: PreTrainedConfig, raw: dict[str, Any], overrides: dict[str, Any]
) -> PreTrainedConfig:
    aliases = type(published).attribute_map
    known = {*published.to_dict(), *aliases, *raw}
    _check_overrides(overrides, {key for key in known - set(RESERVED) if key[0] != "_"})
    # One figure can be written under two names; the later one, an override, counts.
    changed = {aliases.get(key, key): value for key, value in {**raw, **overrides}.items()}
    if "num_hidden_layers" in overrides and "layer_types" not in overrides:
        # A published list fits the published depth; fewer layers keep its beginning.
        if layer_types := changed.pop("layer_types", None):
            changed["layer_types"] = layer_types[: overrides["num_hidden_layers"]]
    try:
        return type(published).from_dict(changed)
    except (TypeError, ValueError, StrictDataclassError) as error:
        raise ScenarioError(
            f"model.overrides {overrides} give no possible configuration: {error}"
        ) from error


def _check_overrides(overrides: dict[str, Any], known: set[str]) -> None:
    """Raise ScenarioError for overrides of reserved keys, or of keys not in `known`."""
    for key in overrides:
        if key in RESERVED:
            raise ScenarioError(f"model.overrides.{key} cannot be set here: {RESERVED[key]}")
        if key not in known:
            raise ScenarioError(
                f"model.overrides.{key}: the model's configuration has no such key"
                f"{did_you_mean(key, known)}"
            )


def _pretrained_model(
    config: PreTrainedConfig, use: ModelUse, model_class: str, trust_remote_code: bool
) -> Any:
    """Return a pretrained model on the host, with all weights from safetensors files."""
    try:
        model, loading = getattr(transformers, model_class).from_pretrained(
            **pretrained_source(use, trust_remote_code),
            config=config,
            dtype=getattr(torch, use.dtype),
            attn_implementation=use.attention if has_attention(config) else None,
            use_safetensors=True,
            weights_only=True,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
        )
    except (ImportError, OSError, ValueError) as error:
        raise _unloadable(use, "weights", error) from error
    # Absent weights would be filled with random ones, with nothing but a warning.
    if missing := sorted(loading["missing_keys"]):
        raise ScenarioError(
            f"model.id {use.id!r}: {len(missing)} weights are not in its files, {missing[0]} among "
            "them; take back the model.overrides that add them, or set `weights: random`"
        )
    return model


def pretrained_source(use: ModelUse, trust_remote_code: bool) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that locate a model."""
    if directory := model_directory(use):
        return {"pretrained_model_name_or_path": str(directory), "local_files_only": True}
    if use.id in find_presets("models"):
        raise ScenarioError(next(model_problems(use)))
    if trust_remote_code and use.revision is None:
        raise ScenarioError(
            f"model.id {use.id!r} may only bring code at a fixed revision; set model.revision"
        )
    return {"pretrained_model_name_or_path": use.id, "revision": use.revision or "main"}


def _unloadable(use: ModelUse, part: str, error: Exception) -> ScenarioError:
    reason = " ".join(str(error).split()).rstrip(".")
    if model_directory(use):
        way_out = "complete the files of that directory, or set `weights: random`"
    else:
        way_out = (
            "without a network, name a local directory or, with `weights: random`, a model of "
            "`accel-bench catalog models`"
        )
    return ScenarioError(f"the {part} of model.id {use.id!r} cannot be loaded: {reason}; {way_out}")


def check_fit(config: Any, run: Run, name: str | None = None) -> None:
    """Raise ScenarioError if the data has token ids or positions beyond the model's embeddings.

    Loaders that do not use `load_base_model` call this. `name` names the model in the error.
    """
    name = name or run.scenario.model.id
    published = hasattr(config, "get_text_config")  # as transformers' own have it
    text = text_config(config)
    known = getattr(text, "vocab_size", None)
    if run.dataset is not None and isinstance(known, int) and known < run.dataset.vocab_size:
        raise ScenarioError(
            f"the data has a vocabulary of {run.dataset.vocab_size} tokens, but the model {name!r} "
            f"only one of {known}; set data.vocab_size to {known} or less, or "
            "model.overrides.vocab_size, or choose other data"
        )
    positions = learned_positions(config) if published else None
    length = run.scenario.data.sequence_length
    if positions is not None and positions < length:
        raise ScenarioError(
            f"data.sequence_length is {length}, but the model {name!r} has {positions} learned "
            "positions; set model.overrides.max_position_embeddings, or a shorter length"
        )


def learned_positions(config: Any) -> int | None:
    """Return the longest sequence that a model's learned positions allow; None for rotary ones.

    Rotary positions extend beyond the published length; learned positions end with their table.
    """
    text = config.get_text_config()
    if getattr(text, "rope_parameters", None) is not None:
        return None
    return getattr(text, "max_position_embeddings", None)
