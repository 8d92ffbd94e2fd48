"""Presets: sample configuration files that ship with accel-bench or with plugins."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

from accel_bench.errors import ScenarioError, did_you_mean, install_command

PRESETS_GROUP = "accel_bench.samples"
"""Entry-point group of packages with a folder `sample_configurations`; they are never imported."""


def presets_root() -> Path:
    """Return the folder of accel-bench's own presets: in the package, or in the checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "sample_configurations"
    return inside if inside.is_dir() else package.parent.parent / "sample_configurations"


def preset_roots() -> list[Path]:
    """Return all folders of presets: accel-bench's own, then those of plugins, sorted by name."""
    return [presets_root(), *_roots_on(tuple(sys.path))]


def entry_points(group: str) -> dict[metadata.EntryPoint, None]:
    """Return the installed entry points of a group, without duplicates, as keys of a dictionary.

    The metadata of all distributions are read once for each `sys.path`.
    """
    return dict.fromkeys(_points_on(tuple(sys.path)).select(group=group))


@lru_cache(maxsize=1)
def _points_on(_path: tuple[str, ...]) -> Any:
    """Return the entry points of all groups on this `sys.path`, from the cache if possible."""
    return metadata.entry_points()


@lru_cache(maxsize=1)
def _roots_on(_path: tuple[str, ...]) -> tuple[Path, ...]:
    """Return the folders of presets in the distributions on this `sys.path`."""
    entries = sorted(entry_points(PRESETS_GROUP), key=lambda entry: entry.name)
    return tuple(root for entry in entries if (root := _root_of(entry)))


def find_presets(kind: str) -> dict[str, Path]:
    """Return the files of the presets of a kind (`scenarios`, `stacks`, `models`) by preset name.

    A preset of accel-bench hides a plugin's preset of the same name.
    """
    presets: dict[str, Path] = {}
    for root in preset_roots():
        for path in sorted((root / kind).glob("*.yaml"), key=attrgetter("name")):
            presets.setdefault(path.stem, path)
    return presets


def preset_path(kind: str, name: str) -> Path:
    """Return the file of the preset called `name` of a kind such as `models`. Raises ScenarioError
    for an unknown name; the message suggests the most similar name."""
    presets = find_presets(kind)
    if name not in presets:
        raise ScenarioError(
            f"no {kind.rstrip('s')} is called {name!r}{how_to_get(kind, name, presets)}"
        )
    return presets[name]


def how_to_get(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the end of an error message for the unknown preset `name` of a kind such as `models`.
    It tells how to install the preset, or suggests the most similar of the `known` names."""
    from accel_bench.documents.load import load_file  # The program's help reads no file.

    for plugin in load_file(presets_root() / "shipped.yaml").data.values():
        if name in plugin.get(kind, ()):
            return f"; it is not installed: {install_command(plugin['extra'])}"
    return did_you_mean(name, known)


def _root_of(entry: metadata.EntryPoint) -> Path | None:
    """Return the folder of presets in the package that an entry point names; None if it has none.
    The package is not imported."""
    package, *inner = entry.value.partition(":")[0].split(".")
    places = [] if entry.dist is None else [str(entry.dist.locate_file(package))]
    if spec := find_spec(package):  # of a dotted name it would import the parent
        places += spec.submodule_search_locations or ()
    folders = (Path(place, *inner, "sample_configurations") for place in places)
    return next((folder for folder in folders if folder.is_dir()), None)
