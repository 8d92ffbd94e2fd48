"""Find executors and benchmarks by entry point, those of other distributions too."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Generic, TypeVar

from accel_bench.errors import PluginError, did_you_mean
from accel_bench.machine.provenance import distribution_version
from accel_bench.plugins.doors import DoorEntry, find_entries
from accel_bench_op.benchmark import Benchmark
from accel_bench_op.executors import Executor

EXECUTORS = "accel_bench.executors"
"""Entry points of executors: `name = "package.module:Class"`."""

BENCHMARKS = "accel_bench.micro"
"""Entry points of benchmarks: `name = "package.module:Class"`, or a module of such classes."""

FoundT = TypeVar("FoundT")


@dataclass(frozen=True)
class Unusable:
    """A benchmark or an executor that is installed and cannot be used."""

    name: str
    """Its own name where that is known, else that of its entry point."""

    distribution: str
    """What brings it, with the version."""

    problem: str
    """What is wrong with it, with the entry point and the distribution."""


@dataclass(frozen=True)
class Discovered(Generic[FoundT]):
    """What is installed of one group: nothing that is broken hides the rest."""

    what: str
    """`benchmark` or `executor`, for messages."""

    usable: dict[str, FoundT] = field(default_factory=dict)
    """By name."""

    unusable: list[Unusable] = field(default_factory=list)
    """The others."""

    distributions: dict[str, str] = field(default_factory=dict)
    """What brings those that can be used, with the version, by their names."""

    def problem_of(self, name: str) -> str:
        """Return why there is none of a name that can be used; empty where there is one."""
        if name in self.usable:
            return ""
        if named := [one.problem for one in self.unusable if one.name == name]:
            return "; ".join(named)
        hint = did_you_mean(name, self.usable)
        broken = "".join(f"; {one.problem}" for one in self.unusable)
        return f"no {self.what} {name!r}{hint}{broken}"


def find_executors() -> dict[str, Executor]:
    """Return the installed executors by name, with a warning for each that cannot be used."""
    return _with_warnings(discover_executors())


def find_benchmarks() -> dict[str, type[Benchmark]]:
    """Return the installed benchmarks by name, with a warning for each that cannot be used."""
    return _with_warnings(discover_benchmarks())


def discover_executors() -> Discovered[Executor]:
    """Return the executors of all entry points, those that cannot be used apart."""
    return _discover("executor", EXECUTORS, _executors_of)


def discover_benchmarks() -> Discovered[type[Benchmark]]:
    """Return the benchmarks of all entry points, those that cannot be used apart."""
    return _discover("benchmark", BENCHMARKS, _benchmarks_of)


def _with_warnings(found: Discovered[FoundT]) -> dict[str, FoundT]:
    with warnings.catch_warnings():
        # Where warnings are errors, one broken distribution would still hide all others.
        warnings.simplefilter("always")
        for one in found.unusable:
            warnings.warn(one.problem, stacklevel=3)
    return found.usable


def _discover(
    what: str, group: str, read: Callable[[DoorEntry], Mapping[str, FoundT]]
) -> Discovered[FoundT]:
    """Read all entry points of a group; of two with one name none is used, or the box's own."""
    found: Discovered[FoundT] = Discovered(what)
    bringers: dict[str, DoorEntry] = {}
    for entry in find_entries(group, what).values():
        try:
            for name, one in read(entry).items():
                if (first := bringers.setdefault(name, entry)) is not entry:
                    _note_duplicate(found, name, one, (first, entry))
                else:
                    found.usable[name] = one
        except (Exception, SystemExit) as error:
            ours = isinstance(error, PluginError)
            reason = str(error) if ours else f"{type(error).__name__}: {error}"
            found.unusable.append(_unusable(entry.point.name, entry, reason))
    ordered = dict(sorted(found.usable.items()))
    brought = {name: _distribution(bringers[name]) for name in ordered}
    return Discovered(what, ordered, found.unusable, brought)


def _note_duplicate(
    found: Discovered[Any], name: str, one: Any, entries: tuple[DoorEntry, ...]
) -> None:
    """Take away what has the name of another; the same object may come by two entry points."""
    first, second = entries
    held = found.usable.get(name)
    if held is not None and _kind(held) is _kind(one):
        return
    other = f"the {first.kind} {first.name!r} of {first.brought_by}"
    reason = f"its name {name!r} is that of {other}; rename one of them"
    found.unusable.append(_unusable(name, second, reason))
    if not first.is_ours:
        found.usable.pop(name, None)


def _executors_of(entry: DoorEntry) -> dict[str, Executor]:
    kind = entry.point.load()
    if not (inspect.isclass(kind) and issubclass(kind, Executor)):
        raise PluginError(f"{kind!r} is no subclass of accel_bench_op.Executor")
    executor = kind()
    executor.name = executor.name or entry.point.name
    return {executor.name: executor}


def _benchmarks_of(entry: DoorEntry) -> dict[str, type[Benchmark]]:
    """Return a class, or the classes that a module defines itself; bases have no name."""
    loaded = entry.point.load()
    named: dict[str, type[Benchmark]] = {}
    for kind in vars(loaded).values() if isinstance(loaded, ModuleType) else [loaded]:
        if not (inspect.isclass(kind) and issubclass(kind, Benchmark) and kind.name):
            continue
        if kind is loaded or kind.__module__ == loaded.__name__:
            if named.setdefault(kind.name, kind) is not kind:
                raise PluginError(f"two classes are called {kind.name!r}; rename one of them")
    if not named:
        raise PluginError(
            "it is neither a subclass of accel_bench_op.Benchmark with a name nor a module that "
            "defines one"
        )
    return named


def _kind(one: Any) -> type:
    return one if inspect.isclass(one) else type(one)


def _unusable(name: str, entry: DoorEntry, reason: str) -> Unusable:
    return Unusable(name, entry.brought_by, str(entry.broken(reason)))


def _distribution(entry: DoorEntry) -> str:
    """Return what brings an entry point, with the version and the commit of a checkout."""
    if entry.point.dist is None:
        return ""
    name = entry.point.dist.name
    return f"{name} {distribution_version(name) or entry.point.dist.version}"
