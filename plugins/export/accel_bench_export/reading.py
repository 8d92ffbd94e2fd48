"""Reading of other programs' configurations as the settings and stacks of a scenario."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accel_bench.documents.load import load_file
from accel_bench.errors import ImportFileError, PluginError
from accel_bench.plugins.describe import slots_of
from accel_bench.plugins.manager import load_class
from accel_bench.plugins.shipped import shipped
from accel_bench.scenario.draft import dotted
from accel_bench_export.configuration import SLOTS
from accel_bench_export.equivalents import declaring_plugins, rules_of
from accel_bench_export.rules import recognize
from accel_bench_export.trainers import Trainer, read_trainer, readable_names

NO_COUNTERPART = "no installed plugin is its counterpart"
"""Reason why a setting is left out."""

MOST_STEPS = 1000
"""Largest number of steps that is taken over: a benchmark needs a few."""

STEPS = "measure.steps"

PICKLED = (".bin", ".pt", ".pkl", ".pickle")
"""Suffixes of files that hold pickles."""


@dataclass
class ReadConfiguration:
    """Configuration of another program, as far as a scenario can say it."""

    program: str
    settings: dict[str, Any]
    """Settings of the work by dotted key."""

    uses: list[Any]
    """Plugins of the stack, as in a scenario file."""

    left_out: dict[str, str] = field(default_factory=dict)
    """Settings of the file that are left out, each with the reason."""


def read_configuration(path: Path) -> ReadConfiguration | None:
    """Return the content of a file; None for a file of no known program.

    Raises ImportFileError for a pickle, which would run what it holds.
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
    """Return the program with the most of its own settings in a file."""
    known = {name: read_trainer(name).recognized for name in readable_names()}
    found = {name: sum(key in data for key in keys) for name, keys in known.items()}
    best = max(found, key=lambda name: found[name], default=None)
    return best if best is not None and found[best] else None


def _read(name: str, trainer: Trainer, data: Mapping[str, Any]) -> ReadConfiguration:
    """Return the work, the plugins of slots and of the stack, and what is left out."""
    given = {**data, **dict(dotted(data))}  # nested keys are reached by both spellings
    whole = {**trainer.defaults, **given}
    settings, used = recognize(trainer.work, whole)
    settings = dict(trainer.imported) | settings
    uses: list[Any] = []
    slots: dict[str, tuple[bool, int, dict[str, Any], set[str]]] = {}
    for plugin in declaring_plugins():
        options, keys = _plugin_in(plugin, name, trainer, whole)
        slot = _slot_of(plugin)
        if slot in SLOTS and keys & {*given}:
            said = settings.get(f"{slot}.use") == plugin
            rank = (said, len(keys))
            if rank > slots.get(slot, (False, 0))[:2]:
                slots[slot] = (*rank, {"use": plugin, **options}, keys)
        elif not slot and keys & {*given} - used:
            uses.append({"use": plugin, **options} if options else plugin)
            used |= keys
    for slot, (_, _, use, keys) in slots.items():
        settings |= {f"{slot}.{key}": value for key, value in use.items()}
        used |= keys
    settings = {key: value for key, value in settings.items() if value is not None}
    found = ReadConfiguration(name, settings, uses)
    steps = settings.get(STEPS)
    if steps is not None and not (isinstance(steps, int) and 0 < steps <= MOST_STEPS):
        del settings[STEPS]
        used -= {key for key, value in given.items() if value == steps}
    found.left_out = dict(_left_out(trainer, data, used))
    return found


def _plugin_in(
    plugin: str, name: str, trainer: Trainer, settings: Mapping[str, Any]
) -> tuple[dict[str, Any], set[str]]:
    """Return the options of a plugin that settings state, and their keys; none without it.

    A plugin is there if one of its rules with fixed settings is recognized.
    """
    rules = rules_of(plugin, name)
    alike = {
        key: trainer.alike.get(key, {}).get(str(value), value) for key, value in settings.items()
    }
    found: tuple[dict[str, Any], set[str]] = {}, set()
    for view in (settings, alike):
        if any(rule.fixed and recognize([rule], view)[1] for rule in rules):
            found = max(found, recognize(rules, view), key=lambda one: len(one[1]))
    return found


def _slot_of(plugin: str) -> str:
    """Return the slot that a plugin fills; empty for a plugin of a stack."""
    if known := shipped().get(plugin):
        return next(iter(known.fills), "")
    try:
        return next(iter(slots_of(load_class(plugin))), "")
    except PluginError:
        return ""


def _left_out(
    trainer: Trainer, data: Mapping[str, Any], used: set[str]
) -> Iterator[tuple[str, str]]:
    """Yield settings that are left out; those that say nothing are not named."""
    for key, value in data.items():
        if key in used or value in (None, False, "", [], {}, "no", "none", -1):
            continue
        if any(one.startswith(f"{key}.") for one in used) or trainer.always.get(key) == value:
            continue
        if key in trainer.ignored:
            yield key, trainer.ignored[key]
        elif key in trainer.always:
            yield key, f"here it is {trainer.always[key]}"
        else:
            yield key, NO_COUNTERPART
