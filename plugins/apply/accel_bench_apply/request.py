"""Plan of a script's experiment: its model, stack and settings, planned like a run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from accel_bench.documents.presets import find_presets, how_to_get
from accel_bench.errors import PluginError, ScenarioError
from accel_bench.machine.info import read_machine
from accel_bench.modeling.checkpointing import CHECKPOINTING_WORDS
from accel_bench.planning.plan import Planned, PlanRequest
from accel_bench.plugins.manager import load_class
from accel_bench.plugins.registry import find, installed, missing_extra
from accel_bench.plugins.validation import marked_methods
from accel_bench.runner.purpose import plan_stack
from accel_bench.scenario.draft import Draft, dotted
from accel_bench.scenario.find import ScenarioSource, find_drafts, to_plain
from accel_bench.scenario.settings import Resources
from accel_bench.scenario.sweep import AUTO, LENGTH
from accel_bench.scenario.uses import NO_PLUGIN, Use
from accel_bench_apply import given

STACK = "script"
"""Name for a stack that the script gives as a list of plugins."""

NOWHERE = {"name": STACK, "stacks": {"baseline": []}}
"""Scenario used if the script names none."""

PRECISIONS = {"bf16": "bf16-autocast", "fp16": "fp16-autocast"}
"""Values of `train.precision`, by the Trainer argument that asks for half precision."""

BESIDE_TRAINING = ("data.sequence_length", "data.packing", "resources.threads")
"""Scenario keys outside the training sections that a script has to apply itself."""

ARGUMENTS = {
    "per_device_train_batch_size": "train.micro_batch_size",
    "gradient_accumulation_steps": "train.gradient_accumulation",
    "learning_rate": "train.learning_rate",
    "seed": "train.seed",
}
"""Scenario keys by the equivalent arguments of Trainer."""


class Asked(NamedTuple):
    """Planned experiment of a script, with the keys that the script and its scenario set."""

    planned: Planned

    written: tuple[str, ...]
    """Dotted keys on training that the scenario or the script sets."""

    names_data: bool
    """True if the scenario names its data."""

    notices: tuple[str, ...] = ()
    """Sentences on settings of the scenario that the model does not have."""

    recomputes: bool = False
    """True if the Trainer's arguments enable activation checkpointing."""

    device: str | None = None
    """Device to which a given module is moved, or None to leave the module where it is."""

    dtype: str | None = None
    """Dtype to which a given module is converted, or None to leave its dtype."""


class World(NamedTuple):
    """Number of processes that train together, and the ranks of this process."""

    rank: int
    local_rank: int
    size: int
    local_size: int


def read_world() -> World:
    """Return the size and ranks of torch.distributed's process group, or a world of one process
    without a group."""
    from accel_bench.worker.settings import has_process_group

    if not has_process_group():
        return World(0, 0, 1, 1)
    from torch import distributed

    size, rank = distributed.get_world_size(), distributed.get_rank()
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    return World(rank, int(os.environ.get("LOCAL_RANK", rank)), size, local_size)


def ask(  # noqa: PLR0913 - what a script says
    model: Any,
    stack: Any,
    *,
    scenario: ScenarioSource | None,
    overrides: Mapping[str, Any],
    arguments: Any,
    folder: Path,
    world: World,
    trust_remote_code: bool,
    device: str | None = None,
    dtype: str | None = None,
) -> Asked:
    """Return the planned experiment of a script; its checks are those of a run, except for memory.

    The arguments are as for `accelerate`. `folder` receives the configuration of a given module,
    which will be moved to `device` and converted to `dtype`. Raises ScenarioError or PluginError if
    a run with these settings would be refused.
    """
    (draft, *others) = find_drafts([NOWHERE if scenario is None else scenario])
    if others:
        raise ScenarioError(f"a script takes one scenario, and {scenario!r} holds several")
    name = _add_stack(draft, stack)
    changes = to_plain(overrides, "overrides")
    draft = draft.with_values((key, value, f"overrides {key!r}") for key, value in changes.items())
    # What the scenario says and Trainer's arguments do not, a part outside says, and the callback.
    decided = {key: value for key, value in of_trainer(arguments) if draft.get(key) in (None, AUTO)}
    if draft.get(LENGTH) == AUTO and (longest := getattr(arguments, "max_length", None)):
        decided[LENGTH] = longest
    named = _of_model(model)
    module = given.read_module(model, draft, folder, device, dtype) if named is None else {}
    fixed = {**decided, **(named or module), **_of_world(draft, world), "metrics": []}
    fixed["train.matmul_precision"] = _matmul_precision(draft)
    request = PlanRequest(
        overrides=tuple(fixed.items()),
        trust_remote_code=trust_remote_code,
        force=True,
        oversubscribe=True,
        stand_ins=True,
        notify=lambda line: None,
    )
    try:
        planned = plan_stack(draft, read_machine(), request, name)
    except PluginError as error:
        few = world.size == 1 and "device" in str(error)
        if not few or name is None or not _joins_ranks(draft.stack(name).use):
            raise
        raise PluginError(
            f"{error}. This script is one process: `torchrun` starts several, and each calls "
            "torch.distributed.init_process_group before accelerate"
        ) from error
    notices: list[str] = []
    if module:
        given.refuse_settings(planned.experiment.stack.settings, module["model"])
        notices = given.deviations(draft, module["model"])
    return Asked(
        planned,
        _written(draft),
        draft.get("data") is not None,
        tuple(notices),
        any(getattr(arguments, f"{word}_checkpointing", False) for word in CHECKPOINTING_WORDS),
        device,
        dtype,
    )


def _written(draft: Draft) -> tuple[str, ...]:
    """Return the dotted keys of training settings that the scenario `draft` sets to a value."""
    sections = ("train", "optimizer", "environment")
    own = dict(dotted({key: draft.get(key) or {} for key in sections}))
    beside = {key: draft.get(key) for key in BESIDE_TRAINING if draft.get(key) is not None}
    values = {**own, **beside}.items()
    return tuple(key for key, value in values if key != "optimizer.use" and value != AUTO)


def _matmul_precision(draft: Draft) -> str:
    """Return torch's name for the precision of float32 matrix products: the scenario's, or else the
    present one of this process."""
    import torch

    said: str = draft.get("train.matmul_precision") or torch.get_float32_matmul_precision()
    return said


def _add_stack(draft: Draft, stack: Any) -> str | None:
    """Add a stack, as `accelerate` takes it, to the scenario `draft`, and return its name, or None
    for the baseline.

    Raises PluginError for a name that is neither a stack nor a plugin.
    """
    stacks = draft.data.setdefault("stacks", {"baseline": {"use": []}})
    if stack is None or (isinstance(stack, str) and stack in stacks):
        return stack
    name, entry = (stack, _named(stack, stacks)) if isinstance(stack, str) else _spelt_out(stack)
    draft.set("stacks", {**stacks, name: entry}, "the stack")
    return name


def _named(stack: str, others: Mapping[str, Any]) -> Any:
    """Return the scenario entry of a stack written as a string: the name of a shipped stack, or a
    list of the plugins that it names, joined by `+`.

    `others` are the scenario's stacks; an error suggests their names and those of plugins. Raises
    PluginError for an unknown name.
    """
    known = find_presets("stacks")
    if stack in known:
        return stack
    if "+" in stack:
        return [find(name).use for name in stack.split("+")]
    with suppress(PluginError):
        return [find(stack).use]
    if reason := missing_extra(stack):
        raise PluginError(reason)
    names = {*known, *others, *(plugin.use for plugin in installed())}
    raise PluginError(f"no stack or plugin is called {stack!r}{how_to_get('stacks', stack, names)}")


def _spelt_out(stack: Any) -> tuple[str, Any]:
    """Return the name and the scenario entry of a stack given as a list of plugins or as a
    mapping."""
    if isinstance(stack, Mapping):
        entry = to_plain(stack, "the stack")
        if isinstance(entry.get("use"), str):
            return STACK, [entry]
        if len(entry) == 1 and not entry.keys() & {"use", "set"}:
            return next(iter(entry.items()))
        return STACK, entry
    if isinstance(stack, Sequence):
        return STACK, to_plain({STACK: list(stack)}, "the stack")[STACK]
    raise ScenarioError(
        "a stack is a name, plugins joined by +, a list of plugins, or a mapping as in a scenario, "
        f"and no {type(stack).__name__}"
    )


def _joins_ranks(uses: Iterable[Use]) -> bool:
    """Return whether any plugin of a stack distributes the training over ranks. `uses` are the
    stack's plugins with their options."""
    kinds = (load_class(use.use, allow_torch=True) for use in uses)
    return any("parallelize_model" in dict(marked_methods(kind)) for kind in kinds)


def of_trainer(arguments: Any) -> Iterator[tuple[str, Any]]:
    """Yield scenario keys with the values that Trainer's `arguments` state; nothing for None.

    Raises ScenarioError if the arguments are not TrainingArguments.
    """
    if arguments is None:
        return
    if not hasattr(arguments, "per_device_train_batch_size"):
        kind = type(arguments).__name__
        raise ScenarioError(f"arguments are TrainingArguments of transformers, and no {kind}")
    for name, key in ARGUMENTS.items():
        yield key, getattr(arguments, name)
    yield "train.max_grad_norm", arguments.max_grad_norm or None
    halves = (value for name, value in PRECISIONS.items() if getattr(arguments, name, False))
    yield "train.precision", next(halves, "as-is")


def _of_model(model: Any) -> dict[str, Any] | None:
    """Return the scenario settings of a model given as a name, folder or mapping, by dotted key.

    The dict is empty for None; the result is None for a module.
    """
    if model is None:
        return {}
    if isinstance(model, str | os.PathLike):
        return {"model.id": os.fspath(model), "model.weights": "pretrained"}
    if isinstance(model, Mapping):
        return {f"model.{key}": value for key, value in to_plain(model, "model").items()}
    return None


def _of_world(draft: Draft, world: World) -> dict[str, Any]:
    """Return the scenario settings, by dotted key, for the number of training processes.

    Raises ScenarioError unless the scenario asks for one device, or for one per process.
    """
    resources = draft.get("resources")
    asked = Resources.model_validate(resources if isinstance(resources, dict) else {}).world_size
    if asked not in (1, world.size):
        raise ScenarioError(
            f"the scenario trains on {asked} devices, and this script on {world.size}: start it by "
            f"`torchrun --nproc-per-node {asked}`, and call torch.distributed.init_process_group "
            "first, or give overrides={'resources.devices': 1}"
        )
    nodes = max(world.size // world.local_size, 1)
    settings: dict[str, Any] = {"resources.environment": "", "resources.nodes": nodes}
    settings["resources.devices"] = world.local_size
    if world.size > 1 and draft.get("parallel") is None:
        settings["parallel.use"] = NO_PLUGIN  # Trainers join the gradients themselves.
    return settings
