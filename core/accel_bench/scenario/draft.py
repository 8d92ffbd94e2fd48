"""A scenario before validation: plain data that can be changed, with the location of each value."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from accel_bench.documents.load import MAXIMUM_DEPTH, Location, load_file
from accel_bench.documents.presets import find_presets, how_to_get
from accel_bench.documents.validate import validate
from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.scenario.models import StackEntry, Work

AXES = ("sweep", "zip")
"""Keys whose mappings hold dotted keys with lists of values."""

Setting: TypeAlias = tuple[str, Any, str]
"""A dotted key, its value, and the location that sets it."""

SET = "set"
"""Key of a stack for the settings that the stack changes."""

SHORT = {
    "resources.device": "--device",
    "measure.timeout_seconds": "--timeout",
    "baseline": "the baseline",
}
"""Command-line options that set a key beside `--set`, for error messages."""


@dataclass
class Layer:
    """Plain data of one file or of several merged files, with the location of every value."""

    data: dict[str, Any]
    places: dict[Location, str] = field(default_factory=dict)

    notices: list[str] = field(default_factory=list)
    """Messages about keys of extended files that were replaced by a sweep or a setting."""

    def axes(self) -> dict[str, Location]:
        """Return each swept key with its path in the data."""
        mappings = {kind: self.data.get(kind) for kind in AXES}
        return {
            key: (kind, key)
            for kind, axes in mappings.items()
            if isinstance(axes, dict)
            for key in axes
        }

    def where(self, location: Location) -> str:
        """Return the file name, line and column of the value at the path `location`."""
        known = (self.places.get(location[:length]) for length in range(len(location), 0, -1))
        return Path(next(filter(None, known), "the scenario")).name

    def remove(self, location: Location) -> None:
        """Remove a value and its locations, if it exists."""
        *parents, last = location
        here: Any = self.data
        for part in parents:
            here = here.get(part) if isinstance(here, dict) else None
        if isinstance(here, dict):
            here.pop(last, None)
        for known in [known for known in self.places if known[: len(location)] == location]:
            del self.places[known]

    def give_way(self, swept: Mapping[str, str], is_set: Mapping[str, str]) -> None:
        """Remove values of the keys in `swept`, and sweeps of the keys in `is_set`. Those are the
        dotted keys that an overriding layer sweeps or sets, each with its location there."""
        for key, place in swept.items():
            location = tuple(key.split("."))
            if look_up(self.data, key)[1] is not None:
                self._replaced(f"{key} is swept ({place})", f"its value ({self.where(location)})")
                self.remove(location)
        for key, place in is_set.items():
            if axis := self.axes().get(key):
                self._replaced(f"{key} is set ({place})", f"its sweep ({self.where(axis)})")
                self.remove(axis)

    def _replaced(self, above: str, below: str) -> None:
        self.notices.append(f"{above}, which replaces {below}")


@dataclass
class Draft:
    """Plain data of one scenario, with the location in a file of each value.

    Every stack is spelt out as `{set: ..., use: [...]}`; named stacks are looked up. Raises
    ScenarioError for an unknown stack.
    """

    source: str

    data: dict[str, Any]
    """Merged and normalised values."""

    places: dict[Location, str] = field(default_factory=dict)
    """Location of each value by path: `file:line:column`, or the override."""

    folder: Path | None = None
    """Folder of the file, searched first for named stacks and `extends`."""

    notices: list[str] = field(default_factory=list)
    """Messages about keys that one layer sets and another sweeps, with the prevailing layer."""

    def __post_init__(self) -> None:
        self._normalise_stacks()

    def where(self, location: Location) -> str:
        """Return the location of a value, or of the nearest enclosing value with a location."""
        for length in range(len(location), 0, -1):
            if place := self.places.get(tuple(location[:length])):
                return place
        return self.source

    def get(self, key: str) -> Any:
        """Return the value of a dotted key; None if it is not set."""
        return look_up(self.data, key)[1]

    def stack(self, name: str) -> StackEntry:
        """Return the stack called `name`, validated; an empty stack for an unknown name."""
        return validate(
            StackEntry,
            (self.data.get("stacks") or {}).get(name, {}),
            lambda inner: self.where(("stacks", name, *inner)),
            ScenarioError,
        )

    def set(self, key: str, value: Any, place: str) -> None:
        """Set the value of a dotted key; `place` is its file location or option, for messages. A
        key `stacks.NAME.PLUGIN.OPTION` sets a plugin's option. What follows `sweep.`, `zip.` or
        `stacks.NAME.set.` counts as one dotted key."""
        check_depth(key)
        parts = _parts(key)
        # The values below are replaced, so their places are no longer true.
        for below in [known for known in self.places if known[: len(parts)] == tuple(parts)]:
            del self.places[below]
        self.places[tuple(parts)] = place
        for length in range(1, len(parts)):
            self.places.setdefault(tuple(parts[:length]), place)
        if _is_of_stack(parts):
            set_path(self._part_of(parts[1], parts[2]), parts[3:], value)
            return
        set_path(self.data, parts, value)
        if parts[0] == "stacks":
            self._normalise_stacks()

    def with_values(self, settings: Iterable[Setting]) -> Draft:
        """Return a copy in which the dotted keys of `settings` are set, as by `set`."""
        changed = copy.deepcopy(self)
        for key, value, place in settings:
            changed.set(key, value, place)
        return changed

    def override(self, changes: Sequence[tuple[str, Any]]) -> None:
        """Set dotted keys of the command line over the file's values. `null` removes a key. A sweep
        replaces the file's setting of its key, and a setting replaces the file's sweep of its key.
        Raises ScenarioError for a key that cannot be set."""
        keys = [key for key, _ in changes]
        axes = {axis: f"--set {key}" for key, value in changes for axis in _swept(key, value)}
        below = Layer(self.data, self.places, self.notices)
        # What the command line itself both sets and sweeps is left there, to be refused.
        below.give_way(
            {key: place for key, place in axes.items() if key not in keys},
            {key: f"--set {key}" for key in keys if key not in axes},
        )
        for key, value in changes:
            if value is not None or not self._take_back(key):
                self.set(key, value, SHORT.get(key, f"--set {key}"))

    def _take_back(self, key: str) -> bool:
        """Remove a dotted key, and return whether it existed."""
        check_depth(key)
        parts = _parts(key)
        data: Any = self.data
        rest = parts
        if _is_of_stack(parts):
            data, rest = self._part_of(parts[1], parts[2]), parts[3:]
        for part in rest[:-1]:
            data = data.get(part) if isinstance(data, dict) else None
        if is_value(rest[-1]) or not isinstance(data, dict) or rest[-1] not in data:
            return False
        del data[rest[-1]]
        return True

    def _normalise_stacks(self) -> None:
        stacks = self.data.get("stacks")
        if not isinstance(stacks, dict):
            return
        for name, entry in stacks.items():
            if isinstance(entry, str):
                stacks[name] = self._named_stack(name, entry)
            elif entry is None:
                stacks[name] = {"use": []}
            elif isinstance(entry, list):
                stacks[name] = {"use": entry}
                self._move_places_under_use(("stacks", name))

    def _move_places_under_use(self, stack: Location) -> None:
        for location in [key for key in self.places if key[:2] == stack and len(key) > 2]:
            self.places[(*stack, "use", *location[2:])] = self.places[location]

    def _named_stack(self, name: str, preset: str) -> dict[str, Any]:
        """Return the content of the stack file `preset`, from the scenario's folder or shipped."""
        known = find_presets("stacks")
        if self.folder is not None:
            beside = [*self.folder.glob("*.yaml"), *(self.folder / "stacks").glob("*.yaml")]
            known = {**known, **{path.stem: path for path in beside}}
        if preset not in known:
            where = self.where(("stacks", name))
            how = how_to_get("stacks", preset, known)
            raise ScenarioError(f"{where}: no stack is called {preset!r}{how}")
        return read_stack(known[preset]).model_dump(mode="json")

    def _part_of(self, stack: str, part: str) -> dict[str, Any]:
        """Return the settings of a stack if `part` is `set`, else the options of its plugin called
        `part`. Changes of the returned mapping change the draft. Raises ScenarioError for an
        unknown name."""
        stacks = self.data.get("stacks", {})
        if stack not in stacks:
            hint = did_you_mean(stack, stacks)
            if self.get("ladder"):
                hint += "; what a ladder makes is changed in its items: --set 'ladder=[...]'"
            raise ScenarioError(f"no stack is called {stack!r}{hint}")
        if part == SET:
            settings: dict[str, Any] = stacks[stack].setdefault(SET, {})
            return settings
        uses = stacks[stack].get("use", [])
        names = [use if isinstance(use, str) else use.get("use") for use in uses]
        if part not in names:
            known = did_you_mean(part, filter(None, names))
            raise ScenarioError(f"stack {stack!r} does not use the plugin {part!r}{known}")
        index = names.index(part)
        use = {"use": part} if isinstance(uses[index], str) else dict(uses[index])
        uses[index] = use
        return use


def _parts(key: str) -> list[str]:
    """Split a dotted key at its dots, except after `sweep`, `zip` and `stacks.NAME.set`."""
    first, *rest = key.split(".")
    if first == "stacks" and rest[1:2] == [SET] and rest[2:]:
        return [first, *rest[:2], ".".join(rest[2:])]
    return [first, ".".join(rest)] if first in AXES and rest else [first, *rest]


def _is_of_stack(parts: Sequence[str]) -> bool:
    return parts[0] == "stacks" and len(parts) >= 4


def _swept(key: str, value: Any) -> list[str]:
    """Return the dotted keys that `--set key=value` sweeps; empty unless in `sweep` or `zip`."""
    first, _, rest = key.partition(".")
    if first not in AXES or value is None:
        return []
    return [rest] if rest else list(value) if isinstance(value, Mapping) else []


def read_stack(path: Path) -> StackEntry:
    """Return the stack in a stack file. Raises ScenarioError for an invalid file."""
    document = load_file(path)
    return validate(StackEntry, document.data, document.where, ScenarioError)


def check_depth(key: str) -> None:
    """Raise ScenarioError for a dotted key that is nested deeper than a file may be."""
    parts = key.count(".") + 1
    if parts > MAXIMUM_DEPTH:
        raise ScenarioError(f"{key[:40]}... has {parts} parts; at most {MAXIMUM_DEPTH} may be")


def is_value(key: str) -> bool:
    """Return whether a null sets this key (`use: null` names a plugin) instead of removing it."""
    return key == "use"


def dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted key and value from nested mappings; keys begin with `prefix`. A list is one
    value."""
    for key, item in values.items():
        if isinstance(item, Mapping):
            yield from dotted(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item


def look_up(data: Any, key: str) -> tuple[bool, Any]:
    """Return whether nested mappings have a dotted key, and its value or None."""
    for part in key.split("."):
        if not (isinstance(data, dict) and part in data):
            return False, None
        data = data[part]
    return True, data


def set_path(data: dict[str, Any], parts: Sequence[str], value: Any) -> None:
    """Set the value at the path `parts` in nested mappings. A slot on the path that is only a name
    becomes `{use: name}`. Raises ScenarioError if the path leads through another value."""
    key = ".".join(parts)
    *parents, last = parts
    if not last or not all(parents):
        raise ScenarioError(f"{key!r} is not a dotted key like train.micro_batch_size")
    here = data
    for depth, part in enumerate(parents):
        inner = here.setdefault(part, {})
        if isinstance(inner, str) and depth == 0 and part in Work.SLOTS:
            inner = here[part] = {"use": inner}
        if not isinstance(inner, dict):
            raise ScenarioError(f"{key!r} cannot be set: {part!r} holds a value, not keys")
        here = inner
    here[last] = value
