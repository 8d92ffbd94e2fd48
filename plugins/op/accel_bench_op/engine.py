"""The task and engine `op`: call one operation, and check its results."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from accel_bench import (
    Batch,
    Engine,
    Experiment,
    Held,
    Loss,
    Machine,
    Metric,
    Options,
    Plugin,
    Run,
    Task,
    TokenCounts,
    Window,
    hookimpl,
)
from accel_bench_op.compute import ComputeType
from accel_bench_op.discovery import discover_benchmarks, discover_executors
from accel_bench_op.executors import cell_obstacle


class Operation(Task[Options]):
    """Counts calls of one operation, in the place of tokens; nothing is trained."""

    counts = "calls"

    def held(self, batch: Batch) -> Held | None:
        """Return None, since a batch of this task holds no tensors to count."""
        return None

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return a loss function whose value is always 0."""
        return no_loss


def no_loss(operation: Any, inputs: Mapping[str, Any], supervised_in_step: int) -> float:
    """Return 0 in place of a loss, whatever the arguments of a loss function are."""
    return 0.0


class OpOptions(Options):
    """Options of the engine `op`: the benchmark, its size, the compute type and the executor."""

    benchmark: str = Field(min_length=1)
    """Name of the benchmark, as `accel-bench op list` prints it."""

    size: str = ""
    """Name of a size; empty for the default arguments."""

    compute_type: Literal["inference", "forward", "backward"] = "inference"
    """Timed phase: a call without gradients, a call that saves tensors for the backward pass, or
    the backward pass alone."""

    executor: str = "eager"
    """Name of the executor, as `accel-bench op list` prints it."""


class Op(Plugin[OpOptions]):
    """Calls one operation on its own; a wrong output or gradient makes the run invalid."""

    Options = OpOptions
    modes = frozenset({"train"})
    tasks = frozenset({"operation"})

    def claims(self) -> frozenset[str]:
        """Return the names of the hooks that no other plugin may implement beside this engine."""
        return frozenset({"load_data", "load_model", "build_optimizer", "build_batches"})

    def fingerprint(self, experiment: Experiment) -> Any:
        """Return name and version of the distributions of the benchmark and the executor."""
        benchmark = discover_benchmarks().distributions.get(self.options.benchmark)
        executor = discover_executors().distributions.get(self.options.executor)
        return [version for version in (benchmark, executor) if version is not None]

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterable[str]:
        """Yield the reasons why the operation cannot run here, such as an unknown name."""
        benchmarks, executors = discover_benchmarks(), discover_executors()
        options, scenario = self.options, experiment.scenario
        problem = benchmarks.problem_of(options.benchmark) or executors.problem_of(options.executor)
        reason = problem or cell_obstacle(
            benchmarks.usable[options.benchmark],
            executors.usable[options.executor],
            options.size,
            ComputeType(options.compute_type),
            device=scenario.resources.device,
            dtype=scenario.model.dtype,
        )
        if reason:
            yield reason
        if options.compute_type == "backward" and scenario.train.global_batch_size > 1:
            yield "a backward pass is one call a step: train.micro_batch_size must be 1"

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """Import torch early, so that its memory does not count as memory of the run."""
        from accel_bench_op import engine_impl  # noqa: F401

    @hookimpl
    def load_data(self, run: Run) -> Any:
        """Return an empty dataset: a benchmark makes its own batch."""
        return ()

    @hookimpl
    def load_model(self, run: Run) -> Any:
        """Return the operation as built by the executor."""
        from accel_bench_op import engine_impl

        return engine_impl.BuiltOperation(run, self.options)

    @hookimpl
    def build_optimizer(self, run: Run) -> Any:
        """Return the operation itself as a placeholder, since nothing is trained."""
        return run.model

    @hookimpl
    def build_batches(self, run: Run) -> Iterator[Batch]:
        """Yield the same empty batch endlessly; it counts the calls of a step as tokens."""
        calls = run.scenario.train.micro_batch_size
        counts = TokenCounts(calls, calls, calls)
        supervised = run.scenario.train.global_batch_size
        return itertools.repeat(Batch({}, calls, counts, supervised))

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        """Return the engine that calls the operation in each step."""
        from accel_bench_op.engine_impl import OperationEngine

        return OperationEngine(run)

    @hookimpl
    def finish_metrics(self, run: Run, window: Window) -> Iterable[Metric]:
        """Return FLOP/s, bytes/s and the fraction of this machine's roofline."""
        return run.model.metrics(window)

    @hookimpl
    def report_evidence(self, run: Run) -> dict[str, Any]:
        """Return JSON evidence of the comparison with eager in float64, on another batch."""
        return run.model.check()
