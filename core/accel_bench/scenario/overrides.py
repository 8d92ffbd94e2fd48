"""Layers of a scenario: a file over the files that it extends, the command line over all. The upper
layer wins: its `null` removes a key, and its sweep replaces a setting or the reverse."""

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
"""Keys whose mappings hold dotted keys with lists of values."""


@dataclass
class Layer:
    """Plain data of one file or several merged ones, with the location of every value."""

    data: dict[str, Any]
    places: dict[Location, str] = field(default_factory=dict)

    notices: list[str] = field(default_factory=list)
    """Messages about keys of a lower layer that gave way to a sweep or a setting."""

    def axes(self) -> dict[str, Location]:
        """Return the location of each swept key."""
        mappings = {kind: self.data.get(kind) for kind in AXES}
        return {
            key: (kind, key)
            for kind, axes in mappings.items()
            if isinstance(axes, dict)
            for key in axes
        }

    def where(self, location: Location) -> str:
        """Return file, line and column of a value, without the file's folder."""
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
        """Remove values that an upper layer sweeps or sets, given with their locations."""
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
    """Return `below` merged with `above`; `below` must not be used afterwards."""
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
    """Merge mappings by key: null removes a key; other values, also lists, are replaced."""
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
    """Return whether null is a valid value of a key: `use: null` names the plugin called `null`."""
    return key == "use"


def dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings by dotted key; lists are not descended into."""
    for key, item in values.items():
        if isinstance(item, Mapping):
            yield from dotted(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item


def look_up(data: Any, key: str) -> tuple[bool, Any]:
    """Return whether nested mappings hold a dotted key, and the value."""
    for part in key.split("."):
        if not (isinstance(data, dict) and part in data):
            return False, None
        data = data[part]
    return True, data


def set_path(data: dict[str, Any], parts: Sequence[str], value: Any) -> None:
    """Set a key in nested mappings; a slot given as a bare name becomes a mapping."""
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
