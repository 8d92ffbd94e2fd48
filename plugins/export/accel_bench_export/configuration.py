"""Translation of a stack, and of a scenario's work, into settings of another training program.

The work of a scenario is what it trains: model, adapter, data, task and training settings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from accel_bench.analysis.wording import count, join_names
from accel_bench.documents.canonical import canonical_json
from accel_bench.documents.presets import find_presets
from accel_bench.errors import PluginError, ScenarioError
from accel_bench.plugins.manager import load_class
from accel_bench.plugins.validation import marked_methods
from accel_bench.scenario.draft import dotted
from accel_bench.scenario.models import Scenario, Stack
from accel_bench.scenario.uses import NO_PLUGIN, Use
from accel_bench_export.equivalents import rules_of
from accel_bench_export.rules import Translation, translate
from accel_bench_export.trainers import Trainer, read_trainer, trainer_names

SLOTS = ("adapter", "data", "optimizer", "parallel")
"""Sections of a scenario that name a plugin with declared counterparts in other programs."""

SECTIONS = ("task", "model", "train", "evaluate")
"""Sections of a scenario whose changed keys are each translated to a setting, or to a comment."""


@dataclass
class Part:
    """Part of a configuration: the settings and comments for one plugin or section."""

    title: str
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings by dotted key."""

    comments: list[str] = field(default_factory=list)
    """Sentences on remaining differences, and on options without a counterpart."""


@dataclass(frozen=True)
class Configuration:
    """Configuration of a training program for a stack, in parts."""

    trainer: Trainer
    stack: str
    scenario: str
    """Name of the scenario; empty if the stack is exported without a scenario."""

    parts: list[Part]
    command: str
    """Command line that trains with the configuration file `{file}`; empty without a scenario."""

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of all parts by dotted key; a later part replaces an earlier part's value."""
        return {key: value for part in self.parts for key, value in part.settings.items()}


def configuration(
    name: str, stack: Stack, scenario: Scenario | None, remarks: Sequence[str] = ()
) -> Configuration:
    """Return the configuration of the training program `name` for a stack and a scenario.

    Without a scenario, it has only the stack's changes. `remarks` are sentences that become
    comments. Raises ScenarioError for an unknown program, and for one that is only imported from.
    """
    trainer = read_trainer(name)
    if not trainer.exports:
        known = join_names(trainer_names())
        raise ScenarioError(f"{name} is read and not written; --to is one of {known}")
    parts = []
    values: dict[str, Any] = {}
    if scenario is not None:
        values = _options_of(scenario)
        slots = [slot for slot in SLOTS if slot != "parallel" or not _parallelizes(stack)]
        parts += [*_work_parts(name, trainer, scenario, slots, remarks)]
    else:
        parts += [_settings_part(name, trainer, stack)]
    work = {} if scenario is None else {"task.use": scenario.task.use}
    parts += [_use_part(name, trainer, use, **work)[0] for use in stack.uses]
    usage = (entry.command for entry in trainer.usage if _meant(entry.when, values))
    return Configuration(
        trainer,
        stack.name,
        "" if scenario is None else scenario.name,
        [part for part in parts if part.settings or part.comments],
        next(usage, "") if scenario is not None else "",
    )


def translated(trainer: str, use: Use, **own: Any) -> Translation:
    """Translate a plugin's options to settings of the program `trainer`.

    `own` are keys that the scenario section has beside the plugin's options, and their values.
    """
    return translate(rules_of(use.use, trainer), {**full_options(use), **own})


def full_options(use: Use) -> dict[str, Any]:
    """Return a plugin's options, with the default values too if the plugin is installed."""
    try:
        kind = load_class(use.use)
    except PluginError:
        return dict(use.options)
    return kind.Options.model_validate_json(canonical_json(use.options)).model_dump(mode="json")


def _options_of(scenario: Scenario) -> dict[str, Any]:
    """Return the options for a program's rules: the scenario's dotted keys, and `world_size`."""
    settings = dict(dotted(scenario.model_dump(mode="json")))
    return {**settings, "world_size": scenario.world_size}


def _parallelizes(stack: Stack) -> bool:
    """Return whether a plugin of the stack replaces the scenario's `parallel` plugin."""
    kinds = []
    for use in stack.uses:
        with suppress(PluginError):
            kinds.append(load_class(use.use))
    return any("parallelize_model" in dict(marked_methods(kind)) for kind in kinds)


def _meant(when: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    return all(values.get(key) == value for key, value in when.items())


def _work_parts(
    name: str,
    trainer: Trainer,
    scenario: Scenario,
    slots: Sequence[str],
    remarks: Sequence[str],
) -> Iterator[Part]:
    """Yield the parts of the configuration that state what a scenario trains.

    First come the program's fixed settings, then the translated settings of the scenario, then a
    part for the plugin of each section in `slots`. `name` is the name of the program `trainer`, and
    `remarks` become comments.
    """
    values = _options_of(scenario)
    notes = [trainer.always_note] if trainer.always_note else []
    yield Part("what makes it train as the scenario does", dict(trainer.always), notes)
    task = {f"task.{key}": value for key, value in full_options(scenario.task).items()}
    translation = translate(trainer.work, {**task, **values})
    options = full_options(Use(use=scenario.task.use))
    usual = {f"task.{key}": value for key, value in options.items()}
    usual |= dict(dotted(Scenario().model_dump(mode="json")))
    unsaid = {*translation.covered, *trainer.same}
    changed = [
        f"{key}: {value!r} has no counterpart"
        for key, value in values.items()
        if key.partition(".")[0] in SECTIONS and key not in unsaid and value != usual.get(key)
    ]
    if scenario.model.id in find_presets("models"):
        translation.notes.append(
            f"{scenario.model.id} is a model of accel-bench's catalog: name a hub id or a folder"
        )
    title = f"the work of {scenario.name}"
    steps = f"{count(scenario.measure.steps, 'step')}, as many as were measured: set your own"
    counted = [steps] if "measure.steps" in translation.covered else []
    process = _process_comments(scenario, translation.covered)
    comments = [*counted, *translation.notes, *changed, *process, *remarks]
    yield Part(title, translation.settings, comments)
    for slot in slots:
        use: Use = getattr(scenario, slot)
        if use.use != NO_PLUGIN:
            yield _slot_part(name, trainer, slot, use, translation.covered)


def _process_comments(scenario: Scenario, covered: Collection[str]) -> Iterator[str]:
    """Yield comments on settings that concern the training processes and not the program.

    `covered` are the options that the configuration sets already.
    """
    resources = scenario.resources
    if scenario.world_size > 1 and "world_size" not in covered:
        places = f" on {resources.nodes} machines" if resources.nodes > 1 else ""
        yield f"the work is that of {scenario.world_size} processes{places}: start as many"
    if resources.backend is not None:
        yield f"the process group's backend: {resources.backend}"
    if resources.threads is not None:
        yield f"in the environment: OMP_NUM_THREADS={resources.threads}"
    for variable, value in scenario.environment.items():
        yield f"in the environment: {variable}={value}"


def _slot_part(name: str, trainer: Trainer, slot: str, use: Use, covered: Collection[str]) -> Part:
    """Return the configuration part for the scenario section `slot`: its plugin and its own keys.

    `name` is the name of the program `trainer`. `covered` are dotted keys of the scenario that
    another part has translated.
    """
    own = use.model_dump(mode="json", exclude={"use", "options"})
    own = {key: value for key, value in own.items() if key in type(use).owned_keys()}
    part, options = _use_part(name, trainer, use, f"{slot}: {use.use}", **own)
    usual = type(use)(use=use.use).model_dump(mode="json")
    part.comments += [
        f"{slot}.{key}: {value!r} has no counterpart"
        for key, value in own.items()
        if value != usual.get(key) and not {key, f"{slot}.{key}"} & {*options, *covered}
    ]
    return part


def _settings_part(name: str, trainer: Trainer, stack: Stack) -> Part:
    """Return the part with the settings that a stack changes, translated without a scenario.

    `name` is the name of the program `trainer`.
    """
    translation = translate(trainer.work, stack.settings)
    part = Part("the stack's settings", translation.settings, list(translation.notes))
    for slot in SLOTS:
        prefix = f"{slot}."
        changed = {
            key.removeprefix(prefix): value
            for key, value in stack.settings.items()
            if key.startswith(prefix)
        }
        if not changed:
            continue
        use = Use.model_validate({"use": getattr(Scenario(), slot).use, **changed})
        rules = [rule for rule in rules_of(use.use, name) if rule.options & changed.keys()]
        inner = translate(rules, full_options(use))
        part.settings |= inner.settings
        part.comments += inner.notes
        translation.covered |= {f"{prefix}{key}" for key in inner.covered}
    part.comments += [
        f"{key}: {value!r} has no counterpart"
        for key, value in stack.settings.items()
        if key not in translation.covered
    ]
    return part


def _use_part(
    name: str, trainer: Trainer, use: Use, title: str = "", **own: Any
) -> tuple[Part, set[str]]:
    """Return the configuration part of a plugin, and the names of the options that it translates.

    `name` is the name of the program `trainer`. `own` are keys that the scenario section has beside
    the plugin's options. `title` is the part's title, by default the plugin's name. Options without
    a counterpart are listed as comments.
    """
    translation = translated(name, use, **own)
    part = Part(title or f"stack: {use.use}", translation.settings, list(translation.notes))
    if not translation.covered and not translation.settings and not translation.notes:
        part.comments.append(f"{use.use} has no counterpart")
        return part, translation.covered
    part.comments += [
        f"{use.use}: {key}: {value!r} has no counterpart"
        for key, value in use.options.items()
        if key not in translation.covered
    ]
    return part, translation.covered
