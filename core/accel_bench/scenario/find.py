"""Search for a scenario by path, shipped name, mapping or model, and its merge with the files that
it extends. The extending file wins: its `null` removes a key, its sweep replaces a setting.

A draft is a scenario before validation. A layer is the data of one file or of several merged files.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from accel_bench.documents.load import SUFFIXES, Location, ParsedFile, check_plain, load_file
from accel_bench.documents.presets import find_presets, how_to_get
from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.scenario.draft import Draft, Layer, is_value, look_up
from accel_bench.scenario.models import Work

ScenarioSource: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | Work
"""Source of scenarios: a file, a folder of files, a shipped scenario's name, or a scenario."""

MAXIMUM_EXTENDS = 16
"""Largest number of files in one chain of `extends`."""

SEVERAL, DEFAULTS = "scenarios", "defaults"
"""Keys of a file with several scenarios: their list, and their common defaults."""

GIVEN = "the scenario"
"""Name in messages of a scenario that was given as a mapping or model."""


def find_drafts(sources: Sequence[ScenarioSource]) -> list[Draft]:
    """Return the drafts of all sources; a folder's slow scenarios are left out. Raises
    ScenarioError for an unknown source or an invalid file."""
    return [draft for source in sources for draft in _drafts_of(source)]


def _drafts_of(source: ScenarioSource) -> list[Draft]:
    if isinstance(source, Work):
        return [_draft_of(source.model_dump(mode="json", exclude_none=True))]
    if isinstance(source, Mapping):
        return [_draft_of(source)]
    if isinstance(source, str | os.PathLike):
        return _named(os.fspath(source))
    raise ScenarioError(
        f"a scenario is a path, the name of a shipped one, a mapping or a Scenario, and no "
        f"{type(source).__name__}"
    )


def to_plain(values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return values in the form of a file: models as mappings, tuples as lists, paths as texts.

    `what` names the values in messages. Raises ScenarioError for a value that no file can hold.
    """
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        plain: dict[str, Any] = to_jsonable_python(dict(values), inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError) as error:
        raise ScenarioError(f"{what}: {error}") from error
    check_plain(ParsedFile(what, plain), plain, ())
    return plain


def _draft_of(data: Mapping[str, Any]) -> Draft:
    return make_draft(ParsedFile(GIVEN, to_plain(data, GIVEN)), Path.cwd())


def _named(name: str) -> list[Draft]:
    path = Path(name)
    try:
        is_folder, is_file = path.is_dir(), path.exists()
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{name!r} cannot be read: {error}") from error
    if is_folder:
        return _suite(path)
    if is_file:
        return read_drafts(path)
    known = find_presets("scenarios")
    if name in known:
        return read_drafts(known[name])
    how = how_to_get("scenarios", name, known)
    raise ScenarioError(f"{name!r} is neither a file nor a shipped scenario{how}")


def _suite(folder: Path) -> list[Draft]:
    """Return drafts of the scenarios in a folder; slow scenarios and stack files are left out."""
    paths = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    drafts = [
        draft
        for path in paths
        for draft in read_drafts(path)
        if draft.get("slow") is not True and not {"use", "set"} & set(draft.data)
    ]
    if not drafts:
        raise ScenarioError(f"{folder} holds no scenario that is not slow")
    return drafts


def read_drafts(path: Path) -> list[Draft]:
    """Return drafts of a file's scenarios: one, or each of `scenarios` merged over `defaults`.

    Raises ScenarioError for an invalid file.
    """
    document = load_file(path)
    if SEVERAL not in document.data:
        return [_whole_file(document, path)]
    entries, defaults = document.data[SEVERAL], document.data.get(DEFAULTS, {})
    for key in document.data.keys() - {SEVERAL, DEFAULTS}:
        raise ScenarioError(
            f"{document.where((key,))}: beside `{SEVERAL}` a file has `{DEFAULTS}` alone"
        )
    if not isinstance(defaults, dict) or not isinstance(entries, list) or not entries:
        raise ScenarioError(
            f"{path}: `{SEVERAL}` is a list of scenarios, and `{DEFAULTS}` what they share"
        )
    drafts: dict[str, Draft] = {}
    for number, entry in enumerate(entries):
        where = document.where((SEVERAL, number))
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or name in drafts:
            raise ScenarioError(f"{where}: each of `{SEVERAL}` has a name of its own")
        below = _merged(_part(document, (DEFAULTS,), defaults), path.parent, ())
        layer = _merged(_part(document, (SEVERAL, number), entry), path.parent, ())
        merged = lay_over(below, layer)
        source = f"{path} ({name})"
        drafts[name] = Draft(source, merged.data, merged.places, path.parent, merged.notices)
    return [*drafts.values()]


def _part(document: ParsedFile, location: Location, data: dict[str, Any]) -> ParsedFile:
    """Return the mapping `data` at the path `location` of a file as a parsed file of its own."""
    depth = len(location)
    marks = {at[depth:]: mark for at, mark in document.marks.items() if at[:depth] == location}
    return ParsedFile(document.source, copy.deepcopy(data), marks)


def read_draft(path: Path) -> Draft:
    """Return the draft of a scenario file, merged over the files that it extends. Raises
    ScenarioError for an invalid file."""
    return _whole_file(load_file(path), path)


def _whole_file(document: ParsedFile, path: Path) -> Draft:
    """Return the draft of a file that is one scenario. Raises ScenarioError for an empty file."""
    layer = _merged(document, path.parent, (path.resolve(),))
    if not layer.data:
        raise ScenarioError(
            f"{path} holds no scenario; `accel-bench scenarios show quickstart` prints one to copy"
        )
    return Draft(str(path), layer.data, layer.places, path.parent, layer.notices)


def make_draft(document: ParsedFile, folder: Path) -> Draft:
    """Return the draft of a scenario given as a mapping. Raises ScenarioError for an unusable one.
    Stacks and files that the scenario names are searched in `folder` first."""
    layer = _merged(document, folder, ())
    return Draft(document.source, layer.data, layer.places, folder, layer.notices)


def _read_merged(path: Path, chain: tuple[Path, ...]) -> Layer:
    """Return the layer of a file merged over the files it extends; files in `chain` extend it."""
    resolved = path.resolve()
    if resolved in chain:
        circle = " -> ".join(str(link) for link in (*chain, resolved))
        raise ScenarioError(f"{path}: `extends` goes in a circle: {circle}")
    if len(chain) >= MAXIMUM_EXTENDS:
        raise ScenarioError(f"{path}: more than {MAXIMUM_EXTENDS} files extend one another")
    return _merged(load_file(path), path.parent, (*chain, resolved))


def _merged(document: ParsedFile, folder: Path, chain: tuple[Path, ...]) -> Layer:
    """Return the layer of a document over the files that it extends, searched in `folder` first."""
    bases = document.data.pop("extends", None) or []
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ScenarioError(
            f"{document.where(('extends',))}: `extends` is a file, or a list of them"
        )
    merged = Layer({})
    for base in bases:
        merged = lay_over(merged, _read_merged(_base_path(document, folder, base), chain))
    places = {location: document.where(location) for location in document.marks}
    return lay_over(merged, Layer(document.data, places))


def _base_path(document: ParsedFile, folder: Path, base: str) -> Path:
    """Return the path of the extended file `base`: in `folder`, else a shipped scenario."""
    beside = folder / base
    if beside.is_file():
        return beside
    known = find_presets("scenarios")
    if base in known:
        return known[base]
    where = document.where(("extends",))
    raise ScenarioError(f"{where}: {base!r} is no file beside this one{did_you_mean(base, known)}")


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
    """Return `below` merged with `above` by key: null in `above` removes, other values replace."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return copy.deepcopy(above)
    result = dict(below)
    for key, value in above.items():
        if value is None and key in below and not is_value(key):
            del result[key]
        else:
            result[key] = merge_keys(below.get(key), value)
    return result
