"""Micro-benchmarks as scenarios: what is installed, and the scenario file of each cell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accel_bench.analysis.operations import ExecutorSupport, OperationEntry
from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.micro import Benchmark, ComputeType, Executor, find_benchmarks, find_executors
from accel_bench.micro.origin import distribution_of

ENGINE = "op"
"""The engine that calls an operation."""

BASELINE = "eager"
"""The executor that the others are compared with."""

ALL = "all"
"""The word for every size, or every executor."""

SMALLEST = "tiny"
"""The size that is run unless another one is chosen."""

STEPS = 50
"""Calls of the measured window, unless the command line sets `measure.steps`."""


@dataclass(frozen=True, kw_only=True)
class CellChoice:
    """Which cells are to be run; empty means the usual ones."""

    names: Sequence[str]
    executors: Sequence[str] = ()
    sizes: Sequence[str] = ()
    compute_types: Sequence[str] = ()
    dtype: str = "float32"
    calls: int = 1


def list_operations(names: Sequence[str] = ()) -> list[OperationEntry]:
    """Return the installed benchmarks, or those of these names. Raises ScenarioError."""
    benchmarks, executors = find_benchmarks(), find_executors()
    chosen = [(name, _named(name, benchmarks, "benchmark")) for name in names or benchmarks]
    return [
        OperationEntry(
            benchmark=name,
            description=kind.description,
            operation=kind.operation,
            compute_types=tuple(_compute_types(kind)),
            sizes=tuple(kind.sizes),
            distribution=distribution_of(kind),
            executors=tuple(_support(executor, kind) for executor in executors.values()),
        )
        for name, kind in chosen
    ]


def cell_scenarios(choice: CellChoice) -> list[dict[str, Any]]:
    """Return a scenario for each cell: a benchmark at a size, its executors the stacks.

    Raises ScenarioError for a name that is not known.
    """
    benchmarks, executors = find_benchmarks(), find_executors()
    for name in choice.executors:
        _named(name, executors, "executor")
    found = []
    for name in dict.fromkeys(choice.names):
        kind = _named(name, benchmarks, "benchmark")
        stacks = list(_stacks(choice, kind, executors))
        found += [
            _scenario(name, size, compute_type, stacks, choice)
            for size in _sizes(choice, name, kind)
            for compute_type in _chosen_types(choice, kind)
        ]
    if not found:
        raise ScenarioError(
            f"nothing to run: {', '.join(choice.names)} have no backward pass; leave "
            "--compute-type out"
        )
    return found


def _scenario(
    name: str, size: str, compute_type: str, stacks: Sequence[str], choice: CellChoice
) -> dict[str, Any]:
    label = ".".join(filter(None, (name, compute_type, size)))
    own = {"benchmark": name, "size": size, "compute_type": compute_type}
    forward = compute_type != ComputeType.TRAINING_BACKWARD.value
    return {
        "name": label[:64],
        "description": f"How fast is {name} under {', '.join(stacks)}?",
        "task": "operation",
        "model": {"use": "none", "id": name, "dtype": choice.dtype},
        "data": {"use": "none", "sequence_length": 1},
        "optimizer": {"use": "none"},
        "engine": {"use": ENGINE, **own},
        "train": {"micro_batch_size": choice.calls if forward else 1},
        "measure": {"steps": STEPS, "phase_steps": 0},
        "stacks": {
            stack: {"set": {} if stack == BASELINE else {"engine.executor": stack}}
            for stack in stacks
        },
        "baseline": BASELINE,
    }


def _stacks(
    choice: CellChoice, kind: type[Benchmark], executors: Mapping[str, Executor]
) -> Iterator[str]:
    """Yield the baseline, then the chosen executors; unless chosen, those that can run it here."""
    yield BASELINE
    every, one = ALL in choice.executors, _smallest(kind)
    for name, executor in executors.items():
        able = executor.takes(kind) if every else not executor.supports(one)
        if name != BASELINE and (name in choice.executors or (able and not choice.executors)):
            yield name


def _sizes(choice: CellChoice, name: str, kind: type[Benchmark]) -> list[str]:
    """Return the chosen sizes; unless chosen the smallest, or the benchmark's own defaults."""
    if not kind.sizes:
        return [""]
    if not choice.sizes:
        return [_smallest_size(kind)]
    for size in choice.sizes:
        if size != ALL and size not in kind.sizes:
            hint = did_you_mean(size, kind.sizes)
            raise ScenarioError(f"benchmark {name} has no size {size!r}{hint}")
    return list(kind.sizes) if ALL in choice.sizes else list(dict.fromkeys(choice.sizes))


def _smallest_size(kind: type[Benchmark]) -> str:
    return SMALLEST if SMALLEST in kind.sizes else next(iter(kind.sizes), "")


def _smallest(kind: type[Benchmark]) -> Benchmark:
    """Return the benchmark at its smallest size: what a library lacks, an instance knows."""
    found: Benchmark = kind.at_size(_smallest_size(kind))
    return found


def _chosen_types(choice: CellChoice, kind: type[Benchmark]) -> list[str]:
    known = [one.value for one in ComputeType]
    for name in choice.compute_types:
        if name not in known:
            raise ScenarioError(f"no compute type {name!r}{did_you_mean(name, known)}")
    return [one for one in _compute_types(kind) if one in (choice.compute_types or known)]


def _compute_types(kind: type[Benchmark]) -> Iterable[str]:
    every = [one.value for one in ComputeType]
    return every if kind.requires_grad else every[:1]


def _named(name: str, known: Mapping[str, Any], what: str) -> Any:
    if name not in known:
        raise ScenarioError(f"no {what} {name!r}{did_you_mean(name, known)}")
    return known[name]


def _support(executor: Executor, kind: type[Benchmark]) -> ExecutorSupport:
    reason = executor.supports(_smallest(kind))
    return ExecutorSupport(
        executor=executor.name,
        distribution=distribution_of(executor),
        has_kernel=executor.takes(kind),
        runs=not reason,
        reason=reason,
    )
