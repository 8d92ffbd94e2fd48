"""Finding scenarios by path, shipped name, mapping or model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from accel_bench.documents.load import SUFFIXES, ParsedFile, check_plain
from accel_bench.documents.presets import find_presets, how_to_get
from accel_bench.errors import ScenarioError
from accel_bench.scenario.draft import Draft, make_draft, read_draft
from accel_bench.scenario.models import Work

ScenarioSource: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | Work
"""Source of scenarios: a file, a folder of files, a shipped scenario's name, or a scenario."""

GIVEN = "the scenario"
"""Name in messages of a scenario that was given as a mapping or model."""


def find_drafts(sources: Sequence[ScenarioSource]) -> list[Draft]:
    """Read the scenarios of all sources, without the slow ones of folders. Raises ScenarioError."""
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
    """Return values as a file has them: models as mappings, tuples as lists, paths as texts.

    `what` names the values in messages. Raises ScenarioError.
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
        return [read_draft(path)]
    known = find_presets("scenarios")
    if name in known:
        return [read_draft(known[name])]
    how = how_to_get("scenarios", name, known)
    raise ScenarioError(f"{name!r} is neither a file nor a shipped scenario{how}")


def _suite(folder: Path) -> list[Draft]:
    """Return the scenarios of a folder, without slow ones and named stacks."""
    paths = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    drafts = [
        draft
        for draft in map(read_draft, paths)
        if draft.get("slow") is not True and not {"use", "set"} & set(draft.data)
    ]
    if not drafts:
        raise ScenarioError(f"{folder} holds no scenario that is not slow")
    return drafts
