"""Entry points by which distributions extend the core with commands, formats and other objects.

They are listed from metadata and loaded by name. Objects of the distribution `accel-bench` itself
use the same groups of entry points. Listing imports nothing; an error that names the distribution
and the reason is raised when a broken entry is used.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import metadata
from typing import Any

from accel_bench.documents.presets import entry_points
from accel_bench.errors import AccelBenchError, PluginError, did_you_mean

OWN_DISTRIBUTION = "accel-bench"
"""Name of the distribution that holds the core and the plugins installed with it."""


@dataclass(frozen=True)
class DoorEntry:
    """Entry point of a distribution in one of the core's groups, such as a command or a format."""

    kind: str
    """Noun for the entry's kind: `command`, `format`."""

    name: str
    """Name of the entry; `distribution:name` if a core entry or another one has this name."""

    point: metadata.EntryPoint

    @property
    def is_ours(self) -> bool:
        """True if the entry belongs to the distribution `accel-bench` itself."""
        return _is_ours(self.point)

    @property
    def brought_by(self) -> str:
        """Name and version of the entry's distribution."""
        dist = self.point.dist
        return f"{dist.name} {dist.version}" if dist else "an unknown distribution"

    @property
    def requires(self) -> tuple[str, ...]:
        """Requirements (PEP 508) of the entry's distribution."""
        dist = self.point.dist
        return tuple(dist.requires or ()) if dist else ()

    def load(self) -> Any:
        """Import and return the entry's object. Raises PluginError with distribution and reason.

        A distribution built for another contract is refused before its import.
        """
        if not self.is_ours and self.point.dist:
            from accel_bench.plugins.registry import wrong_contract

            if why := wrong_contract(self.point.dist.name, self.requires):
                raise self.broken(why)
        with self.blamed():
            return self.point.load()

    @contextmanager
    def blamed(self, place: str = "") -> Iterator[None]:
        """Turn errors in the `with` block, except AccelBenchErrors, into this entry's PluginErrors.

        `place`, such as `a.csv: `, stands before the reason.
        """
        try:
            yield
        except AccelBenchError:
            raise
        except (Exception, SystemExit) as error:
            raise self.broken(f"{place}{type(error).__name__}: {error}") from error

    def broken(self, reason: str) -> PluginError:
        """Return a PluginError with the reason why the entry cannot be used."""
        return PluginError(
            f"the {self.kind} {self.name!r} of {self.brought_by} is broken: {reason}"
        )


def find_entries(group: str, kind: str) -> Mapping[str, DoorEntry]:
    """Return the installed entries of an entry-point group by name, without importing them. `kind`
    is the noun for an entry in messages. Entries of `accel-bench` itself come first."""
    return _entries_on(group, kind, tuple(sys.path))


def find_entry(group: str, kind: str, name: str) -> DoorEntry:
    """Return the entry called `name` of an entry-point group; `kind` is its noun in messages.
    Raises PluginError with the nearest name for an unknown name."""
    known = find_entries(group, kind)
    if not known:
        ours = f"`pip install {OWN_DISTRIBUTION}` brings the program's own"
        raise PluginError(f"nothing that is installed brings the {kind} {name!r}; {ours}")
    if name not in known:
        raise PluginError(f"no {kind} is called {name!r}{did_you_mean(name, known)}")
    return known[name]


@lru_cache(maxsize=64)
def _entries_on(group: str, kind: str, _path: tuple[str, ...]) -> Mapping[str, DoorEntry]:
    """Return the entries of a group by name; `_path` is `sys.path`, the key of the cache."""
    points = entry_points(group)
    shared = Counter(point.name for point in points)
    entries = [DoorEntry(kind, _name_of(point, shared[point.name] > 1), point) for point in points]
    entries.sort(key=lambda entry: (not entry.is_ours, entry.name))
    return {entry.name: entry for entry in entries}


def _is_ours(point: metadata.EntryPoint) -> bool:
    return point.dist is not None and _name_of_distribution(point.dist) == OWN_DISTRIBUTION


@cache
def _name_of_distribution(distribution: metadata.Distribution) -> str:
    """Return a distribution's name; a regular expression finds it faster than a metadata parser."""
    match = re.search(r"^Name: *(\S+)", distribution.read_text("METADATA") or "", re.MULTILINE)
    return match[1] if match else distribution.name


def _name_of(point: metadata.EntryPoint, shared: bool) -> str:
    """Return an entry's name, preceded by its distribution if the name is `shared` with others."""
    if not shared or _is_ours(point):
        return point.name
    return f"{_name_of_distribution(point.dist) if point.dist else ''}:{point.name}"
