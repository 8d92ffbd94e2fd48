"""For which accel-bench a plugin's distribution was built, and whether this one takes it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from accel_bench._version import __version__
from accel_bench.plugin import CONTRACT

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

OWN_DISTRIBUTION = "accel-bench"
"""The distribution that holds the contract."""


@cache
def wrong_contract(distribution: str, requires: tuple[str, ...]) -> str | None:
    """Why this accel-bench does not take the plugins of a distribution with these requirements.

    `built for accel-bench>=0.2,<0.3; ...` with what to do, or None when it takes them: also when
    the distribution does not say for which accel-bench it was built.
    """
    for text, specifier in _on_us(requires):
        if not specifier.contains(__version__, prereleases=True):
            return (
                f"built for {text}; this is accel-bench {__version__}, which takes plugins built "
                f"for accel-bench{CONTRACT}; {_way_out(distribution, text, specifier)}"
            )
    return None


def is_on_contract(requirement: str) -> bool:
    """Whether a requirement (PEP 508) is one on accel-bench itself."""
    return any(_on_us((requirement,)))


def _on_us(requires: tuple[str, ...]) -> Iterator[tuple[str, SpecifierSet]]:
    """Requirements on accel-bench that apply here, and the versions that they allow.

    What is no requirement at all is somebody else's to report.
    """
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    for text in requires:
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            continue
        applies = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if applies and canonicalize_name(wanted.name) == OWN_DISTRIBUTION:
            yield text.partition(";")[0].strip(), wanted.specifier


def _way_out(distribution: str, text: str, specifier: SpecifierSet) -> str:
    """Which of the two is the older one, and so is to be upgraded."""
    from packaging.version import InvalidVersion, Version

    here = Version(__version__)
    for bound in specifier:
        try:
            newer = Version(bound.version.removesuffix(".*")) > here
        except InvalidVersion:
            continue
        if newer and bound.operator in (">", ">=", "~=", "==", "==="):
            return f"upgrade accel-bench: pip install --upgrade '{text}'"
    return f"upgrade the plugin: pip install --upgrade {distribution}"
