"""The contract: every hook, in the order in which a run calls them.

A hook is either marked `one_answer`, and answered by the stack's plugin that implements it or else
by the plugin of that slot, or it is called on all active plugins: those of the stack in written
order, then those of the slots. A slot's plugin may claim the hook of another slot, as an
engine does that wraps the model itself (`Plugin.claims`). A method marked `@hookimpl` implements
the hook of its name and takes any of its arguments. There is no hook inside a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from accel_bench.plugin import PROJECT

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

_FunctionT = TypeVar("_FunctionT", bound=Callable[..., Any])


def hookspec(one_answer: str = "", only: str = "") -> Callable[[_FunctionT], _FunctionT]:
    """Mark the specification of a hook: all active plugins answer it, or one plugin does.

    `one_answer` is the slot whose plugin answers where the stack's do not, or `stack`. `only` names
    who is called alone.
    """

    def mark(function: _FunctionT) -> _FunctionT:
        vars(function).update(one_answer=one_answer, only=only)
        return pluggy.HookspecMarker(PROJECT)(function)

    return mark


OF_SIZES = frozenset({"sample_lengths", "simulate_batch"})
"""Hooks that are called only where sizes are worked out or estimated."""

OF_EVALUATION = frozenset({"build_evaluation_batches"})
"""Hooks that need an answer only where a scenario evaluates."""

LIMITED = frozenset({"check_scenario"})
"""Hooks that get seconds: nothing else watches over them."""

# In the parent, before anything starts.


@hookspec(only="launcher")
def allocate_ranks(
    scenarios: Sequence[Scenario], command: Sequence[str], dry_run: bool
) -> Allocation | None:
    """Return the processes that all runs of a session share, for `launch_ranks`.

    It is called once, before anything is planned. `scenarios` are those of all points, with
    `resources.device` as it is written. Where another process does the work of this command, as in
    the ranks other than 0 of torchrun, wait for it and return what has an `exit_code`. What has
    `places` runs sweep points on them at once.
    """


@hookspec()
def check_scenario(
    experiment: Experiment, machine: Machine, task: Task[Any] | None
) -> Iterable[str]:
    """Return reasons why this cannot run on the machine of the ranks. Imports nothing heavy.

    `task` is the plugin that fills that slot; None in a scenario without one.
    """


@hookspec(one_answer="launcher")
def launch_ranks(job: Job, allocation: Allocation | None) -> Sequence[RankProcess]:
    """Start one process for each rank and return their handles.

    `allocation` is what `allocate_ranks` returned.
    """


@hookspec()
def observe_ranks(job: Job, ranks: Sequence[RankProcess]) -> Observer | None:
    """Return what watches the ranks from outside until its `finish`, or None.

    It is called once the ranks have been started.
    """


@hookspec(only="trackers")
def record_result(result: Result | None, summary: Summary | None, results_folder: Path) -> None:
    """Log `result` somewhere else; `describe_run` has its settings, figures and steps by name.

    It is called after each run has been stored. An error of it is a warning, and loses no row. A
    method that takes `summary` is called once more when the session has ended, however it did, with
    the comparison and without a result. `results_folder` is where to leave files unless an option
    says otherwise.
    """


# Where a scenario leaves a size to the program, before its experiments are planned.


@hookspec(one_answer="data")
def sample_lengths(run: Run) -> Sequence[int]:
    """Return the tokens of each sample before it is cut.

    It is called where `data.sequence_length` is `auto`, in a process of its own.
    """


# Where memory and speed are estimated, in a process of its own, beside hooks of a worker process.


@hookspec(one_answer="data")
def simulate_batch(run: Run, micro_batch_size: int, sequence_length: int) -> Batch:
    """Return the largest micro-batch that `build_batches` may yield, to estimate memory and speed.

    The values of its tensors do not matter. `run.task`, `run.model` and `run.unwrapped_model` are
    there, and no dataset. `sequence_length` takes the place of the scenario's, for data that has a
    sequence length. Without an answer a sample is so many tokens, each of them supervised.
    """


# In a worker process. First, once for each experiment, in a process of its own that is not timed.


@hookspec()
def prepare_experiment(run: Run) -> None:
    """Fill content-keyed caches with `run.cache`; `run.rehearsal = True` asks for untimed steps."""


# In every worker process, in this order.


@hookspec()
def prepare_process(run: Run) -> None:
    """Set environment variables, and import what must come before other imports."""


@hookspec(one_answer="data")
def load_data(run: Run) -> Any:
    """Return the dataset; it comes before the model, which may need it to calibrate."""


@hookspec(one_answer="model")
def load_model(run: Run) -> Any:
    """Return the model on `run.device`, in the dtype of the scenario."""


@hookspec(one_answer="adapter")
def add_adapter(run: Run) -> Any:
    """Return the model with its adapter; only called when the scenario has one."""


# Core enables gradient checkpointing here, once, for every stack in the same way.


@hookspec()
def accelerate_model(run: Run) -> Any:
    """Return the new model, or None when it was changed in place."""


@hookspec(one_answer="stack")
def compile_model(run: Run) -> None:
    """Compile in place, after all accelerations and before wrapping."""


@hookspec(one_answer="parallel")
def parallelize_model(run: Run) -> Any:
    """Return the wrapped or sharded model."""


@hookspec(one_answer="task")
def build_loss(run: Run) -> Loss:
    """Return what computes the loss of a micro-batch.

    Engines call it as `run.loss(model, inputs, supervised_in_step)`.
    """


@hookspec(one_answer="optimizer")
def build_optimizer(run: Run) -> Any:
    """Return the optimizer of the parameters that require a gradient."""


@hookspec(one_answer="data")
def build_batches(run: Run) -> Iterator[Batch]:
    """Return an endless iterator over this rank's micro-batches."""


@hookspec(one_answer="data")
def build_evaluation_batches(run: Run) -> Iterable[Batch]:
    """Return this rank's batches of an evaluation, which can be iterated over again and again.

    They are as many as on every other rank, of the same samples for every stack.
    `supervised_in_step` of each counts all batches of all ranks, so that their losses add up to the
    mean. It is called where `data.held_out` holds samples out, which `build_batches` leaves out.
    """


@hookspec(one_answer="engine")
def build_engine(run: Run) -> Engine:
    """Return what drives the steps."""


# Around the measured window. No hook is called inside it.


@hookspec()
def start_metrics(run: Run) -> None:
    """Begin to measure: after the last warm-up step, before the clock starts."""


@hookspec()
def finish_metrics(run: Run, window: Window) -> Iterable[Metric]:
    """Return what was measured, after the last measured step.

    Functions that other hooks registered by `run.on_metrics` are called at the same time.
    """


@hookspec()
def observe_steps(run: Run) -> StepObserver | None:
    """Return what observes further steps, after the last one that core needs, or None.

    Whatever would disturb the measured window has its place here: profilers, counters, traces. Each
    observer gets steps of its own, one after the other, that are in no figure but its own. Return
    the same number of steps on every rank: ranks wait for one another.
    """


@hookspec()
def report_evidence(run: Run) -> dict[str, JsonValue]:
    """Return JSON that shows that the plugin acted, after the window.

    The key `summary`, one line of text, is also printed under the table of `run`: what decides
    whether the figures are what they look like, such as bytes of weights or kernels seen.
    An engine that answers requests at a rate says in `load` whether they pile up: `saturated`.
    What another hook gives to `run.on_evidence` is called here too, and needs no state of its own.
    What could not be read back is an error: a number of 1e100 or of more than 40 digits, half a
    character, more than 100 levels.
    """


@hookspec()
def close_run(run: Run) -> None:
    """Undo what was changed outside the model. It is called whatever happened.

    What another hook gives to `run.on_close` is called afterwards, the last one first.
    """


def _marked(word: str) -> dict[str, str]:
    """Return the hooks that are marked so, in call order, with what stands in the mark."""
    marks = ((name, getattr(one, word, "")) for name, one in globals().items())
    return {name: mark for name, mark in marks if isinstance(mark, str) and mark}


ONE_ANSWER: dict[str, str | None] = {
    hook: None if slot == "stack" else slot for hook, slot in _marked("one_answer").items()
}
"""Hooks that get one answer, and the slot whose plugin gives it when no plugin of the stack does.
"""

ONLY = _marked("only")
"""Hooks that are called on the launcher or on trackers alone, by these words."""
