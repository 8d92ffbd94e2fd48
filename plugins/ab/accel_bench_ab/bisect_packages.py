"""History of package versions between two lock files: packages change in turn or in groups.

Packages change together only if a smaller change would violate a requirement in the metadata of the
packages installed at both ends. pip refuses other conflicts when an environment is built.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from accel_bench.analysis.wording import join_names
from accel_bench.documents.files import read_text
from accel_bench.errors import ScenarioError
from accel_bench.plugins.doors import find_entry
from accel_bench.scenario.settings import PythonEnvironment
from accel_bench_ab.bisect_history import Prepared, Version, VersionError, run_program

MOST_BYTES = 1 << 22
"""Maximum bytes of a lock file."""

READ_NEEDS = """\
import json
from importlib import metadata
found = [one for one in metadata.distributions() if one.metadata and one.metadata["Name"]]
print(json.dumps([[one.metadata["Name"], one.version, list(one.requires or ())] for one in found]))
"""
"""Python program that prints name, version and requirements of each installed distribution."""

NO_PIN = "it pins no version"
OTHER_FORM = "set pip's options by its variables (PIP_INDEX_URL); `uv export` writes uv.lock so"
NOT_PINNED = "a folder has no version: leave it out (`uv export --no-emit-project`)"
"""Reasons why a line of a lock file is refused: no pin, an option or TOML, an editable package."""

OF_ENVIRONMENTS = frozenset({"pip", "setuptools", "wheel"})
"""Packages that a new environment may have, though no lock file pins them."""

Lock = Mapping[str, Requirement]
"""Pinned requirements by canonical package name."""


class Package(NamedTuple):
    """A pinned package with its requirements."""

    version: str
    needs: tuple[Requirement, ...] = ()


Packages = Mapping[str, Package]
"""Packages of an environment by canonical package name."""


class PackageHistory:
    """Series of package combinations that leads from an old lock file to a new one."""

    def __init__(self, old: Path, new: Path) -> None:
        """Read the lock files `old` and `new`, and build the environments of both.

        Raises ScenarioError if a file is no lock file, if both pin the same packages, or if pip
        refuses them.
        """
        self._old, self._new = read_lock(old), read_lock(new)
        changed = [name for name in {**self._old, **self._new}
                   if str(self._old.get(name)) != str(self._new.get(name))]  # fmt: skip
        if not changed:
            raise ScenarioError(f"{old}..{new}: both pin the same packages")
        ends = [self._installed(lock) for lock in (self._old, self._new)]
        self._groups = order_changes(changed, *ends)
        self.versions = [Version("old", str(old)), *self._versions()]
        self.identity = [*map(str, self._old.values()), "", *map(str, self._new.values())]

    def prepare(self, version: int, environment: bool) -> Prepared:
        """Return a version's pinned packages, with a built environment if `environment` is true.

        Raises VersionError if pip refuses the packages.
        """
        requirements = tuple(map(str, self._combination(version).values()))
        if not environment:
            return Prepared(requirements=requirements)
        try:
            return Prepared(python=build_lock(requirements), requirements=requirements)
        except ScenarioError as error:
            raise VersionError(str(error)) from error

    def decides_on(self, name: str) -> bool:
        """Return False, since a change of packages changes no file that a command names."""
        return False

    def close(self, answered: bool = True) -> None:
        """Do nothing, since other commands share the environments."""

    def _versions(self) -> Iterator[Version]:
        for number, group in enumerate(self._groups, 1):
            changes = [describe_change(name, self._old, self._new) for name in group]
            yield Version(f"{number}-{'+'.join(group)[:40]}", ", ".join(changes))

    def _combination(self, version: int) -> dict[str, Requirement]:
        """Return the pinned requirements by package name, after `version` groups of changes."""
        changed = {name for group in self._groups[:version] for name in group}
        names = {**self._old, **self._new}
        locks = {name: self._new if name in changed else self._old for name in names}
        return {name: lock[name] for name, lock in locks.items() if name in lock}

    def _installed(self, lock: Lock) -> dict[str, Package]:
        return read_packages(build_whole_lock(lock))


def build_whole_lock(lock: Lock) -> Path:
    """Build an environment of a lock file; return the path of its interpreter.

    Raises ScenarioError if pip refuses the packages, or if it had to add a package that they need.
    """
    python = build_lock(map(str, lock.values()))
    if missing := sorted({*read_packages(python)} - {*lock} - OF_ENVIRONMENTS):
        raise ScenarioError(
            f"the pinned packages need {join_names(missing)}, which no line pins: write the file "
            "by `pip freeze` or `pip-compile`, which pin all"
        )
    return python


def read_packages(python: Path) -> dict[str, Package]:
    """Return the packages that are installed in an interpreter's environment, by name."""
    text = run_program([str(python), "-I", "-c", READ_NEEDS], python.parent)
    return dict(_packages(json.loads(text)))


def build_lock(requirements: Iterable[str]) -> Path:
    """Build an environment of exactly these requirements; return the path of its interpreter.

    An environment that was built before is used again. Raises ScenarioError if pip refuses the
    packages.
    """
    settings = PythonEnvironment(requirements=tuple(requirements))
    entry = find_entry("accel_bench.environments", "builder of environments", "packages")
    with entry.blamed():
        python: Path = entry.load()(settings, ())
    return python


def read_lock(path: Path) -> dict[str, Requirement]:
    """Return the pinned requirements of a lock file, by canonical package name.

    Hashes, comments and requirements with a marker for other systems are ignored. Raises
    ScenarioError for any other content.
    """
    text = read_text(path, MOST_BYTES, ScenarioError, "; is it a lock file?")
    pinned: dict[str, Requirement] = {}
    for number, line in enumerate(re.sub(r"\\\r?\n", " ", text).splitlines(), 1):
        written = re.split(r"\s#", line)[0].partition("--hash")[0].strip()
        if not written or written.startswith("#"):
            continue
        reason = NO_PIN
        try:
            requirement = Requirement(written)
        except InvalidRequirement as error:
            requirement, reason = None, str(error).partition("\n")[0]
            if written.startswith(("-e ", "--editable")):
                reason = NOT_PINNED
            elif written.startswith(("-", "[")) or " = " in written:
                reason = OTHER_FORM
        if requirement is None or not _is_pinned(requirement):
            raise ScenarioError(
                f"{path}: entry {number}: {written!r}: {reason}; a lock file has NAME==VERSION on "
                "each line, as `pip freeze` and `pip-compile` write it"
            )
        if requirement.marker is None or requirement.marker.evaluate():
            name = canonicalize_name(requirement.name)
            if str(pinned.setdefault(name, requirement)) != str(requirement):
                raise ScenarioError(f"{path}: {pinned[name]} and {requirement} are both pinned")
    if not pinned:
        raise ScenarioError(f"{path}: no package is pinned in it")
    return pinned


def _is_pinned(requirement: Requirement) -> bool:
    pins = list(requirement.specifier)
    exact = len(pins) == 1 and pins[0].operator in ("==", "===")
    return bool(requirement.url) or (exact and not pins[0].version.endswith("*"))


def describe_change(name: str, old: Lock, new: Lock) -> str:
    """Return a description of a package's change, such as `numpy 2.1 -> 2.2`."""
    if name not in new:
        return f"{name} removed"
    if name not in old:
        return f"{name} added"
    versions = [str(lock[name].specifier).lstrip("=") or lock[name].url for lock in (old, new)]
    return f"{name} {versions[0]} -> {versions[1]}"


def order_changes(changed: Iterable[str], old: Packages, new: Packages) -> list[list[str]]:
    """Return groups of packages to change in turn, each as small as dependencies allow.

    `changed` are package names, `old` and `new` the packages at both ends. The groups keep the
    order of `changed`, unless a combination would then violate a requirement. Requirements that an
    end violates itself are ignored.
    """
    old, new = _without_broken(old), _without_broken(new)
    left, groups, now = list(changed), [], dict(old)
    while left:
        group = next(([name] for name in left if not _broken(_with(now, [name], new))), None)
        group = group or _smallest_group(left, now, new)
        now = _with(now, group, new)
        left = [name for name in left if name not in group]
        groups.append(group)
    return groups


def _smallest_group(left: Sequence[str], now: Packages, new: Packages) -> list[str]:
    """Return the smallest group of packages in `left` that can change together.

    `now` are the packages before the change, and `new` are the packages of the new lock file.
    """
    grown = [_grown(name, left, now, new) for name in left]
    return min(grown, key=len)


def _grown(name: str, left: Sequence[str], now: Packages, new: Packages) -> list[str]:
    """Return the names of a package and of all packages that must change together with it.

    `left` are the packages that may change. All of them are returned if no group meets the
    requirements.
    """
    group = [name]
    while broken := _broken(_with(now, group, new)):
        more = next((name for name in left if name in broken and name not in group), None)
        if more is None:  # No part of the rest agrees.
            return list(left)
        group.append(more)
    return group


def _with(now: Packages, group: Iterable[str], new: Packages) -> dict[str, Package]:
    """Return the packages `now`, with a group of packages replaced by their `new` versions."""
    changed = dict(now)
    for name in group:
        changed.pop(name, None)
        if name in new:
            changed[name] = new[name]
    return changed


def _without_broken(packages: Packages) -> dict[str, Package]:
    """Return packages without the requirements that are unmet among them."""
    return {
        name: package._replace(needs=tuple(need for need in package.needs if _met(need, packages)))
        for name, package in packages.items()
    }


def _broken(packages: Packages) -> set[str]:
    """Return the names of both packages, requiring and required, of each unmet requirement."""
    return {
        member
        for name, package in packages.items()
        for need in package.needs
        if not _met(need, packages)
        for member in (name, canonicalize_name(need.name))
    }


def _met(need: Requirement, packages: Packages) -> bool:
    package = packages.get(canonicalize_name(need.name))
    return package is not None and need.specifier.contains(package.version, prereleases=True)


def _packages(rows: Iterable[Sequence[Any]]) -> Iterator[tuple[str, Package]]:
    """Yield the canonical name and the package of each installed distribution.

    A row has a distribution's name, version and requirements. Requirements of extras are left out.
    """
    for name, version, needs in rows:
        yield canonicalize_name(name), Package(version, tuple(_held(needs)))


def _held(needs: Iterable[str]) -> Iterator[Requirement]:
    """Yield the requirements whose markers hold for this environment; skip unparsable texts."""
    for need in needs:
        with suppress(InvalidRequirement):
            parsed = Requirement(need)
            if parsed.marker is None or parsed.marker.evaluate({"extra": ""}):
                yield parsed
