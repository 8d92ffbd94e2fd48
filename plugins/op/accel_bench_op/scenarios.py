"""Scenarios of micro-benchmarks, made from the installed benchmarks and executors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench_op import Benchmark, ComputeType, Executor
from accel_bench_op.compute import compute_types_of
from accel_bench_op.discovery import Discovered, discover_benchmarks, discover_executors
from accel_bench_op.document import ExecutorSupport, OperationEntry
from accel_bench_op.executors import cell_obstacle

ENGINE, TASK = "op", "operation"
"""Names of the plugins for the scenario's keys `engine` and `task`."""

BASELINE = "eager"
"""Executor with which other executors are compared."""

ALL = "all"
"""Word that selects every size, or every executor."""

SMALLEST = "tiny"
"""Benchmark size that runs by default."""

STEPS = 50
"""Number of calls in the measured window, unless `measure.steps` is set."""


@dataclass(frozen=True, kw_only=True)
class CellChoice:
    """Benchmarks, executors, sizes and compute types to run; an empty choice means the default."""

    names: Sequence[str]
    executors: Sequence[str] = ()
    sizes: Sequence[str] = ()
    compute_types: Sequence[str] = ()
    dtype: str = "float32"
    calls: int = 1
    device: str = "cpu"


class OpRegistry(NamedTuple):
    """Benchmarks and executors of all distributions."""

    benchmarks: Discovered[type[Benchmark]]
    executors: Discovered[Executor]


def read_installed() -> OpRegistry:
    """Import and return the installed benchmarks and executors; this may import torch."""
    return OpRegistry(discover_benchmarks(), discover_executors())


def list_operations(
    installed: OpRegistry, names: Sequence[str] = (), device: str = "cpu"
) -> list[OperationEntry]:
    """Return an entry for each installed benchmark, or for each one called by `names`.

    Raises ScenarioError for an unknown name.
    """
    benchmarks = installed.benchmarks
    for name in names:
        _named(name, benchmarks)
    listed = [_entry(name, installed, device) for name in names or benchmarks.usable]
    broken = [
        OperationEntry(benchmark=entry.name, distribution=entry.distribution, problem=entry.problem)
        for entry in benchmarks.unusable
    ]
    return listed if names else [*listed, *broken]


def _entry(name: str, installed: OpRegistry, device: str) -> OperationEntry:
    kind, executors = installed.benchmarks.usable[name], installed.executors
    baseline = executors.usable[BASELINE]
    possible = compute_types_of(kind)
    types = [
        phase
        for phase in possible
        if not cell_obstacle(kind, baseline, _smallest_size(kind), phase, device=device)
    ]
    return OperationEntry(
        benchmark=name,
        description=kind.description,
        operation=kind.operation,
        compute_types=tuple(phase.value for phase in types or possible),
        sizes=tuple(kind.sizes),
        distribution=installed.benchmarks.distributions[name],
        executors=tuple(
            _support(executor, kind, executors, device) for executor in executors.usable
        ),
    )


def cell_scenarios(choice: CellChoice, installed: OpRegistry | None = None) -> list[dict[str, Any]]:
    """Return a scenario for each benchmark, size and compute type; its stacks are executors.

    Raises ScenarioError for an unknown name, and if the choice leaves nothing to run.
    """
    installed = installed or read_installed()
    for name in choice.executors:
        if name != ALL:
            _named(name, installed.executors)
    scenarios = []
    for name in dict.fromkeys(choice.names):
        kind = _named(name, installed.benchmarks)
        stacks = list(_stacks(choice, kind, installed.executors.usable))
        scenarios += [
            _scenario(name, size, compute_type, stacks, choice)
            for size in _sizes(choice, name, kind)
            for compute_type in _chosen_types(choice, kind)
        ]
    if not scenarios:
        raise ScenarioError(
            f"nothing to run: {', '.join(choice.names)} "
            f"{'have' if len(choice.names) > 1 else 'has'} no backward pass; leave "
            "--compute-type out"
        )
    return scenarios


def _scenario(
    name: str, size: str, compute_type: str, stacks: Sequence[str], choice: CellChoice
) -> dict[str, Any]:
    own = {"benchmark": name, "size": size, "compute_type": compute_type}
    forward = compute_type != ComputeType.TRAINING_BACKWARD.value
    return {
        "name": ".".join(filter(None, (name, compute_type, size))),
        "description": f"How fast is {name} under {', '.join(stacks)}?",
        "task": {"use": TASK},
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
    """Yield `eager` and the names of chosen executors, by default of all that can run here."""
    yield BASELINE
    for name, executor in executors.items():
        if ALL in choice.executors:
            chosen = executor.takes(kind)
        elif choice.executors:
            chosen = name in choice.executors
        else:
            size = _smallest_size(kind)
            chosen = not cell_obstacle(
                kind, executor, size, device=choice.device, dtype=choice.dtype
            )
        if chosen and name != BASELINE:
            yield name


def _sizes(choice: CellChoice, name: str, kind: type[Benchmark]) -> list[str]:
    """Return the chosen sizes' names, by default the smallest; an empty name if `kind` has none."""
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


def _chosen_types(choice: CellChoice, kind: type[Benchmark]) -> list[str]:
    known = [phase.value for phase in ComputeType]
    for name in choice.compute_types:
        if name not in known:
            raise ScenarioError(f"no compute type {name!r}{did_you_mean(name, known)}")
    possible = [phase.value for phase in compute_types_of(kind)]
    return [phase for phase in possible if phase in (choice.compute_types or known)]


def _named(name: str, known: Discovered[Any]) -> Any:
    if problem := known.problem_of(name):
        raise ScenarioError(problem)
    return known.usable[name]


def _support(
    name: str, kind: type[Benchmark], executors: Discovered[Executor], device: str
) -> ExecutorSupport:
    executor = executors.usable[name]
    # What a library lacks, an instance knows.
    reason = cell_obstacle(kind, executor, _smallest_size(kind), device=device)
    return ExecutorSupport(
        executor=name,
        distribution=executors.distributions[name],
        has_kernel=executor.takes(kind),
        runs=not reason,
        reason=reason,
    )
