"""Find executors and benchmarks by entry point, those of other distributions too."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from types import ModuleType
from typing import Any, Generic, TypeVar

from accel_bench.errors import PluginError, did_you_mean
from accel_bench.machine.provenance import distribution_version
from accel_bench.plugins.doors import Entry, find_entries
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
    """The entry point with its distribution, and what is wrong with it."""


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
            return f"{self.what} {name!r} cannot be used: {'; '.join(named)}"
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
            warnings.warn(f"{found.what} {one.name!r} is left out: {one.problem}", stacklevel=3)
    return found.usable


def _discover(
    what: str, group: str, read: Callable[[metadata.EntryPoint], Mapping[str, FoundT]]
) -> Discovered[FoundT]:
    """Read all entry points of a group; of two with one name none is used, or the box's own."""
    found: Discovered[FoundT] = Discovered(what)
    bringers: dict[str, Entry] = {}
    for entry in find_entries(group, what).values():
        try:
            for name, one in read(entry.point).items():
                if (first := bringers.setdefault(name, entry)) is not entry:
                    _note_duplicate(found, name, one, (first, entry))
                else:
                    found.usable[name] = one
        except (Exception, SystemExit) as error:
            found.unusable.append(_unusable(entry.point.name, entry, _problem(error)))
    ordered = dict(sorted(found.usable.items()))
    brought = {name: _distribution(bringers[name].point) for name in ordered}
    return Discovered(what, ordered, found.unusable, brought)


def _note_duplicate(
    found: Discovered[Any], name: str, one: Any, entries: tuple[Entry, ...]
) -> None:
    """Take away what has the name of another; the same object may come by two entry points."""
    first, second = entries
    held = found.usable.get(name)
    if held is not None and _kind(held) is _kind(one):
        return
    problem = f"is called {name!r}, as that of {_culprit(first.point)} is; rename one of them"
    found.unusable.append(_unusable(name, second, problem))
    if not first.is_ours:
        found.usable.pop(name, None)


def _executors_of(entry: metadata.EntryPoint) -> dict[str, Executor]:
    kind = entry.load()
    if not (inspect.isclass(kind) and issubclass(kind, Executor)):
        raise PluginError(f"{kind!r} is no subclass of accel_bench_op.Executor")
    executor = kind()
    executor.name = executor.name or entry.name
    return {executor.name: executor}


def _benchmarks_of(entry: metadata.EntryPoint) -> dict[str, type[Benchmark]]:
    kinds = set(_classes_of(entry.load()))
    if not kinds:
        raise PluginError(
            "it is neither a subclass of accel_bench_op.Benchmark with a name nor a module that "
            "defines one"
        )
    named = {kind.name: kind for kind in sorted(kinds, key=lambda kind: kind.__qualname__)}
    if doubled := [kind for kind in kinds if named[kind.name] is not kind]:
        raise PluginError(f"two classes are called {doubled[0].name!r}; rename one of them")
    return named


def _classes_of(loaded: Any) -> Iterator[type[Benchmark]]:
    """Yield a class, or the classes that a module defines itself; bases have no name."""
    kinds = vars(loaded).values() if isinstance(loaded, ModuleType) else [loaded]
    for kind in kinds:
        if not (inspect.isclass(kind) and issubclass(kind, Benchmark) and kind.name):
            continue
        if kind is loaded or kind.__module__ == loaded.__name__:
            yield kind


def _kind(one: Any) -> type:
    return one if inspect.isclass(one) else type(one)


def _unusable(name: str, entry: Entry, problem: str) -> Unusable:
    return Unusable(name, _distribution(entry.point), f"{_culprit(entry.point)} {problem}")


def _problem(error: BaseException) -> str:
    if isinstance(error, PluginError):
        return f"cannot be used: {error}"
    return f"cannot be imported: {type(error).__name__}: {error}"


def _culprit(entry: metadata.EntryPoint) -> str:
    """Return an entry point with its distribution, for messages."""
    brought = _distribution(entry)
    where = f"{entry.group} of {brought}" if brought else entry.group
    return f"entry point {entry.name!r} ({entry.value}) in {where}"


def _distribution(entry: metadata.EntryPoint) -> str:
    """Return what brings an entry point, with the version and the commit of a checkout."""
    if entry.dist is None:
        return ""
    name = entry.dist.name
    return f"{name} {distribution_version(name) or entry.dist.version}"
