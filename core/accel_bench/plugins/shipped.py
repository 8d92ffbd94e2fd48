"""Plugins that accel-bench ships, in the box or by an extra, as a list says: metadata need them
installed."""

from __future__ import annotations

from functools import cache
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import Field

from accel_bench.documents.base import Frozen
from accel_bench.documents.load import Document, load_file
from accel_bench.documents.presets import presets_root
from accel_bench.documents.validate import validate
from accel_bench.errors import ScenarioError, install_command
from accel_bench.plugins.doors import OWN_DISTRIBUTION


class ShippedPlugin(Frozen):
    """What a shipped plugin does and needs; a test compares it with the plugin's class."""

    does: str = Field(min_length=1)
    """The first line of the class's docstring."""

    fills: tuple[str, ...] = ()
    """Slots that it fills; empty for one that stands in a stack."""

    extra: str = ""
    """Name of the extra in `accel-bench[NAME]` that brings it; empty for one in the box."""

    also: tuple[str, ...] = ()
    """Other words by which people look for the plugin."""

    adapter: bool = False
    """True if it needs an adapter."""

    dtypes: tuple[str, ...] = ()
    """Values of `model.dtype` that it works with; empty for any."""

    devices: tuple[str, ...] = ()
    """Device types that it works on; empty for any."""

    stacks: tuple[str, ...] = ()
    """Named stacks that its extra brings for it."""

    @property
    def command(self) -> str:
        """What installs it."""
        return install_command(self.extra)

    @property
    def needs(self) -> tuple[str, ...]:
        """What a scenario must have to use it, in words."""
        choices = (" or ".join(names) for names in (self.dtypes, self.devices) if names)
        return (*(["an adapter"] if self.adapter else []), *choices)


@cache
def shipped() -> dict[str, ShippedPlugin]:
    """Return all shipped plugins by name, those of extras first. Raises ScenarioError."""
    document = load_file(presets_root() / "shipped.yaml")
    return {name: _entry(document, name) for name in document.data}


def extras() -> dict[str, ShippedPlugin]:
    """Return the plugins that extras bring, by name. Raises ScenarioError."""
    return {name: plugin for name, plugin in shipped().items() if plugin.extra}


def is_shipped(distribution: str) -> bool:
    """Return whether a distribution is accel-bench itself, or one that its extras bring."""
    return canonicalize_name(distribution) in _shipped_distributions()


@cache
def _shipped_distributions() -> frozenset[str]:
    required = (Requirement(text).name for text in metadata.requires(OWN_DISTRIBUTION) or ())
    ours = (name for name in required if name.startswith(f"{OWN_DISTRIBUTION}-"))
    return frozenset(map(canonicalize_name, (OWN_DISTRIBUTION, *ours)))


def plugin_meant_by(word: str) -> str | None:
    """Return the plugin of an extra that people call so, or whose extra is called so; else None.

    Of an extra that brings several, its name means the first of the list.
    """
    plain = word.lower().replace("_", "-")
    return next((n for n, e in extras().items() if plain in {n, e.extra, *e.also}), None)


def _entry(document: Document, name: str) -> ShippedPlugin:
    return validate(
        ShippedPlugin,
        document.data[name],
        lambda rest: document.where((name, *rest)),
        ScenarioError,
    )
