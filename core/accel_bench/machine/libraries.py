"""The shipped list of libraries that change how a model runs, with their conflicts."""

from __future__ import annotations

from functools import cache

from pydantic import Field

from accel_bench.documents.base import Frozen
from accel_bench.documents.load import load_file
from accel_bench.documents.presets import presets_root
from accel_bench.documents.validate import validate
from accel_bench.errors import ScenarioError


class RecordedLibrary(Frozen):
    """A library whose version is recorded with results, since some scenarios use it."""

    distribution: str = Field(min_length=1)
    """Name of the library's distribution."""

    modules: tuple[str, ...] = ()
    """Modules of the library whose import alone can change how a model runs."""


class LibraryEffect(Frozen):
    """A known effect of distributions that are installed together."""

    when: tuple[str, ...] = Field(min_length=1)
    """Requirements (PEP 508) that must all be met for the effect."""

    missing: tuple[str, ...] = ()
    """Requirements of which at least one must be unmet for the effect; may be empty."""

    because: str = Field(min_length=1)
    """Description of the effect, in a sentence."""

    do: str = Field(min_length=1)
    """Advice to users on how to avoid the effect."""


class Libraries(Frozen):
    """The content of `sample_configurations/libraries.yaml`."""

    libraries: tuple[RecordedLibrary, ...]
    """Libraries whose versions are recorded."""

    incompatible: tuple[LibraryEffect, ...]
    """Combinations of distributions that do not work."""

    changes_every_stack: tuple[LibraryEffect, ...]
    """Combinations of distributions that work, but change every stack once they are installed."""


@cache
def read_libraries() -> Libraries:
    """Return the shipped list of libraries. Raises ScenarioError if its file is invalid."""
    document = load_file(presets_root() / "libraries.yaml")
    return validate(Libraries, document.data, document.where, ScenarioError)


def accelerator_modules() -> tuple[str, ...]:
    """Return the sorted names of modules that can change how a model runs by being imported."""
    return tuple(sorted({name for entry in read_libraries().libraries for name in entry.modules}))


def known_distributions() -> tuple[str, ...]:
    """Return the distribution names of all listed libraries, sorted."""
    return tuple(sorted(entry.distribution for entry in read_libraries().libraries))
