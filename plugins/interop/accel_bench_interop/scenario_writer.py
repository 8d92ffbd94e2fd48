"""Writer of converted scenarios and stacks as files of accel-bench."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from accel_bench.documents.files import write_atomically
from accel_bench.errors import ImportFileError
from accel_bench.scenario.draft import set_path


@dataclass(frozen=True, kw_only=True)
class NativeScenario:
    """A scenario of another program, converted to accel-bench's settings and stacks."""

    name: str

    source: str
    """Origin of the scenario, written in the first line of its file."""

    slow: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the work that are not swept, by dotted key."""

    stacks: Mapping[str, Any] = field(default_factory=lambda: {"baseline": []})
    sweep: Mapping[str, list[Any]] = field(default_factory=dict)
    zip: Mapping[str, list[Any]] = field(default_factory=dict)

    @property
    def experiments(self) -> int:
        """Number of experiments of the scenario: stacks times sweep points."""
        points = math.prod(len(values) for values in self.sweep.values())
        moving = len(next(iter(self.zip.values()), [None]))
        return len(self.stacks) * points * moving

    def text(self) -> str:
        """Return the text of the scenario's file; a sweep over one value is a setting in it."""
        document: dict[str, Any] = {"name": self.name, **({"slow": True} if self.slow else {})}
        axes = {"sweep": self.sweep, "zip": self.zip}
        single = {k: v[0] for columns in axes.values() for k, v in columns.items() if len(v) == 1}
        for key, value in {**self.settings, **single}.items():
            set_path(document, key.split("."), value)
        document["stacks"] = dict(self.stacks)
        for kind, columns in axes.items():
            if several := {key: values for key, values in columns.items() if len(values) != 1}:
                document[kind] = several
        return _imported_text(document, self.source)


def stack_text(uses: list[Any], source: str) -> str:
    """Return the text of a stack's file: its plugins, and a first line that names the source."""
    return _imported_text({"use": uses}, source)


def _imported_text(document: Mapping[str, Any], source: str) -> str:
    shown = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
    return f"# Imported from {' '.join(source.split())}.\n{shown}"


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write texts by name as new files of a folder. Raises ImportFileError for existing files."""
    there = [name for name in files if (folder / name).exists()]
    if there:
        raise ImportFileError(
            f"{folder} already has {', '.join(sorted(there)[:5])}; nothing is overwritten, choose "
            "another folder"
        )
    for name, text in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ImportFileError(f"{path.parent} cannot be made: {error.strerror}") from error
        write_atomically(path, text)
