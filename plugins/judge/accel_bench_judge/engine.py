"""The task and engine that judge one training step in a process of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import Field

from accel_bench import (
    Batch,
    Engine,
    Experiment,
    Held,
    Loss,
    Machine,
    Options,
    Plugin,
    Run,
    Task,
    TokenCounts,
    hookimpl,
)
from accel_bench.errors import ScenarioError
from accel_bench_judge.step_files import digest_of


class TrainingStep(Task[Options]):
    """Counts steps of a judged file, in the place of tokens."""

    counts = "calls"

    def held(self, batch: Batch) -> Held | None:
        """Return nothing: steps are counted outside of tensors."""
        return None

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return a loss function of constant 0, which nobody calls."""
        return no_loss


def no_loss(trial: Any, inputs: Mapping[str, Any], supervised_in_step: int) -> float:
    """Return a loss of 0."""
    return 0.0


class StepOptions(Options):
    """Options of `judged-step`: the file that is timed, and the reference it is compared with."""

    file: str = Field(min_length=1)
    """Path of the file whose `step` is timed."""

    reference: str = Field(min_length=1)
    """Path of the file that defines the model, the batches, the optimizer and the reference."""

    fewer_flops: bool = False
    """Allow a step that counts fewer FLOPs than the reference, if its update is the same."""


class Step(Plugin[StepOptions]):
    """Times a training step in a confined process; another update makes the run invalid."""

    Options = StepOptions
    modes = frozenset({"train"})
    tasks = frozenset({"training-step"})

    def claims(self) -> frozenset[str]:
        """Return the one-answer hooks, including the unused model, data and optimizer."""
        return frozenset({"load_data", "load_model", "build_optimizer", "build_batches"})

    def fingerprint(self, experiment: Experiment) -> Any:
        """Return the digests of both files."""
        return [digest_of(self.options.file), digest_of(self.options.reference)]

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterable[str]:
        """Yield why the step cannot be judged here."""
        if experiment.scenario.resources.device != "cpu":
            yield "a step is judged on the CPU alone: set resources.device to cpu"
        if not machine.system.startswith("Linux"):
            yield "a step is judged on Linux alone"
        if not isinstance(experiment.scenario.measure.warmup, int):
            yield "other processes are watched after the warm-up: set measure.warmup to a number"
        try:
            self.fingerprint(experiment)
        except ScenarioError as error:
            yield str(error)

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """Import torch, which core excludes from the memory of a run."""
        from accel_bench_judge import engine_impl  # noqa: F401

    @hookimpl
    def load_data(self, run: Run) -> Any:
        """Return an empty dataset: the reference draws the batches."""
        return ()

    @hookimpl
    def load_model(self, run: Run) -> Any:
        """Return the trial, which starts the process of the step."""
        from accel_bench_judge.engine_impl import start_trial

        return start_trial(run, self.options)

    @hookimpl
    def build_optimizer(self, run: Run) -> Any:
        """Return a placeholder of the optimizer."""
        return run.model

    @hookimpl
    def build_batches(self, run: Run) -> Iterator[Batch]:
        """Yield a placeholder of a batch, which counts one step."""
        return itertools.repeat(Batch({}, 1, TokenCounts(1, 1, 1), 1))

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        """Return the engine that asks for steps."""
        from accel_bench_judge.engine_impl import StepEngine

        return StepEngine(run)

    @hookimpl
    def report_evidence(self, run: Run) -> dict[str, Any]:
        """End the process, and return JSON evidence of the comparison with the reference."""
        from accel_bench_judge.engine_impl import evidence

        return evidence(run)
