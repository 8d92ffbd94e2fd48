"""Scenario files in our own form: what a conversion writes."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from accel_bench.documents.files import write_atomically
from accel_bench.errors import ImportFileError
from accel_bench.scenario.layers import set_path


@dataclass(frozen=True, kw_only=True)
class NativeScenario:
    """One scenario, ready to be written."""

    name: str

    source: str
    """Origin of the scenario, for the first line of its file."""

    slow: bool = False
    data: Mapping[str, Any] = field(default_factory=dict)
    """Sections of the work."""

    stacks: Mapping[str, Any] = field(default_factory=lambda: {"baseline": []})
    sweep: Mapping[str, list[Any]] = field(default_factory=dict)
    zip: Mapping[str, list[Any]] = field(default_factory=dict)

    @property
    def experiments(self) -> int:
        """Number of experiments."""
        points = math.prod(len(values) for values in self.sweep.values())
        moving = len(next(iter(self.zip.values()), [None]))
        return len(self.stacks) * points * moving

    def renamed(self, name: str) -> NativeScenario:
        """Return the same under another name."""
        return replace(self, name=name)

    def text(self) -> str:
        """Return the text of its file; a key with one value is set, not swept."""
        document: dict[str, Any] = {"name": self.name}
        if self.slow:
            document["slow"] = True
        body = copy.deepcopy(dict(self.data))
        axes: dict[str, dict[str, list[Any]]] = {"sweep": {}, "zip": {}}
        for kind, columns in (("sweep", self.sweep), ("zip", self.zip)):
            for key, values in columns.items():
                if len(values) == 1:
                    set_path(body, key.split("."), values[0])
                else:
                    axes[kind][key] = list(values)
        document |= {**body, "stacks": dict(self.stacks)}
        document |= {kind: found for kind, found in axes.items() if found}
        shown = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
        return f"# Imported from {_one_line(self.source)}.\n{shown}"


def stack_text(uses: list[Any], source: str) -> str:
    """Return the text of the file of a named stack."""
    shown = yaml.safe_dump({"use": uses}, sort_keys=False, allow_unicode=True, width=100)
    return f"# Imported from {_one_line(source)}.\n{shown}"


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files by name into a folder that has none of them. Raises ImportFileError."""
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


def _one_line(text: str) -> str:
    return " ".join(text.split())
