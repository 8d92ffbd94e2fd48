"""Which plugins are installed, read from metadata alone: nothing of theirs is imported."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import metadata

from accel_bench.errors import PluginError, did_you_mean
from accel_bench.plugin import PROJECT
from accel_bench.scenario.load import load_file
from accel_bench.scenario.samples import samples_root


@dataclass(frozen=True)
class Installed:
    """A plugin that is installed, as its distribution's metadata describe it."""

    name: str
    """What `use` calls it."""

    entry: metadata.EntryPoint
    """Where its class is."""

    distribution: str
    """The distribution that brings it."""

    version: str
    """That distribution's version."""

    requires: tuple[str, ...]
    """That distribution's requirements (PEP 508), as its metadata say them."""

    @property
    def unmet(self) -> tuple[str, ...]:
        """Requirements of the distribution that are not met here."""
        return tuple(filter(None, map(unmet_requirement, self.requires)))


@lru_cache(maxsize=1)
def installed() -> tuple[Installed, ...]:
    """All installed plugins by name, from metadata alone: nothing is imported."""
    entries = metadata.entry_points(group=PROJECT)
    found = [
        Installed(entry.name, entry, *_described(entry.dist))
        for entry in entries
        if entry.dist is not None
    ]
    return tuple(sorted(found, key=lambda plugin: (plugin.name, plugin.distribution)))


@cache
def _described(distribution: metadata.Distribution) -> tuple[str, str, tuple[str, ...]]:
    """Name, version and requirements: its metadata are parsed once for all its plugins."""
    described = distribution.metadata
    requires = described.get_all("Requires-Dist") or ()
    return described["Name"], described["Version"], tuple(requires)


def duplicates() -> dict[str, tuple[str, ...]]:
    """Names that more than one distribution brings, with those distributions."""
    by_name: dict[str, list[str]] = {}
    for plugin in installed():
        by_name.setdefault(plugin.name, []).append(plugin.distribution)
    return {name: tuple(brings) for name, brings in by_name.items() if len(brings) > 1}


def find(name: str) -> Installed:
    """The installed plugin of that name. Raises PluginError unless there is exactly one."""
    found = [plugin for plugin in installed() if plugin.name == name]
    if len(found) > 1:
        brings = " and ".join(plugin.distribution for plugin in found)
        raise PluginError(f"the plugin {name!r} is brought by {brings}; uninstall one of them")
    if not found:
        raise PluginError(_not_installed(name))
    return found[0]


@cache
def unmet_requirement(requirement: str) -> str | None:
    """Why a requirement (PEP 508) is not met here, or None when it is, or does not apply."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(requirement)
    except InvalidRequirement as error:
        return f"{requirement!r} is no requirement: {error}"
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
        return None
    try:
        have = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return f"{requirement} is not installed"
    if wanted.specifier.contains(have, prereleases=True):
        return None
    return f"{requirement} is needed, {have} is installed"


def _not_installed(name: str) -> str:
    """What to do about a plugin that is not there: install an extra, or spell it right."""
    extras = load_file(samples_root() / "extras.yaml").data
    if name in extras:
        return f"the plugin {name!r} is not installed; pip install 'accel-bench[{extras[name]}]'"
    known = [*(plugin.name for plugin in installed()), *extras]
    return f"no plugin is called {name!r}{did_you_mean(name, known)}"
