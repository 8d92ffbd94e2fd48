"""Read the shipped list of libraries that change how a model runs, and their conflicts."""

from __future__ import annotations

from functools import cache

from pydantic import Field

from accel_bench.documents.base import Frozen
from accel_bench.documents.load import load_file
from accel_bench.documents.presets import presets_root
from accel_bench.documents.validate import validate
from accel_bench.errors import ScenarioError


class Library(Frozen):
    """A library that some scenarios compute with."""

    distribution: str = Field(min_length=1)
    """Name by which it is installed."""

    modules: tuple[str, ...] = ()
    """Modules whose import alone can change how a model runs."""


class Rule(Frozen):
    """A known effect of distributions that are installed together."""

    when: tuple[str, ...] = Field(min_length=1)
    """Requirements (PEP 508) that are all met where the rule holds."""

    missing: tuple[str, ...] = ()
    """Requirements of which at least one is not met where it holds; empty asks for none."""

    because: str = Field(min_length=1)
    """The effect, in a sentence."""

    do: str = Field(min_length=1)
    """What helps."""


class Libraries(Frozen):
    """The content of `sample_configurations/libraries.yaml`."""

    libraries: tuple[Library, ...]
    """Libraries to look for."""

    incompatible: tuple[Rule, ...]
    """Pairs that do not work."""

    changes_every_stack: tuple[Rule, ...]
    """What is no fault, but changes plain stacks too as soon as it is installed."""


@cache
def read_libraries() -> Libraries:
    """Read the shipped list. Raises ScenarioError for a file that cannot be used."""
    document = load_file(presets_root() / "libraries.yaml")
    return validate(Libraries, document.data, document.where, ScenarioError)


def accelerator_modules() -> tuple[str, ...]:
    """Return the modules whose import alone can change how a model runs, sorted."""
    return tuple(sorted({name for one in read_libraries().libraries for name in one.modules}))


def known_distributions() -> tuple[str, ...]:
    """Return the names by which the libraries are installed, sorted."""
    return tuple(sorted(one.distribution for one in read_libraries().libraries))
