"""Training programs to export to, each a data file with rules on its settings.

A distribution adds a program by a file `sample_configurations/trainers/NAME.yaml`.
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
"""Name of the folder for these files in a folder of sample configurations."""


class Usage(Frozen):
    """Command that trains with an exported file."""

    when: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of the scenario that this command requires."""

    command: str
    """Command line, with `{file}` as the exported file."""


class OtherDefaults(Frozen):
    """Defaults of a program for one kind of training."""

    when: dict[str, JsonValue] = Field(min_length=1)
    """Settings in a file by which the kind is known; null is any value."""

    set: dict[str, JsonValue]
    """Values of the settings that the file does not contain."""


class Trainer(Frozen):
    """A training program, with rules that translate a scenario's settings to the program's."""

    title: str = Field(min_length=1)
    """Displayed name, with the program's version that the file was written for."""

    form: Literal["yaml", "python"] = "yaml"
    """Form of its configuration: YAML, or a Python function that changes a configuration of the
    program. In Python, a value that begins with `=` is an expression."""

    order: int = 100
    """Sort key of the program; the lowest comes first."""

    imports: tuple[str, ...] = ()
    """Python import lines before the function."""

    usage: tuple[Usage, ...] = ()
    """Commands that start a training; the first command whose conditions match is shown."""

    always: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings that the program needs to train like a scenario."""

    always_note: str = ""
    """Comment on the settings of `always` in an exported file; empty without one."""

    work: tuple[Rule, ...] = ()
    """Rules on the dotted keys of a scenario, and on `world_size`, its processes on all nodes."""

    same: tuple[str, ...] = ()
    """Dotted keys of a scenario that need no setting of this program."""

    exports: bool = True
    """False if the program's files can only be imported."""

    defaults: dict[str, JsonValue] = Field(default_factory=dict)
    """Values of the settings that a file does not contain."""

    other_defaults: tuple[OtherDefaults, ...] = ()
    """Different defaults of some kinds of training."""

    imported: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of a scenario, by dotted key, that each imported file of the program implies."""

    multiples: dict[str, tuple[str, float]] = Field(default_factory=dict)
    """Settings whose default is a multiple of another setting, each with that setting and the
    factor."""

    opposites: dict[str, str] = Field(default_factory=dict)
    """Switches whose default is the opposite of another switch, each with that switch."""

    aliases: dict[str, str] = Field(default_factory=dict)
    """Other names of settings, each with the usual name. The other name counts if a file has
    both."""

    alike: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    """Equivalent values by setting and by value in a file, such as `adapter: {qlora: lora}`."""

    ignored: dict[str, str] = Field(default_factory=dict)
    """Reasons why an import leaves a setting out, by setting."""

    recognized: tuple[str, ...] = ()
    """Settings by which a file is recognized as this program's."""


def trainer_names() -> list[str]:
    """Return the names of the programs that can be exported to, sorted by their `order`."""
    return [name for name in readable_names() if read_trainer(name).exports]


def readable_names() -> list[str]:
    """Return the names of all programs, also of those only imported from, sorted by `order`."""
    return sorted(find_presets(KIND), key=lambda name: (read_trainer(name).order, name))


def read_trainer(name: str) -> Trainer:
    """Return a program by its name. Raises ScenarioError for an unknown name or unusable file."""
    known = find_presets(KIND)
    if name not in known:
        raise ScenarioError(f"no trainer is called {name!r}{did_you_mean(name, known)}")
    return _read(known[name])


@cache
def _read(path: Path) -> Trainer:
    document = load_file(path)
    return validate(Trainer, document.data, document.where, ScenarioError)
