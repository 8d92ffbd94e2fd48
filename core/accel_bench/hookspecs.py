"""Specifications of all hooks, in the order in which a run calls them.

A slot is a role in a scenario, such as `model` or `engine`, that one plugin fills. A hook is called
on all active plugins, unless it is marked `one_answer`: the plugins of the stack in written order,
then the plugins of the slots. A `one_answer` hook is called on one plugin alone: the plugin of the
stack that implements it, else the plugin of that slot. A slot's plugin may claim the hook of
another slot, such as an engine that wraps the model itself (`Plugin.claims`). A method marked
`@hookimpl` implements the hook of its name and takes any of its arguments. No hook is called inside
a step.
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
    """Return a decorator that marks a function as the specification of a hook.

    `one_answer` makes the hook call a single plugin: the plugin of the stack that implements it,
    else the plugin of the slot that `one_answer` names. With `stack`, only plugins of the stack are
    asked. `only` names the one kind of plugin whose hook is called: `launcher` or `trackers`.
    """

    def mark(function: _FunctionT) -> _FunctionT:
        vars(function).update(one_answer=one_answer, only=only)
        return pluggy.HookspecMarker(PROJECT)(function)

    return mark


OF_SIZES = frozenset({"sample_lengths", "simulate_batch"})
"""Hooks that are called only to determine or to estimate sizes."""

OF_EVALUATION = frozenset({"build_evaluation_batches"})
"""Hooks that a plugin must implement only in a scenario with an evaluation."""

LIMITED = frozenset({"check_scenario"})
"""Hooks with a time limit of a few seconds, since no supervisor watches them."""

# In the parent, before anything starts.


@hookspec(only="launcher")
def allocate_ranks(
    scenarios: Sequence[Scenario], command: Sequence[str], dry_run: bool
) -> Allocation | None:
    """Return processes for `launch_ranks` that all runs of a session share, or None without any.

    Called once, before planning. `scenarios` are those of all sweep points, with `resources.device`
    as written. `command` holds the program's arguments; with `dry_run` nothing is run. In a process
    that does not run the command itself, such as rank 1 of torchrun, wait until another process has
    done so, and return an allocation with an `exit_code`. If an allocation has `places`, its parts,
    sweep points run on these at the same time.
    """


@hookspec()
def check_scenario(
    experiment: Experiment, machine: Machine, task: Task[Any] | None
) -> Iterable[str]:
    """Return reasons why an experiment cannot run on its ranks' machine; import nothing heavy.

    `task` is the plugin of the slot `task`, or None in a scenario without one.
    """


@hookspec(one_answer="launcher")
def launch_ranks(job: Job, allocation: Allocation | None) -> Sequence[RankProcess]:
    """Start one process for each rank and return the handles of the processes.

    `allocation` is the return value of `allocate_ranks`.
    """


@hookspec()
def observe_ranks(job: Job, ranks: Sequence[RankProcess]) -> Observer | None:
    """Return an observer that watches the ranks from the parent process, or None.

    Called once the ranks have been started.
    """


@hookspec(only="trackers")
def record_result(result: Result | None, summary: Summary | None, results_folder: Path) -> None:
    """Log `result` in another system, by names and values that `describe_run` returns.

    Called after each run has been stored. An error is reported as a warning, and no row is lost. A
    method that takes `summary` is called once more when the session has ended, however it did, with
    the comparison and without a result. `results_folder` is the default folder for files.
    """


# Where a scenario leaves a size to the program, before its experiments are planned.


@hookspec(one_answer="data")
def sample_lengths(run: Run) -> Sequence[int]:
    """Return the length of each sample in tokens before truncation.

    Called if `data.sequence_length` is `auto`, in a process of its own.
    """


# Where memory and speed are estimated, in a process of its own, beside hooks of a worker process.


@hookspec(one_answer="data")
def simulate_batch(run: Run, micro_batch_size: int, sequence_length: int) -> Batch:
    """Return the largest micro-batch that `build_batches` may yield, to estimate memory and speed.

    The values of its tensors do not matter. `run.task`, `run.model` and `run.unwrapped_model` are
    set, and no dataset. `sequence_length` replaces the scenario's, for data that has a sequence
    length. The default is samples of that many tokens, all supervised.
    """


# In a worker process. First, once for each experiment, in a process of its own that is not timed.


@hookspec()
def prepare_experiment(run: Run) -> None:
    """Fill caches by `run.cache`; set `run.rehearsal` to have untimed steps fill compile caches."""


# In every worker process, in this order.


@hookspec()
def prepare_process(run: Run) -> None:
    """Set environment variables, and import modules that must precede other imports."""


@hookspec(one_answer="data")
def load_data(run: Run) -> Any:
    """Return the dataset. Called before `load_model`, which may calibrate with it."""


@hookspec(one_answer="model")
def load_model(run: Run) -> Any:
    """Return the model on `run.device`, in the dtype of the scenario."""


@hookspec(one_answer="adapter")
def add_adapter(run: Run) -> Any:
    """Return the model with its adapter. Called only in a scenario with an adapter."""


# Core enables gradient checkpointing here, once, for every stack in the same way.


@hookspec()
def accelerate_model(run: Run) -> Any:
    """Return the accelerated model, or None if the model was changed in place."""


@hookspec(one_answer="stack")
def compile_model(run: Run) -> None:
    """Compile the model in place, after all accelerations and before wrapping."""


@hookspec(one_answer="parallel")
def parallelize_model(run: Run) -> Any:
    """Return the model, wrapped or sharded for several ranks."""


@hookspec(one_answer="task")
def build_loss(run: Run) -> Loss:
    """Return the function that computes the loss of a micro-batch.

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
    """Return this rank's batches of an evaluation, to be iterated over repeatedly.

    Every rank has equally many batches, and every stack has the same samples. `supervised_in_step`
    of each batch counts all batches of all ranks, so that their losses add up to the mean. Called
    if `data.held_out` holds samples out, which `build_batches` leaves out.
    """


@hookspec(one_answer="engine")
def build_engine(run: Run) -> Engine:
    """Return the engine, an object that drives the optimizer steps."""


# Around the measured window. No hook is called inside it.


@hookspec()
def start_metrics(run: Run) -> None:
    """Start measuring, after the last warm-up step and before the clock starts."""


@hookspec()
def finish_metrics(run: Run, window: Window) -> Iterable[Metric]:
    """Return the metrics of the window, after its last step.

    Functions that other hooks registered by `run.on_metrics` are called at the same time.
    """


@hookspec()
def observe_steps(run: Run) -> StepObserver | None:
    """Return an observer of further steps, after the last step that core needs, or None.

    Profilers, counters and traces belong here: they would disturb the measured window. Each
    observer gets its own steps, after those of the observer before it; only its own metrics include
    them. Return the same number of steps on every rank: ranks wait for one another.
    """


@hookspec()
def report_evidence(run: Run) -> dict[str, JsonValue]:
    """Return JSON that shows that the plugin acted, after the window.

    The key `summary`, one line of text, is also printed under the table of `run`: facts that decide
    how to read the figures, such as bytes of weights or kernels seen. An engine that answers
    requests at a rate states under `load` whether requests pile up, as `saturated`. Functions that
    other hooks registered by `run.on_evidence` are called at the same time. JSON that could not be
    read back is an error: a number of 1e100 or of more than 40 digits, a lone surrogate, more than
    100 levels.
    """


@hookspec()
def close_run(run: Run) -> None:
    """Undo changes outside the model. Called however the run ended.

    Functions registered by `run.on_close` are called afterwards, the last registered function
    first.
    """


def _marked(word: str) -> dict[str, str]:
    """Return, for each hook marked with `word`, such as `one_answer`, the value of the mark."""
    marks = ((name, getattr(value, word, "")) for name, value in globals().items())
    return {name: mark for name, mark in marks if isinstance(mark, str) and mark}


ONE_ANSWER: dict[str, str | None] = {
    hook: None if slot == "stack" else slot for hook, slot in _marked("one_answer").items()
}
"""One-answer hooks, each with the slot whose plugin answers if no plugin of the stack does; None if
only a plugin of the stack may."""

ONLY = _marked("only")
"""Hooks called on a single kind of plugin, each with that kind: `launcher` or `trackers`."""
