"""Find executors and benchmarks by entry point, those of other distributions too."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import metadata
from types import ModuleType
from typing import Any

from accel_bench.errors import PluginError
from accel_bench.micro.benchmark import Benchmark
from accel_bench.micro.executors import Executor

EXECUTORS = "accel_bench.executors"
"""Entry points of executors: `name = "package.module:Class"`."""

BENCHMARKS = "accel_bench.micro"
"""Entry points of benchmarks: `name = "package.module:Class"`, or a module of such classes."""


def find_executors() -> dict[str, Executor]:
    """Return the installed executors by name.

    Raises PluginError for an entry point that cannot be used, and for a name that two bring.
    """
    found: dict[str, Executor] = {}
    for entry in _entries(EXECUTORS):
        kind = _load(entry)
        if not (inspect.isclass(kind) and issubclass(kind, Executor)):
            raise PluginError(f"{_culprit(entry)} is no subclass of accel_bench.micro.Executor")
        executor = kind()
        executor.name = executor.name or entry.name
        _add(found, executor.name, executor, entry)
    return dict(sorted(found.items()))


def find_benchmarks() -> dict[str, type[Benchmark]]:
    """Return the installed benchmarks by name.

    Raises PluginError for an entry point that cannot be used, and for a name that two bring.
    """
    found: dict[str, type[Benchmark]] = {}
    for entry in _entries(BENCHMARKS):
        kinds = list(_benchmarks_of(_load(entry)))
        if not kinds:
            raise PluginError(
                f"{_culprit(entry)} is neither a subclass of accel_bench.micro.Benchmark with a "
                "name nor a module that defines one"
            )
        for kind in kinds:
            _add(found, kind.name, kind, entry)
    return dict(sorted(found.items()))


def _entries(group: str) -> list[metadata.EntryPoint]:
    return sorted(metadata.entry_points(group=group), key=lambda entry: (entry.name, entry.value))


def _load(entry: metadata.EntryPoint) -> Any:
    try:
        return entry.load()
    except PluginError as error:
        raise PluginError(f"{_culprit(entry)}: {error}") from error
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise PluginError(f"{_culprit(entry)} cannot be imported: {problem}") from error


def _benchmarks_of(loaded: Any) -> Iterator[type[Benchmark]]:
    """Yield a class, or the classes that a module defines itself; bases have no name."""
    kinds = vars(loaded).values() if isinstance(loaded, ModuleType) else [loaded]
    for kind in kinds:
        if not (inspect.isclass(kind) and issubclass(kind, Benchmark) and kind.name):
            continue
        if kind is loaded or kind.__module__ == loaded.__name__:
            yield kind


def _add(found: dict[str, Any], name: str, one: Any, entry: metadata.EntryPoint) -> None:
    if found.get(name, one) is not one:
        other = type(found[name]) if isinstance(found[name], Executor) else found[name]
        raise PluginError(
            f"{_culprit(entry)} is called {name!r}, as {other.__module__}.{other.__qualname__} is; "
            "rename one of them"
        )
    found[name] = one


def _culprit(entry: metadata.EntryPoint) -> str:
    """Return an entry point with its distribution, for messages."""
    brought = f" of {entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""
    return f"entry point {entry.name!r} ({entry.value}) in {entry.group}{brought}"
