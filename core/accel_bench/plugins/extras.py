"""Extras of accel-bench: which plugins each brings, read from a shipped list, since what is not
installed has no metadata."""

from __future__ import annotations

from functools import cache

from pydantic import Field

from accel_bench.documents.base import Frozen
from accel_bench.documents.load import Document, load_file
from accel_bench.documents.presets import presets_root
from accel_bench.documents.validate import validate
from accel_bench.errors import ScenarioError


class Extra(Frozen):
    """The extra that brings one plugin."""

    extra: str = Field(min_length=1)
    """Its name in `accel-bench[NAME]`."""

    also: tuple[str, ...] = ()
    """Other words by which people look for the plugin."""

    @property
    def command(self) -> str:
        """What installs it."""
        return f"pip install 'accel-bench[{self.extra}]'"


@cache
def extras() -> dict[str, Extra]:
    """The extra of each plugin that one brings, by the plugin's name. Raises ScenarioError."""
    document = load_file(presets_root() / "extras.yaml")
    return {name: _extra(document, name) for name in document.data}


def plugin_meant_by(word: str) -> str | None:
    """The plugin of an extra that people call so, or whose extra is called so; None for no such.

    Of an extra that brings several, its name means the first of the list.
    """
    wanted = word.lower().replace("_", "-")
    return next((n for n, e in extras().items() if wanted in {n, e.extra, *e.also}), None)


def _extra(document: Document, name: str) -> Extra:
    """One entry, validated."""
    return validate(
        Extra, document.data[name], lambda rest: document.where((name, *rest)), ScenarioError
    )
