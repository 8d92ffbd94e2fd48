"""Task and engine plugins that judge one training step in a separate process."""

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
        """Return None, since steps are not counted by tensors of a batch."""
        return None

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return a loss function that is constant 0 and is never called."""
        return no_loss


def no_loss(trial: Any, inputs: Mapping[str, Any], supervised_in_step: int) -> float:
    """Return 0.0 as the loss of any inputs; the arguments are not used."""
    return 0.0


class StepOptions(Options):
    """Options of `judged-step`: the file that is timed, and the reference to compare it with."""

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
        """Return the names of the hooks that no other plugin may implement; data and model of the
        scenario are not used."""
        return frozenset({"load_data", "load_model", "build_optimizer", "build_batches"})

    def fingerprint(self, experiment: Experiment) -> Any:
        """Return the SHA-256 digests of the timed file and of the reference."""
        return [digest_of(self.options.file), digest_of(self.options.reference)]

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterable[str]:
        """Yield the reasons why the step cannot be judged on this machine."""
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
        """Import torch early, since core excludes this import from the memory of a run."""
        from accel_bench_judge import engine_impl  # noqa: F401

    @hookimpl
    def load_data(self, run: Run) -> Any:
        """Return an empty dataset, since the reference draws the batches."""
        return ()

    @hookimpl
    def load_model(self, run: Run) -> Any:
        """Return a trial in place of a model. The trial starts the step's confined process."""
        from accel_bench_judge.engine_impl import start_trial

        return start_trial(run, self.options)

    @hookimpl
    def build_optimizer(self, run: Run) -> Any:
        """Return the trial as a placeholder of the optimizer."""
        return run.model

    @hookimpl
    def build_batches(self, run: Run) -> Iterator[Batch]:
        """Yield the same placeholder of a batch endlessly; it counts as one step."""
        return itertools.repeat(Batch({}, 1, TokenCounts(1, 1, 1), 1))

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        """Return the engine that requests steps from the step's process."""
        from accel_bench_judge.engine_impl import StepEngine

        return StepEngine(run)

    @hookimpl
    def report_evidence(self, run: Run) -> dict[str, Any]:
        """End the step's process, and return JSON evidence of the comparison with the reference."""
        from accel_bench_judge.engine_impl import evidence

        return evidence(run)
