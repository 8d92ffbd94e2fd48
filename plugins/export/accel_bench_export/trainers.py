"""Training programs to export to, each a table of rules in a data file.

A distribution adds one by a file `sample_configurations/trainers/NAME.yaml`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.documents.load import load_file
from accel_bench.documents.presets import find_presets
from accel_bench.documents.validate import validate
from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench_export.rules import Rule

KIND = "trainers"
"""Folder of the files in a folder of presets."""


class Usage(Frozen):
    """Command that trains with an exported file."""

    when: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of the work that this command requires."""

    command: str
    """Command line, with `{file}` as the exported file."""


class Trainer(Frozen):
    """A training program, and rules for its settings from those of a scenario."""

    title: str = Field(min_length=1)
    """Name for people, with the version that the table was written for."""

    form: Literal["yaml", "python"] = "yaml"
    """Form of its configuration: YAML, or a Python function that changes one of the program's. In
    Python, a value that begins with `=` is an expression."""

    order: int = 100
    """Sort key of the program; the lowest comes first."""

    imports: tuple[str, ...] = ()
    """Python import lines before the function."""

    usage: tuple[Usage, ...] = ()
    """Commands for training; the first with matching conditions is shown."""

    always: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings that the program needs to train like a scenario."""

    always_note: str = ""
    """Comment on these settings in an exported file."""

    work: tuple[Rule, ...] = ()
    """Rules on the dotted keys of a scenario."""

    same: tuple[str, ...] = ()
    """Dotted keys of a scenario that need no setting of this program."""

    exports: bool = True
    """False for a file that is read and not written."""

    defaults: dict[str, JsonValue] = Field(default_factory=dict)
    """Values of settings that a file does not name."""

    imported: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of a scenario, by dotted key, that each file of the program stands for."""

    multiples: dict[str, tuple[str, float]] = Field(default_factory=dict)
    """Settings whose default is a multiple of another one, with that and the factor."""

    opposites: dict[str, str] = Field(default_factory=dict)
    """Switches whose default is the opposite of another switch."""

    aliases: dict[str, str] = Field(default_factory=dict)
    """Other names of settings, which the program prefers if a file has both."""

    alike: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    """Other values of settings that mean the same here: `adapter: {qlora: lora}`."""

    ignored: dict[str, str] = Field(default_factory=dict)
    """Settings that an import leaves out, each with the reason."""

    recognized: tuple[str, ...] = ()
    """Settings by which a file is recognized as this program's."""


def trainer_names() -> list[str]:
    """Return the names of trainers that files are written for, in the order of their tables."""
    return [name for name in readable_names() if read_trainer(name).exports]


def readable_names() -> list[str]:
    """Return the names of all trainers, in the order of their tables."""
    return sorted(find_presets(KIND), key=lambda name: (read_trainer(name).order, name))


def read_trainer(name: str) -> Trainer:
    """Return a trainer. Raises ScenarioError with the nearest name, or for an unusable file."""
    known = find_presets(KIND)
    if name not in known:
        raise ScenarioError(f"no trainer is called {name!r}{did_you_mean(name, known)}")
    return _read(known[name])


@cache
def _read(path: Path) -> Trainer:
    document = load_file(path)
    return validate(Trainer, document.data, document.where, ScenarioError)
