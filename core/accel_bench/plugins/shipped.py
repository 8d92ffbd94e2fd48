"""Plugins that accel-bench ships, in its distribution or by an extra, installed or not."""

from __future__ import annotations

from functools import cache
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import Field

from accel_bench.documents.base import Frozen
from accel_bench.documents.load import ParsedFile, load_file
from accel_bench.documents.presets import presets_root
from accel_bench.documents.validate import validate
from accel_bench.errors import ScenarioError, install_command
from accel_bench.plugins.doors import OWN_DISTRIBUTION


class ShippedPlugin(Frozen):
    """Description of a shipped plugin; a test compares it with the plugin's class."""

    does: str = Field(min_length=1)
    """First line of the class's docstring."""

    fills: tuple[str, ...] = ()
    """Slots that the plugin fills; empty for a plugin of a stack."""

    extra: str = ""
    """Extra of `accel-bench[NAME]` that installs the plugin; empty if none is needed."""

    also: tuple[str, ...] = ()
    """Further search words for the plugin."""

    adapter: bool = False
    """True if the plugin needs an adapter."""

    dtypes: tuple[str, ...] = ()
    """Values of `model.dtype` that the plugin supports; empty for any."""

    devices: tuple[str, ...] = ()
    """Device types that the plugin supports; empty for any."""

    stacks: tuple[str, ...] = ()
    """Named stacks of the plugin's extra."""

    scenarios: tuple[str, ...] = ()
    """Scenarios of the plugin's extra."""

    @property
    def command(self) -> str:
        """Command that installs the plugin."""
        return install_command(self.extra)

    @property
    def needs(self) -> tuple[str, ...]:
        """Settings that a scenario with the plugin needs, in words."""
        choices = (" or ".join(names) for names in (self.dtypes, self.devices) if names)
        return (*(["an adapter"] if self.adapter else []), *choices)


@cache
def shipped() -> dict[str, ShippedPlugin]:
    """Return all shipped plugins by name. Raises ScenarioError if `shipped.yaml` is unusable."""
    document = load_file(presets_root() / "shipped.yaml")
    return {name: _entry(document, name) for name in document.data}


def extras() -> dict[str, ShippedPlugin]:
    """Return the shipped plugins of extras by name. Raises ScenarioError for an unusable list."""
    return {name: plugin for name, plugin in shipped().items() if plugin.extra}


def is_shipped(distribution: str) -> bool:
    """Return whether the distribution is accel-bench itself or one that its extras install."""
    return canonicalize_name(distribution) in _shipped_distributions()


@cache
def _shipped_distributions() -> frozenset[str]:
    required = (Requirement(text).name for text in metadata.requires(OWN_DISTRIBUTION) or ())
    ours = (name for name in required if name.startswith(f"{OWN_DISTRIBUTION}-"))
    return frozenset(map(canonicalize_name, (OWN_DISTRIBUTION, *ours)))


def plugin_meant_by(word: str) -> str | None:
    """Return the name of the first plugin of an extra that a search word means, or None. The word
    is the plugin's name, the extra's name, or a further search word of the plugin."""
    plain = word.lower().replace("_", "-")
    return next((n for n, e in extras().items() if plain in {n, e.extra, *e.also}), None)


def _entry(document: ParsedFile, name: str) -> ShippedPlugin:
    return validate(
        ShippedPlugin,
        document.data[name],
        lambda rest: document.where((name, *rest)),
        ScenarioError,
    )
