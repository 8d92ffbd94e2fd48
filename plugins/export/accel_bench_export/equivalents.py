"""Counterparts of plugins in other programs, declared in a data file of a plugin's distribution.

A distribution whose package is in the entry-point group `accel_bench.samples` may have a file
`sample_configurations/equivalents.yaml`. It is read without importing the plugin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from pydantic import Field

from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.documents.load import load_file
from accel_bench.documents.presets import preset_roots
from accel_bench.documents.validate import validate
from accel_bench.errors import ScenarioError
from accel_bench_export.rules import Rule

FILE = "equivalents.yaml"
"""Name of the file in a folder of sample configurations."""


class Equivalent(Frozen):
    """Settings of other programs that replace a plugin whose options meet a condition."""

    when: dict[str, JsonValue] = Field(default_factory=dict)
    """Required values of options, defaults included; a list holds alternatives, and `*` in a text
    stands for any letters."""

    unless: dict[str, JsonValue] = Field(default_factory=dict)
    """Values of options that must not match."""

    to: dict[str, dict[str, JsonValue]]
    """Settings of other programs, by the program's name or by several with commas; `{option}` is an
    option's value."""

    note: str = ""
    """Remaining difference between the programs, in a sentence."""

    def settings(self, trainer: str) -> dict[str, JsonValue] | None:
        """Return the settings of one program by dotted key, or None if `to` lacks the program."""
        named = [own for names, own in self.to.items() if trainer in programs(names)]
        return {key: value for own in named for key, value in own.items()} if named else None


class Equivalents(Frozen):
    """Content of a file `equivalents.yaml`."""

    plugins: dict[str, tuple[Equivalent, ...]]
    """Counterparts in other programs by the plugin's name."""


def declared(plugin: str) -> tuple[Equivalent, ...]:
    """Return a plugin's declared counterparts in other programs; empty if it has none.

    Raises ScenarioError for an unusable file.
    """
    return _all_declared(tuple(preset_roots())).get(plugin, ())


def declaring_plugins() -> tuple[str, ...]:
    """Return the names of all plugins with declared counterparts.

    Raises ScenarioError for an unusable file.
    """
    return tuple(_all_declared(tuple(preset_roots())))


def rules_of(plugin: str, trainer: str) -> tuple[Rule, ...]:
    """Return the rules that translate a plugin's options for the program `trainer`.

    Raises ScenarioError for an unusable file.
    """
    return tuple(rules_among(declared(plugin), trainer))


def rules_among(equivalents: Sequence[Equivalent], trainer: str) -> Iterator[Rule]:
    """Convert a plugin's declared counterparts to rules, for the program `trainer` alone."""
    for equivalent in equivalents:
        if (settings := equivalent.settings(trainer)) is not None:
            yield Rule(
                when=equivalent.when, unless=equivalent.unless, set=settings, note=equivalent.note
            )


def programs(names: str) -> list[str]:
    """Return the program names in a key such as `trl, trainer`."""
    return [name.strip() for name in names.split(",")]


@cache
def _all_declared(roots: tuple[Path, ...]) -> dict[str, tuple[Equivalent, ...]]:
    """Return each plugin's counterparts, by its name, from the first of `roots` that has any."""
    merged: dict[str, tuple[Equivalent, ...]] = {}
    for root in roots:
        if (root / FILE).is_file():
            read = read_equivalents(root / FILE)
            merged = {**read.plugins, **merged}
    return merged


def read_equivalents(path: Path) -> Equivalents:
    """Return the content of a file `equivalents.yaml`. Raises ScenarioError if it is unusable."""
    document = load_file(path)
    plugins = {"plugins": document.data}
    return validate(Equivalents, plugins, lambda at: document.where(at[1:]), ScenarioError)
