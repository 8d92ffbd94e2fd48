"""Lower bound of an experiment's memory, from its model's configuration alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from accel_bench.catalog.models import model_directory, read_card, read_config
from accel_bench.documents.presets import find_presets
from accel_bench.machine.devices import device_type
from accel_bench.machine.info import Machine
from accel_bench.planning.plan import MemoryNeed
from accel_bench.plugins.active import ActivePlugin, ActivePlugins, attribute_errors_to
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.models import Scenario
from accel_bench.scenario.uses import NO_PLUGIN, ModelUse

ALIASES: Mapping[str, tuple[str, ...]] = {
    "vocabulary": ("vocab_size",),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head"),
    "key_value_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_size": ("head_dim",),
    "inner": (
        "moe_intermediate_size",
        "intermediate_size",
        "n_inner",
        "ffn_dim",
        "ffn_hidden_size",
    ),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
}
"""Sizes of a model, with the keys that transformers' configurations use for each."""

UNEVEN = (
    "decoder_sparse_step",
    "expert_layer_period",
    "first_k_dense_replace",
    "interleave_moe_layer_step",
    "mlp_only_layers",
    "moe_layer_freq",
    "num_hidden_groups",
)
"""Configuration keys of models whose layers differ in experts, or share weights; if one is set,
nothing is estimated."""

GATED = ("silu", "swish")
"""Activations with a third matrix (gated) in all published architectures."""

GATED_WITH_RMS_NORM = "gelu_pytorch_tanh"
"""Activation of gated MLPs in models with RMS norms (Gemma), but not in models with layer norms."""


DECODERS = "text-generation"
"""Catalog family whose models, decoders, are estimated."""

REPLICATES = "DistributedDataParallel"
"""`Plugin.strategy` under which every rank holds the whole model; others may divide it."""


def memory_need(
    experiment: Experiment, active: ActivePlugins, machine: Machine
) -> MemoryNeed | None:
    """Return a lower bound of the bytes of weights, gradients and optimizer state on one device.

    `active` are the experiment's plugins. An adapter's trained parameters are not counted. If a
    parallel strategy may shard the model, each rank is assumed to hold only its shard. None if the
    number of parameters is unknown, or if the model plugin does not give their bytes.
    """
    scenario = experiment.scenario
    parts = _bytes_per_parameter(active.answers("load_model"), experiment)
    parameters = parameters_of(scenario.model) if parts else None
    if parameters is None:
        return None
    if scenario.adapter.use == NO_PLUGIN:
        parts |= _bytes_per_parameter(active.answers("build_optimizer"), experiment)
    copies = device_copies(scenario, active.answers("parallelize_model"))
    return MemoryNeed(
        parameters,
        {what: parameters * each * copies(what) for what, each in parts.items()},
        _available(scenario, machine),
    )


def _bytes_per_parameter(plugin: ActivePlugin | None, experiment: Experiment) -> dict[str, float]:
    if plugin is None:
        return {}
    with attribute_errors_to(plugin, "bytes_per_parameter"):
        return dict(plugin.instance.bytes_per_parameter(experiment))


def device_copies(scenario: Scenario, parallel: ActivePlugin | None) -> Callable[[str], float]:
    """Return a function that gives the fewest copies of a part of the model on one device.

    Its argument names the part, such as `weights`; parts divided among devices give less than 1.
    `parallel` is the plugin that parallelizes the model, if any.
    """
    whole = scenario.world_size == 1 or (parallel and parallel.instance.strategy == REPLICATES)
    known = None
    if parallel is not None:
        with attribute_errors_to(parallel, "fraction_per_device"):
            known = parallel.instance.fraction_per_device(scenario)
    other = 1.0 if whole else 1 / scenario.world_size
    ranks = scenario.resources.devices if _on_host(scenario) else 1

    def copies(what: str) -> float:
        each = known.get(what) if isinstance(known, Mapping) else known
        return ranks * (other if each is None else each)

    return copies


def _available(scenario: Scenario, machine: Machine) -> int | None:
    if _on_host(scenario):
        return machine.memory_bytes
    used = machine.gpus[: scenario.resources.devices]
    return min((gpu.memory_bytes for gpu in used), default=None)


def _on_host(scenario: Scenario) -> bool:
    """Return whether the device's memory is the host's, which all ranks on it share."""
    return device_type(scenario.resources.device).on_host


def parameters_of(model: ModelUse) -> int | None:
    """Return a decoder's number of parameters; None for an unavailable or unknown configuration.

    A catalog model has its published number, scaled if overrides change its sizes. Other models
    count the matrices alone, without norms, biases and learned positions. Nothing is downloaded.
    """
    if model.id in find_presets("models"):
        card = read_card(model.id)
        if card.family != DECODERS:
            return None
        published = _parameters(card.config, {})
        changed = _parameters(card.config, model.overrides)
        return round(card.parameters * changed / published) if published and changed else None
    directory = model_directory(model)
    return None if directory is None else _parameters(read_config(directory), model.overrides)


def _parameters(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> int | None:
    """Return the number of matrix elements of a model configuration with overrides.

    None if a size is missing, or if layers differ or share weights.
    """
    text = config.get("text_config")
    config = {**config, **text} if isinstance(text, dict) else config
    sizes = {name: _size(config, overrides, keys) for name, keys in ALIASES.items()}
    if not all(sizes[name] for name in ("vocabulary", "hidden", "layers", "heads")):
        return None
    if any({**config, **overrides}.get(key) not in (None, 0, 1, []) for key in UNEVEN):
        return None
    hidden, layers = sizes["hidden"], sizes["layers"]
    head_size = sizes["head_size"] or hidden // sizes["heads"]
    shared = 1 if config.get("multi_query") else sizes["heads"]
    queries = sizes["heads"] * head_size
    keys_and_values = 2 * (sizes["key_value_heads"] or shared) * head_size
    attention = (2 * queries + keys_and_values) * hidden
    inner, experts = sizes["inner"] or 4 * hidden, sizes["experts"] or 1
    mlp = (3 if _is_gated(config) else 2) * inner * hidden
    tied = overrides.get("tie_word_embeddings", config.get("tie_word_embeddings", True))
    output = sizes["vocabulary"] * hidden
    return layers * (attention + experts * mlp) + output * (1 if tied else 2)


def _is_gated(config: Mapping[str, Any]) -> bool:
    """Return whether the MLPs are gated, and so have a third matrix."""
    activation = config.get("hidden_activation") or config.get("hidden_act")
    return activation in GATED or (
        activation == GATED_WITH_RMS_NORM and config.get("rms_norm_eps") is not None
    )


def _size(config: Mapping[str, Any], overrides: Mapping[str, Any], keys: tuple[str, ...]) -> int:
    """Return the first positive integer under one of `keys`, overrides first; 0 if none is set."""
    for source in (overrides, config):
        for key in keys:
            value = source.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return 0
