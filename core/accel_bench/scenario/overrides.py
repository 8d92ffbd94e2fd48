"""One layer of a scenario over another: a file over those that it extends, the command line over
all. What is above wins: `null` takes a key back, and a key is swept or set, as the upper one says.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accel_bench.documents.load import Location
from accel_bench.errors import ScenarioError
from accel_bench.scenario.models import Work

AXES = ("sweep", "zip")
"""Keys whose mappings hold dotted keys, each with the values that it takes."""


@dataclass
class Layer:
    """Plain data of one file or several merged ones, and the place of every value."""

    data: dict[str, Any]
    places: dict[Location, str] = field(default_factory=dict)

    notices: list[str] = field(default_factory=list)
    """What of a lower layer gave way: keys that one layer sets and another one sweeps."""

    def axes(self) -> dict[str, Location]:
        """Return where each swept key stands in the data."""
        mappings = {kind: self.data.get(kind) for kind in AXES}
        return {
            key: (kind, key)
            for kind, axes in mappings.items()
            if isinstance(axes, dict)
            for key in axes
        }

    def where(self, location: Location) -> str:
        """Return the file, line and column of a value, without the file's folder."""
        known = (self.places.get(location[:length]) for length in range(len(location), 0, -1))
        return Path(next(filter(None, known), "the scenario")).name

    def remove(self, location: Location) -> None:
        """Remove a value and its places, where it is there."""
        *parents, last = location
        here: Any = self.data
        for part in parents:
            here = here.get(part) if isinstance(here, dict) else None
        if isinstance(here, dict):
            here.pop(last, None)
        for known in [known for known in self.places if known[: len(location)] == location]:
            del self.places[known]

    def give_way(self, swept: Mapping[str, str], is_set: Mapping[str, str]) -> None:
        """Remove what a layer above sweeps or sets; its keys come with their places."""
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


def lay_over(below: Layer, above: Layer) -> Layer:
    """Return both as one layer; `below` must not be used any more."""
    swept = {key: above.where(axis) for key, axis in above.axes().items()}
    is_set = {
        key: above.where(tuple(key.split(".")))
        for key in below.axes()
        if look_up(above.data, key)[1] is not None
    }
    below.give_way(swept, is_set)
    return Layer(
        merge_keys(below.data, above.data),
        {**below.places, **above.places},
        [*below.notices, *above.notices],
    )


def merge_keys(below: Any, above: Any) -> Any:
    """Merge mappings key by key; null takes a key back; all else, lists included, is replaced."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return copy.deepcopy(above)
    result = dict(below)
    for key, value in above.items():
        if value is None and key in below and not is_value(key):
            del result[key]
        else:
            result[key] = merge_keys(below.get(key), value)
    return result


def is_value(key: str) -> bool:
    """Return whether null is a value of this key: `use: null` names the plugin called `null`."""
    return key == "use"


def dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings by dotted key; a list is a value."""
    for key, item in values.items():
        if isinstance(item, Mapping):
            yield from dotted(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item


def look_up(data: Any, key: str) -> tuple[bool, Any]:
    """Return whether nested mappings hold a dotted key, and its value."""
    for part in key.split("."):
        if not (isinstance(data, dict) and part in data):
            return False, None
        data = data[part]
    return True, data


def set_path(data: dict[str, Any], parts: Sequence[str], value: Any) -> None:
    """Set a key in nested mappings; a slot that is a bare name becomes a mapping."""
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
