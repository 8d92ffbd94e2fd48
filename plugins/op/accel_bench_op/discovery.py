"""Discovery of installed executors and benchmarks by entry point."""

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
"""Entry-point group of executors: `name = "package.module:Class"`."""

BENCHMARKS = "accel_bench.micro"
"""Entry-point group of benchmarks: `name = "package.module:Class"`, or a module of classes."""

FoundT = TypeVar("FoundT")


@dataclass(frozen=True)
class Unusable:
    """An installed benchmark or executor that cannot be used."""

    name: str
    """Name of the class if known, else of the entry point."""

    distribution: str
    """Distribution with its version."""

    problem: str
    """Description of the problem, with entry point and distribution."""


@dataclass(frozen=True)
class Discovered(Generic[FoundT]):
    """Loaded entry points of one group, with the entry points that could not be used."""

    what: str
    """`benchmark` or `executor`, for messages."""

    usable: dict[str, FoundT] = field(default_factory=dict)
    """Usable entries by name."""

    unusable: list[Unusable] = field(default_factory=list)
    """Unusable entries."""

    distributions: dict[str, str] = field(default_factory=dict)
    """Distributions of usable entries, with version, by entry name."""

    def problem_of(self, name: str) -> str:
        """Return why no usable benchmark or executor is called `name`; empty if there is one."""
        if name in self.usable:
            return ""
        if named := [entry.problem for entry in self.unusable if entry.name == name]:
            return "; ".join(named)
        hint = did_you_mean(name, self.usable)
        broken = "".join(f"; {entry.problem}" for entry in self.unusable)
        return f"no {self.what} {name!r}{hint}{broken}"


def find_executors() -> dict[str, Executor]:
    """Return the installed executors by name, with a warning for each unusable one."""
    return _with_warnings(discover_executors())


def find_benchmarks() -> dict[str, type[Benchmark]]:
    """Return the installed benchmarks by name, with a warning for each unusable one."""
    return _with_warnings(discover_benchmarks())


def discover_executors() -> Discovered[Executor]:
    """Return the executors of all entry points, usable or not."""
    return _discover("executor", EXECUTORS, _executors_of)


def discover_benchmarks() -> Discovered[type[Benchmark]]:
    """Return the benchmarks of all entry points, usable or not."""
    return _discover("benchmark", BENCHMARKS, _benchmarks_of)


def _with_warnings(found: Discovered[FoundT]) -> dict[str, FoundT]:
    with warnings.catch_warnings():
        # Where warnings are errors, one broken distribution would still hide all others.
        warnings.simplefilter("always")
        for entry in found.unusable:
            warnings.warn(entry.problem, stacklevel=3)
    return found.usable


def _discover(
    what: str, group: str, read: Callable[[DoorEntry], Mapping[str, FoundT]]
) -> Discovered[FoundT]:
    """Load all entry points of a group.

    If two entries have the same name, only accel-bench's own entry is kept; if neither is its own,
    both are dropped. `what` is `benchmark` or `executor`, for messages. `read` returns the classes
    or instances of an entry point by name.
    """
    result: Discovered[FoundT] = Discovered(what)
    bringers: dict[str, DoorEntry] = {}
    for entry in find_entries(group, what).values():
        try:
            for name, loaded in read(entry).items():
                if (first := bringers.setdefault(name, entry)) is not entry:
                    _drop_duplicate(result, name, loaded, (first, entry))
                else:
                    result.usable[name] = loaded
        except (Exception, SystemExit) as error:
            ours = isinstance(error, PluginError)
            reason = str(error) if ours else f"{type(error).__name__}: {error}"
            result.unusable.append(_unusable(entry.point.name, entry, reason))
    ordered = dict(sorted(result.usable.items()))
    brought = {name: _distribution(bringers[name]) for name in ordered}
    return Discovered(what, ordered, result.unusable, brought)


def _drop_duplicate(
    found: Discovered[Any], name: str, one: Any, entries: tuple[DoorEntry, ...]
) -> None:
    """Mark the second of two entries of one name as unusable, and discard the first.

    The first is kept if it is accel-bench's own. Nothing is done if both entries load the same
    class. `one` is what the second entry loads, and `entries` are the entry points of the first and
    second.
    """
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
    """Return the benchmark class of an entry point, or its module's named classes, by name."""
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
    """Return the distribution of an entry point, with version and the checkout's commit."""
    if entry.point.dist is None:
        return ""
    name = entry.point.dist.name
    return f"{name} {distribution_version(name) or entry.point.dist.version}"
