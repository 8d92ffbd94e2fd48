"""Check for which accel-bench a plugin's distribution was built."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from accel_bench._version import __version__
from accel_bench.plugin import CONTRACT
from accel_bench.plugins.doors import OWN_DISTRIBUTION


@cache
def wrong_contract(distribution: str, requires: tuple[str, ...]) -> str | None:
    """Return why this accel-bench refuses the plugins of a distribution with these requirements.

    `built for accel-bench>=0.2,<0.3; ...` with what to do; None when it accepts them, as it does
    when the distribution has no requirement on accel-bench.
    """
    for text, specifier in _on_us(requires):
        if not specifier.contains(__version__, prereleases=True):
            return (
                f"built for {text}; this is accel-bench {__version__}, which takes plugins built "
                f"for accel-bench{CONTRACT}; {_way_out(distribution, text, specifier)}"
            )
    return None


def is_on_contract(requirement: str) -> bool:
    """Return whether a requirement (PEP 508) is one on accel-bench itself."""
    return any(_on_us((requirement,)))


def _on_us(requires: tuple[str, ...]) -> Iterator[tuple[str, SpecifierSet]]:
    """Yield the requirements on accel-bench that apply here, and the versions that they allow."""
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:  # reported by `unmet_requirement`
            continue
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and canonicalize_name(requirement.name) == OWN_DISTRIBUTION:
            yield text.partition(";")[0].strip(), requirement.specifier


def _way_out(distribution: str, text: str, specifier: SpecifierSet) -> str:
    """Return how to upgrade the older of the two."""
    here = Version(__version__)
    for bound in specifier:
        try:
            newer = Version(bound.version.removesuffix(".*")) > here
        except InvalidVersion:
            continue
        if newer and bound.operator in (">", ">=", "~=", "==", "==="):
            return f"upgrade accel-bench: pip install --upgrade '{text}'"
    return f"upgrade the plugin: pip install --upgrade {distribution}"
