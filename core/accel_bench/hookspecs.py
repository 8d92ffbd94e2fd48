"""The contract: every hook, in the order in which a run calls them.

A hook is either `one_answer`, given to the stack's plugin that implements it or else to the plugin
of the slot that the hook belongs to, or it is called on all active plugins: those of the stack in
written order, then those of the slots. A slot's plugin may claim the hook of another slot, as an
engine does that wraps the model itself (`Plugin.claims`). A method marked `@hookimpl` implements
the hook of its name and takes any of its arguments. There is no hook inside a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from accel_bench.plugin import hookspec

if TYPE_CHECKING:
    from pathlib import Path

    from accel_bench import (
        Allocation,
        Batch,
        Engine,
        Experiment,
        Job,
        Loss,
        Machine,
        Metric,
        Observer,
        RankProcess,
        Result,
        Run,
        Scenario,
        StepObserver,
        Summary,
        Task,
        Window,
    )
    from accel_bench.documents.base import JsonValue

ONE_ANSWER: dict[str, str | None] = {
    "launch_ranks": "launcher",
    "sample_lengths": "data",
    "simulate_batch": "data",
    "load_data": "data",
    "load_model": "model",
    "add_adapter": "adapter",
    "compile_model": None,
    "parallelize_model": "parallel",
    "build_loss": "task",
    "build_optimizer": "optimizer",
    "build_batches": "data",
    "build_evaluation_batches": "data",
    "build_engine": "engine",
}
"""Hooks that get one answer, and the slot whose plugin gives it when no plugin of the stack does.
"""

OF_SIZES = frozenset({"sample_lengths", "simulate_batch"})
"""Hooks that are called only where sizes are worked out or estimated."""

OF_EVALUATION = frozenset({"build_evaluation_batches"})
"""Hooks that need an answer only where a scenario evaluates."""

LIMITED = frozenset({"check_scenario"})
"""Hooks that get seconds: nothing else watches over them."""

# In the parent, before anything starts.


@hookspec
def allocate_ranks(
    scenarios: Sequence[Scenario], command: Sequence[str], dry_run: bool
) -> Allocation | None:
    """One answer, launcher. Once for a session, before anything is planned: return the processes
    that all its runs share, which `launch_ranks` then gets.

    `scenarios` are those of all points, with `resources.device` as it is written. Where another
    process does the work of this command, as in the ranks other than 0 of torchrun, wait for it and
    return what has an `exit_code`. What has `places` runs sweep points on them at once.
    """


@hookspec
def check_scenario(
    experiment: Experiment, machine: Machine, task: Task[Any] | None
) -> Iterable[str]:
    """All. Where the ranks will run: return reasons why this cannot run here. Imports nothing
    heavy. `task` is the plugin that fills that slot; None in a scenario without one."""


@hookspec
def launch_ranks(job: Job, allocation: Allocation | None) -> Sequence[RankProcess]:
    """One answer, launcher. Start one process for each rank and return their handles; `allocation`
    is what `allocate_ranks` returned."""


@hookspec
def observe_ranks(job: Job, ranks: Sequence[RankProcess]) -> Observer | None:
    """All. Once the ranks have been started: return what watches them from outside until its
    `finish`, or None."""


@hookspec
def record_result(result: Result | None, summary: Summary | None, results_folder: Path) -> None:
    """All trackers. After each run has been stored: log `result` somewhere else; `describe_run`
    has its settings, figures and steps by name. An error of it is a warning, and loses no row.

    Where the method takes `summary`, it is called once more when the session has ended, however it
    did, with the comparison, and without a result. `results_folder` is where to leave files unless
    an option says otherwise.
    """


# Where a scenario leaves a size to the program, before its experiments are planned.


@hookspec
def sample_lengths(run: Run) -> Sequence[int]:
    """One answer, data. Where `data.sequence_length` is `auto`, in a process of its own before
    anything else: return the tokens of each sample before it is cut."""


# Where memory and speed are estimated, in a process of its own, beside hooks of a worker process.


@hookspec
def simulate_batch(run: Run, micro_batch_size: int, sequence_length: int) -> Batch:
    """One answer, data. Return the largest micro-batch that `build_batches` may yield, as tensors
    whose values do not matter: memory and speed are estimated from it.

    `run.task`, `run.model` and `run.unwrapped_model` are there, and no dataset. `sequence_length`
    takes the place of the scenario's, for data that has a sequence length. Without an answer a
    sample is so many tokens, each of them supervised.
    """


# In a worker process. First, once for each experiment, in a process of its own that is not timed.


@hookspec
def prepare_experiment(run: Run) -> None:
    """All. Fill content-keyed caches with `run.cache`; `run.rehearsal = True` asks for untimed
    steps."""


# In every worker process, in this order.


@hookspec
def prepare_process(run: Run) -> None:
    """All. First of all: environment variables, imports that must come before others."""


@hookspec
def load_data(run: Run) -> Any:
    """One answer, data. Return the dataset; it comes before the model, which may need it to
    calibrate."""


@hookspec
def load_model(run: Run) -> Any:
    """One answer, model. Return the model on `run.device`, in the dtype of the scenario."""


@hookspec
def add_adapter(run: Run) -> Any:
    """One answer, adapter. Return the model with its adapter; only called when the scenario has
    one."""


# Core enables gradient checkpointing here, once, for every stack in the same way.


@hookspec
def accelerate_model(run: Run) -> Any:
    """All, in written order. Return the new model, or None when it was changed in place."""


@hookspec
def compile_model(run: Run) -> None:
    """One answer, of the stack. Compile in place, after all accelerations and before wrapping."""


@hookspec
def parallelize_model(run: Run) -> Any:
    """One answer, parallel. Return the wrapped or sharded model."""


@hookspec
def build_loss(run: Run) -> Loss:
    """One answer, task. Return what computes the loss of a micro-batch; engines call it as
    `run.loss(model, inputs, supervised_in_step)`."""


@hookspec
def build_optimizer(run: Run) -> Any:
    """One answer, optimizer. Return the optimizer of the parameters that require a gradient."""


@hookspec
def build_batches(run: Run) -> Iterator[Batch]:
    """One answer, data. Return an endless iterator over this rank's micro-batches."""


@hookspec
def build_evaluation_batches(run: Run) -> Iterable[Batch]:
    """One answer, data; called where `data.held_out` holds samples out, which `build_batches` then
    leaves out.

    Return this rank's batches of an evaluation, which can be iterated over again and again: as many
    as on every other rank, of the same samples for every stack. `supervised_in_step` of each is
    that of all batches of all ranks, so that their losses add up to the mean.
    """


@hookspec
def build_engine(run: Run) -> Engine:
    """One answer, engine. Return what drives the steps."""


# Around the measured window. No hook is called inside it.


@hookspec
def start_metrics(run: Run) -> None:
    """All. After the last warm-up step, before the clock starts."""


@hookspec
def finish_metrics(run: Run, window: Window) -> Iterable[Metric]:
    """All. After the last measured step: return what was measured.

    Functions that other hooks registered by `run.on_metrics` are called at the same time.
    """


@hookspec
def observe_steps(run: Run) -> StepObserver | None:
    """All. After the last step that core needs: return what observes further steps, or None.

    Whatever would disturb the measured window has its place here: profilers, counters, traces. Each
    observer gets steps of its own, one after the other, that are in no figure but its own. Return
    the same number of steps on every rank: ranks wait for one another.
    """


@hookspec
def report_evidence(run: Run) -> dict[str, JsonValue]:
    """All. After the window: return JSON that shows that the plugin acted.

    The key `summary`, one line of text, is also printed under the table of `run`: what decides
    whether the figures are what they look like, such as bytes of weights or kernels seen.
    An engine that answers requests at a rate says in `load` whether they pile up: `saturated`.
    What another hook gives to `run.on_evidence` is called here too, and needs no state of its own.
    What could not be read back is an error: a number of 1e100 or of more than 40 digits, half a
    character, more than 100 levels.
    """


@hookspec
def close_run(run: Run) -> None:
    """All. Always, whatever happened: undo what was changed outside the model.

    What another hook gives to `run.on_close` is called afterwards, the last one first.
    """
