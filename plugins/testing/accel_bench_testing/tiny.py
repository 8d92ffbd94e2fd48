"""Tiny scenario in which the test kit runs a plugin: a model of two small layers, a few steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from accel_bench.catalog.models import list_cards
from accel_bench.errors import ScenarioError
from accel_bench.machine.info import Machine, read_machine
from accel_bench.planning.plan import Planned, PlanRequest, make_plan
from accel_bench.plugin import Plugin
from accel_bench.plugins.describe import slots_of
from accel_bench.plugins.manager import load_class
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.find import merge_keys
from accel_bench.scenario.models import Work
from accel_bench.scenario.uses import slot_defaults

MODEL = "tiny-llama-cpu"
"""Catalog model that is trained if the plugin's author names no model."""

KINDS: tuple[tuple[float, str], ...] = (
    (
        0.0,
        "activation_dropout attention_dropout attention_probs_dropout_prob attn_pdrop dropout "
        "dropout_rate embd_pdrop feat_proj_dropout final_dropout hidden_dropout "
        "hidden_dropout_prob resid_pdrop",
    ),
    (0, "pad_token_id"),
    (1, "bos_token_id decoder_start_token_id"),
    (2, "eos_token_id"),
    (3, "image_token_id"),
    (
        2,
        "decoder_layers encoder_layers max_window_layers n_layer n_layers num_decoder_layers "
        "num_hidden_layers num_layers",
    ),
    (4, "decoder_attention_heads encoder_attention_heads n_head n_heads num_attention_heads"),
    (4, "num_heads num_local_experts"),
    (2, "num_experts_per_tok num_key_value_heads"),
    (32, "d_kv"),
    (128, "d_model dim hidden_size n_embd word_embed_proj_dim"),
    (256, "d_ff decoder_ffn_dim encoder_ffn_dim ffn_dim hidden_dim intermediate_size n_inner"),
    (2048, "vocab_size"),
)
"""Values that make a model of the catalog small, each with keys of its configuration.

Sizes are multiples of 128, as quantized kernels need them. Dropout is off, since two computations
of the same function draw their random numbers differently.
"""

SMALL: dict[str, Any] = {key: value for value, keys in KINDS for key in keys.split()}
"""Values that make a model small, by configuration key."""

FEWER_TOKENS = 1024
"""Vocabulary size of the data for checks of task plugins."""


@dataclass(frozen=True)
class Trial:
    """Plans of a plugin in the tiny scenario, and of its baseline."""

    baseline: Planned
    """Plan of the stack without the plugin."""

    plugin: Planned
    """Plan of the stack with the plugin."""

    slots: tuple[str, ...]
    """Scenario sections that the plugin fills, such as `model`; empty for a plugin of the stack."""


def plan_trial(
    name: str,
    options: Mapping[str, Any],
    scenario: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> Trial:
    """Return the plans of a plugin and of its baseline on a tiny model.

    `options` are the plugin's. `scenario` holds keys of a scenario file, merged over the tiny
    scenario. Raises PluginError and ScenarioError for input that `accel-bench run` refuses.
    """
    kind = load_class(name, allow_torch=True)
    slots = slots_of(kind)
    use, changes = {"use": name, **options}, scenario or {}
    if "task" in slots:  # Without it there is nothing to train: it is its own baseline.
        model = next(iter(models_of_task(name)), MODEL)
        # Of the other ids one is left for the mask.
        own = {"task": use, "model": {"id": model}, "data": {"vocab_size": FEWER_TOKENS}}
        changes = merged(own, changes)
    work = tiny_work(kind, slots, changes, device)
    entry = {"set": _settings(use, slots, work)} if slots else {"use": [use]}
    stacks: dict[str, Any] = {"baseline": {"use": []}, name: entry}
    draft = Draft("the tiny scenario of accel_bench.testing", {**work, "stacks": stacks})
    baseline, plugin = make_plan(draft, this_machine(), PlanRequest()).planned
    return Trial(baseline, plugin, slots)


def tiny_work(
    kind: type[Plugin[Any]], slots: tuple[str, ...], changes: Mapping[str, Any], device: str
) -> dict[str, Any]:
    """Return the tiny scenario without stacks, with the adapter and dtype that a plugin needs.

    `kind` is the plugin's class, `slots` are the sections that it fills, and `changes` keys merged
    over the scenario. Raises ScenarioError if `changes` has a key that the kit alone sets, such as
    `stacks`.
    """
    if given := {"stacks", "baseline", "sweep", "zip"} & set(changes):
        listed = ", ".join(sorted(given))
        raise ScenarioError(f"scenario: the kit decides itself on {listed}; leave that out")
    work: dict[str, Any] = {
        "name": "tiny",
        "model": {"id": MODEL, "dtype": usual_dtype(kind)},
        "data": {"sequence_length": 32},
        "train": {"micro_batch_size": 2},
        "resources": {"device": device},
        "measure": {"warmup": 1, "steps": 5, "rounds": 1, "phase_steps": 1},
    }
    if kind.needs_adapter and "adapter" not in slots:
        work["adapter"] = {"use": slot_defaults().needed_adapter}
    work = merged(work, changes)
    overrides = {"overrides": shrunk(work["model"]["id"])}
    return {**work, "model": merged(overrides, work["model"])}


def usual_dtype(kind: type[Plugin[Any]]) -> str:
    """Return `float32` if the plugin class supports it, or else the first dtype that it
    declares."""
    return "float32" if "float32" in (kind.dtypes or ("float32",)) else min(kind.dtypes or ())


def shrunk(model: str) -> dict[str, Any]:
    """Return configuration overrides that make the catalog model of this name small; an empty dict
    for other models."""
    card = list_cards().get(model)
    return _smaller(card.config) if card else {}


def _smaller(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that make a model configuration small, by key. A nested section with such
    values is returned whole."""
    values = {key: value for key, value in SMALL.items() if key in config}
    for key, value in config.items():
        if isinstance(value, Mapping) and (inner := _smaller(value)):
            values[key] = {**value, **inner}
        elif key == "depths" and isinstance(value, list):
            values[key] = [1] * len(value)
    return values


def model_of(architecture: str) -> str | None:
    """Return the name of the catalog's smallest model of an architecture, or None if the catalog
    has none."""
    cards = {name: card for name, card in list_cards().items() if card.architecture == architecture}
    return min(cards, key=lambda name: cards[name].parameters, default=None)


def models_of_task(task: str) -> list[str]:
    """Return the names of the catalog's models for the task plugin `task`, the smallest first."""
    cards = {name: card for name, card in list_cards().items() if card.task == task}
    return sorted(cards, key=lambda name: cards[name].parameters)


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `below` with `above` merged over it, key by key; other values than mappings are
    replaced.

    In `above` a section such as `data` may be a string, the name of the section's plugin.
    """
    names = {key for key in above if isinstance(above[key], str) and key in Work.SLOTS}
    uses = {key: {"use": above[key]} for key in names}
    result: dict[str, Any] = merge_keys(dict(below), {**above, **uses})
    return result


@lru_cache(maxsize=1)
def this_machine() -> Machine:
    """Return this machine's description, which is read once per process."""
    return read_machine()


def _settings(
    use: Mapping[str, Any], slots: tuple[str, ...], work: Mapping[str, Any]
) -> dict[str, Any]:
    if "task" in slots:
        return {}
    if slots == ("metrics",):
        others = [
            metric
            for metric in work.get("metrics", slot_defaults().metrics)
            if metric != use["use"]
        ]
        return {"metrics": [*others, use]}
    return {f"{slot}.{key}": value for slot in slots for key, value in use.items()}
