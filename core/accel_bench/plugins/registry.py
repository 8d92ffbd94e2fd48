"""Installed and shipped plugins, described without importing them, and checks of requirements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib import metadata
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from accel_bench.documents.presets import find_presets
from accel_bench.documents.program import __version__
from accel_bench.errors import PluginError, did_you_mean
from accel_bench.plugin import CONTRACT, PROJECT
from accel_bench.plugins.doors import OWN_DISTRIBUTION
from accel_bench.plugins.shipped import extras, is_shipped, plugin_meant_by, shipped


@dataclass(frozen=True)
class InstalledPlugin:
    """Installed plugin, described by its distribution's metadata."""

    name: str
    """Name of the plugin within its distribution; other distributions may use it too."""

    entry: metadata.EntryPoint
    distribution: str

    version: str
    """Version of the distribution."""

    requires: tuple[str, ...]
    """Requirements (PEP 508), as in the metadata."""

    summary: str = ""

    @property
    def address(self) -> str:
        """Unique address of the plugin: distribution and name."""
        return f"{canonicalize_name(self.distribution)}:{self.name}"

    @property
    def use(self) -> str:
        """Name for `use`: the plugin's name, or its address if another plugin has the name."""
        return self.name if _plugins_named(self.name) == [self] else self.address

    @property
    def wrong_contract(self) -> str | None:
        """Reason, with the remedy, why accel-bench refuses the plugin; None if it is accepted."""
        return wrong_contract(self.distribution, self.requires)

    def unmet(self, requires: Iterable[str] = ()) -> tuple[str, ...]:
        """Return unmet requirements of the distribution and of `requires` (PEP 508), with reasons.

        The last reason names the extra that meets them, if there is one.
        """
        own = [text for text in self.requires if not is_on_contract(text)]
        problems = [unmet_requirement(text) for text in (*own, *requires)]
        reasons = list(dict.fromkeys(reason for reason in problems if reason))
        if reasons and self.name in extras():
            reasons[-1] += f"; {extras()[self.name].command}"
        return tuple(filter(None, (self.wrong_contract, *reasons)))


@lru_cache(maxsize=1)
def installed() -> tuple[InstalledPlugin, ...]:
    """Return all installed plugins, sorted by name."""
    entries = dict.fromkeys(metadata.entry_points(group=PROJECT))  # a line may stand twice
    plugins = [
        InstalledPlugin(entry.name, entry, *_described(entry.dist))
        for entry in entries
        if entry.dist is not None
    ]
    return tuple(sorted(plugins, key=lambda plugin: (plugin.name, plugin.distribution)))


@cache
def _described(distribution: metadata.Distribution) -> tuple[str, str, tuple[str, ...], str]:
    described = distribution.metadata
    requires = described.get_all("Requires-Dist") or ()
    summary = next(iter(described.get_all("Summary") or ()), "")
    return described["Name"], described["Version"], tuple(requires), summary


def overview() -> list[dict[str, Any]]:
    """Return name, slots, version, unmet requirements and more of each plugin, without importing
    any. Installed plugins come first, then shipped plugins that are not installed, each sorted by
    name."""
    rows = [_row(plugin.use, plugin) for plugin in installed()]
    absent = sorted(set(shipped()) - {plugin.use for plugin in installed()})
    return [*rows, *map(_row, absent)]


def _row(name: str, plugin: InstalledPlugin | None = None) -> dict[str, Any]:
    """Return a plugin's row of `overview`; `plugin` is None if it is shipped and not installed."""
    known = shipped().get(name)
    unmet = list(plugin.unmet()) if plugin else []
    same = [
        other for other in installed() if plugin and other.name == plugin.name and other != plugin
    ]
    rivals = sorted({other.distribution for other in same})
    return {
        "name": name,
        "fills": list(known.fills or ("stack",)) if known else [],
        "does": known.does if known else plugin.summary if plugin else "",
        "needs": list(known.needs) if known else [],
        "extra": known.extra if known else "",
        "distribution": plugin.distribution if plugin else None,
        "version": plugin.version if plugin else None,
        "installed": plugin is not None,
        "usable": plugin is not None and not unmet,
        "unmet": unmet,
        "duplicates": rivals,
    }


def find(name: str) -> InstalledPlugin:
    """Return the installed plugin with a name or an address, `distribution:name`.

    Raises PluginError unless exactly one plugin matches.
    """
    matches = [plugin for plugin in installed() if plugin.address == _address(name)]
    matches = matches or _plugins_named(name)
    if len({plugin.distribution for plugin in matches}) == 1 < len(matches):
        classes = " and ".join(plugin.entry.value for plugin in matches)
        brings = f"{matches[0].distribution} {matches[0].version}"
        raise PluginError(
            f"the plugin {name!r} is brought twice by {brings}, as {classes}: one of them needs "
            "another name in the entry points of that distribution"
        )
    if len(matches) > 1:
        brings = " and ".join(plugin.distribution for plugin in matches)
        choice = " or ".join(repr(plugin.address) for plugin in matches)
        raise PluginError(f"the plugin {name!r} is brought by {brings}; write {choice}")
    if not matches:
        raise PluginError(_not_installed(name))
    return matches[0]


def _plugins_named(name: str) -> list[InstalledPlugin]:
    """Return the installed plugins with a name; for a shipped name, the shipped plugin alone."""
    same = [plugin for plugin in installed() if plugin.name == name]
    ours = [plugin for plugin in same if is_shipped(plugin.distribution)]
    return same if len(ours) == len(same) or name not in shipped() else ours


def _address(name: str) -> str:
    distribution, colon, plain = name.rpartition(":")
    return f"{canonicalize_name(distribution)}:{plain}" if colon else ""


@cache
def unmet_requirement(requirement: str) -> str | None:
    """Return the reason why a requirement (PEP 508) is unmet, or None if met or not applicable.

    Requirements of its extras, such as `name[extra]>=1`, must be met too.
    """
    return next(_unmet(requirement, ()), None)


def _unmet(requirement: str, above: tuple[str, ...]) -> Iterator[str]:
    """Yield reasons why a requirement is not met; `above` are the requirements that lead to it."""
    try:
        needed = Requirement(requirement)
    except InvalidRequirement as error:
        yield f"{requirement!r} is no requirement: {error}"
        return
    text = requirement.partition(";")[0].strip()
    if requirement in above or (needed.marker and not needed.marker.evaluate({"extra": ""})):
        return
    try:
        dist = metadata.distribution(needed.name)
    except metadata.PackageNotFoundError:
        yield f"{text} is not installed"
        return
    if not _contains(needed, dist.version):
        yield f"{text} is needed, {dist.version or 'no known version'} is installed"
    for inner in _brought_by_extras(dist, needed.extras):
        for reason in _unmet(inner, (*above, requirement)):
            yield f"{text}: {reason}"


def _contains(needed: Requirement, have: str | None) -> bool:
    """Return whether the version `have` meets a requirement; an unknown or invalid one meets
    none."""
    try:
        return not needed.specifier or needed.specifier.contains(have or "", prereleases=True)
    except InvalidVersion:
        return False


def _brought_by_extras(distribution: metadata.Distribution, names: Iterable[str]) -> Iterator[str]:
    """Yield the requirements of a distribution that only the given extras add."""
    for text in distribution.requires or ():
        marker = Requirement(text).marker
        if marker is None or marker.evaluate({"extra": ""}):
            continue
        if any(marker.evaluate({"extra": name}) for name in names):
            yield text.partition(";")[0].strip()


def missing_extra(name: str) -> str | None:
    """Return the message with the command that installs the plugin of an extra called `name`. It is
    None if the plugin is installed or belongs to no extra."""
    if name not in extras() or _plugins_named(name):
        return None
    return f"the plugin {name!r} is not installed; {extras()[name].command}"


def missing_extras(names: Iterable[str]) -> dict[str, str]:
    """Return, by name, the messages of `missing_extra` on those plugins that lack an extra."""
    reasons = {name: missing_extra(name) for name in names}
    return {name: reason for name, reason in reasons.items() if reason}


def _not_installed(name: str) -> str:
    """Return the error message for a plugin not installed: how to install it, or similar names."""
    if reason := missing_extra(name):
        return reason
    known = {plugin.use for plugin in installed()}
    near = get_close_matches(name, sorted(known | set(extras())), n=1)
    meant = plugin_meant_by(name) or next(iter(near), None)
    if meant is None:
        hint = did_you_mean(name, known | set(extras()))
    else:
        how = "" if meant in known else f" It is not installed: {extras()[meant].command}"
        hint = f"; did you mean {meant!r}?{how}"
    if name in find_presets("stacks"):
        hint = f"; {name!r} is a named stack: it stands alone, as in `stacks: {{mine: {name}}}`"
    return f"no plugin is called {name!r}{hint}"


@cache
def wrong_contract(distribution: str, requires: tuple[str, ...]) -> str | None:
    """Return the reason why this accel-bench refuses a distribution's requirements, or None.

    The reason has the remedy: `built for accel-bench>=0.2,<0.3; ...`. A distribution without a
    requirement on accel-bench is accepted.
    """
    for text, specifier in _on_us(requires):
        if not specifier.contains(__version__, prereleases=True):
            return (
                f"built for {text}; this is accel-bench {__version__}, which takes plugins built "
                f"for accel-bench{CONTRACT}; {_upgrade_hint(distribution, text, specifier)}"
            )
    return None


def is_on_contract(requirement: str) -> bool:
    """Return whether a requirement (PEP 508) states versions of accel-bench itself."""
    return any(_on_us((requirement,)))


def _on_us(requires: tuple[str, ...]) -> Iterator[tuple[str, SpecifierSet]]:
    """Yield, as text, each applicable requirement on accel-bench, with the versions it allows."""
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:  # reported by `unmet_requirement`
            continue
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and canonicalize_name(requirement.name) == OWN_DISTRIBUTION:
            yield text.partition(";")[0].strip(), requirement.specifier


def _upgrade_hint(distribution: str, text: str, specifier: SpecifierSet) -> str:
    """Return the hint to upgrade accel-bench or a distribution, whichever is older. `text` is the
    distribution's requirement on accel-bench, with its versions `specifier`."""
    here = Version(__version__)
    for bound in specifier:
        try:
            newer = Version(bound.version.removesuffix(".*")) > here
        except InvalidVersion:
            continue
        if newer and bound.operator in (">", ">=", "~=", "==", "==="):
            return f"upgrade accel-bench: pip install --upgrade '{text}'"
    return f"upgrade the plugin: pip install --upgrade {distribution}"
