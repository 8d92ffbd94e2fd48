"""Import of other programs' configurations as the settings and stacks of a scenario."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from accel_bench.documents.load import load_file
from accel_bench.errors import ImportFileError, PluginError
from accel_bench.plugins.describe import slots_of
from accel_bench.plugins.manager import load_class
from accel_bench.plugins.shipped import shipped
from accel_bench.scenario.draft import dotted, set_path
from accel_bench.scenario.models import Scenario
from accel_bench_export.configuration import SLOTS
from accel_bench_export.equivalents import declaring_plugins, rules_of
from accel_bench_export.rules import ITEM, Rule, fits, options_in, recognize, unread
from accel_bench_export.trainers import Trainer, read_trainer, readable_names

NEEDS = {"data.path": "data.source"}
"""Dotted keys without which another key is refused, and that key."""

NO_COUNTERPART = "no installed plugin is its counterpart"
"""Reason why a setting is left out."""

MOST_STEPS = 1000
"""Largest number of steps that is imported; a longer training is not taken over."""

STEPS = "measure.steps"

AUTO = "auto"
"""Value of a switch that the program turns on if it can."""

FEW_STEPS = "a benchmark takes some steps"
"""Reason why the number of steps of a training is left out."""

PICKLED = (".bin", ".pt", ".pkl", ".pickle")
"""Suffixes of files that contain pickles."""


@dataclass
class ReadConfiguration:
    """Configuration of another program, translated as far as a scenario can express it."""

    program: str
    settings: dict[str, Any]
    """Settings of the scenario by dotted key."""

    uses: list[Any]
    """Plugins of the stack, written as in a scenario file."""

    left_out: dict[str, str] = field(default_factory=dict)
    """Reasons why settings of the file are left out, by setting."""


def read_configuration(path: Path) -> ReadConfiguration | None:
    """Translate a file of another program to settings and plugins; None for an unknown program.

    Raises ImportFileError for a pickle, since reading one can run code.
    """
    if path.suffix in PICKLED:
        raise ImportFileError(
            f"{path} is a pickle, and reading one runs what it holds; write the arguments as JSON: "
            "Path('training_args.json').write_text(arguments.to_json_string())"
        )
    data = load_file(path).data
    name = _program_of(data)
    return None if name is None else _read(name, read_trainer(name), data)


def _program_of(data: Mapping[str, Any]) -> str | None:
    """Return the name of the program that recognizes most keys of `data`, or None if none does."""
    known = {name: read_trainer(name).recognized for name in readable_names()}
    counts = {name: sum(key in data for key in keys) for name, keys in known.items()}
    best = max(counts, key=lambda name: counts[name], default=None)
    return best if best is not None and counts[best] else None


def _read(name: str, trainer: Trainer, data: Mapping[str, Any]) -> ReadConfiguration:
    """Translate a program's settings `data`; the result also names the settings left out.

    `name` is the name of the program `trainer`.
    """
    given = _given(trainer, data, _nullable(name))
    whole = _with_defaults(trainer, given)
    settings, used = recognize(trainer.work, _alike(trainer, whole))
    settings = dict(trainer.imported) | settings
    rules = [*trainer.work]
    uses: list[Any] = []
    refused: dict[str, str] = {}
    slots: dict[str, tuple[int, dict[str, Any], set[str]]] = {}
    for plugin in declaring_plugins():
        slot = _slot_of(plugin)
        is_named = f"{slot}.use" in settings
        options, keys = _plugin_in(plugin, name, trainer, whole, is_named)
        stated = keys & {*given}
        rank = len(stated) + is_named
        if slot in SLOTS and settings.get(f"{slot}.use", plugin) == plugin:
            if rank > slots.get(slot, (0,))[0]:
                slots[slot] = (rank, {"use": plugin, **options}, keys)
        elif not slot and stated - used:
            for option in _refused_options(plugin, options):
                reasons = _no_value(rules_of(plugin, name), option, options.pop(option))
                refused |= {key: reason for key, reason in reasons.items() if key in given}
            uses.append({"use": plugin, **options} if options else plugin)
            rules += rules_of(plugin, name)
            used |= keys
    for slot, (_, use, keys) in slots.items():
        settings |= {f"{slot}.{key}": value for key, value in use.items()}
        rules += rules_of(use["use"], name)
        used |= keys
    settings = {key: value for key, value in settings.items() if value is not None}
    result = ReadConfiguration(name, settings, uses)
    for option in _refused(settings):
        reasons = _no_value(rules, option, settings.pop(option))
        refused |= {key: reason for key, reason in reasons.items() if key in given}
        settings.pop(NEEDS.get(option, ""), None)
    result.left_out = dict(_left_out(trainer, given, used, rules)) | refused
    return result


def _given(trainer: Trainer, data: Mapping[str, Any], nullable: Collection[str]) -> dict[str, Any]:
    """Return the settings that a file states, with aliases replaced by the usual names.

    `data` is the file's content. A null turns a switch off, is kept for `nullable` settings, and is
    ignored for all others.
    """
    said = {}
    for key, value in data.items():
        default = trainer.defaults.get(key)
        if value is None and (isinstance(default, bool) or default == AUTO):
            said[key] = False
        elif value is not None or key in nullable:
            said[key] = value
    renamed = {new: said.pop(old) for old, new in trainer.aliases.items() if old in said}
    return said | renamed


def _nullable(name: str) -> set[str]:
    """Return the names of settings for which null has a meaning in the program `name`."""
    rules = (rule for plugin in declaring_plugins() for rule in rules_of(plugin, name))
    return {key for rule in rules for key, value in rule.set.items() if value is None}


def _with_defaults(trainer: Trainer, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the program's defaults, replaced by the settings `given` in a file.

    The result has each nested setting also under its dotted key.
    """
    defaults = dict(trainer.defaults)
    for other in trainer.other_defaults:
        if all(key in given and value in (None, given[key]) for key, value in other.when.items()):
            defaults |= other.set
    whole = {**defaults, **given, **dict(dotted(given))}
    for key, (factored, factor) in trainer.multiples.items():
        if key not in given and isinstance(base := whole.get(factored), int | float):
            whole[key] = base * factor
    for key, opposite in trainer.opposites.items():
        if key not in given:
            whole[key] = not whole.get(opposite)
    return whole


def _alike(trainer: Trainer, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with values replaced by equivalent values, as `trainer.alike` lists them."""
    return {
        key: trainer.alike.get(key, {}).get(str(value), value) for key, value in settings.items()
    }


def _refused(settings: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys whose values the scenario, or the plugin of a section, refuses, and
    `measure.steps` above `MOST_STEPS`."""
    work: dict[str, Any] = {}
    for key, value in settings.items():
        set_path(work, key.split("."), value)
    steps = settings.get(STEPS)
    places = [STEPS] if isinstance(steps, int) and steps > MOST_STEPS else []
    places += _problems(Scenario, work)
    for slot in (*SLOTS, "task"):
        section = work.get(slot, {})
        options = {key: value for key, value in section.items() if key not in _owned(slot)}
        refused = _refused_options(section.get("use", ""), options)
        places += (f"{slot}.{option}" for option in refused)
    return _containing(settings, places)


def _refused_options(plugin: str, options: Mapping[str, Any]) -> list[str]:
    """Return the names of the options that a plugin refuses; empty for an unknown plugin."""
    places: list[str] = []
    with suppress(PluginError):
        places += _problems(load_class(plugin).Options, options)
    return _containing(options, places)


def _containing(keys: Collection[str], places: Collection[str]) -> list[str]:
    """Return the dotted keys that are one of the dotted places, or contain one."""
    return [key for key in keys if any(f"{place}.".startswith(f"{key}.") for place in places)]


def _no_value(rules: Sequence[Rule], option: str, value: Any) -> dict[str, str]:
    """Return the reason for a refused value, by the program's settings that state it."""
    reason = FEW_STEPS if option == STEPS else f"{value!r} is no value of {option}"
    return dict.fromkeys(_keys_of(rules, option), reason)


def _problems(model: type[BaseModel], values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the dotted keys of `values` that a model refuses."""
    try:
        model.model_validate_json(json.dumps(values))
    except ValidationError as problems:
        for problem in problems.errors():
            yield ".".join(map(str, problem["loc"]))


def _owned(slot: str) -> Collection[str]:
    """Return the keys of a scenario section that are not options of its plugin."""
    kind: Any = Scenario.model_fields[slot].annotation
    return {"use", *kind.owned_keys()}


def _keys_of(rules: Sequence[Rule], option: str) -> set[str]:
    """Return the names of a program's settings that state the scenario's setting `option`."""
    names = {option, option.partition(".")[2]}
    return {
        key
        for rule in rules
        for key, value in rule.set.items()
        if names & {ITEM.sub("", name) for name in options_in(value)}
    }


def _plugin_in(
    plugin: str, name: str, trainer: Trainer, settings: Mapping[str, Any], is_named: bool
) -> tuple[dict[str, Any], set[str]]:
    """Return a plugin's options, and the keys of the program's settings that state them.

    Both are empty if the settings do not use the plugin. The settings use the plugin if they match
    all placeholder-free settings of one of the plugin's rules, and these are not all null; if
    `is_named`, another rule has named the plugin already. `name` is the name of the program
    `trainer`.
    """
    rules = rules_of(plugin, name)
    best: tuple[dict[str, Any], set[str]] = {}, set()
    for view in (settings, _alike(trainer, settings)):
        said = (rule for rule in rules if any(value is not None for value in rule.fixed.values()))
        if is_named or any(recognize([rule], view)[1] for rule in said):
            best = max(best, recognize(rules, view), key=lambda read: len(read[1]))
    return best


def _slot_of(plugin: str) -> str:
    """Return the scenario section that a plugin fills; empty for a plugin of a stack."""
    if known := shipped().get(plugin):
        return next(iter(known.fills), "")
    try:
        return next(iter(slots_of(load_class(plugin))), "")
    except PluginError:
        return ""


def _left_out(
    trainer: Trainer, given: Mapping[str, Any], used: set[str], rules: Sequence[Rule]
) -> Iterator[tuple[str, str]]:
    """Yield the dotted key of each setting that is not imported, with the reason.

    Settings without effect are skipped. `given` are the file's settings, `used` the keys that were
    translated, and `rules` the rules that translated them.
    """
    for key, value in given.items():
        if key in used:
            yield from ((path, NO_COUNTERPART) for path in _unread(key, value, rules))
        elif isinstance(value, dict) and any(path.startswith(f"{key}.") for path in used):
            inner = dict(dotted({key: value}))
            yield from _left_out(trainer, inner, used, rules)
        elif trainer.always.get(key) != value and not _says_nothing(trainer, key, value):
            yield key, _reason(trainer, key)


def _reason(trainer: Trainer, key: str) -> str:
    """Return the reason why an import leaves out the setting `key`."""
    if key in trainer.always:
        return f"here it is {trainer.always[key]}"
    return trainer.ignored.get(key, NO_COUNTERPART)


def _says_nothing(trainer: Trainer, key: str, value: Any) -> bool:
    """Return whether a setting turns something off; a zero may be a value if there is a default."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value == 0 and is_number and key in trainer.defaults:
        return False
    return value in (None, False, "", [], {}, "no", "none", -1)


def _unread(key: str, value: Any, rules: Sequence[Rule]) -> list[str]:
    """Return paths, such as `key.sub[0]`, of entries in a setting's value that no rule reads."""
    shapes = [rule.set[key] for rule in rules if key in rule.set and fits(rule.set[key], value)]
    parts = [[*unread(shape, value, key)] for shape in shapes]
    return [path for path in parts[0] if all(path in part for part in parts)] if parts else []
