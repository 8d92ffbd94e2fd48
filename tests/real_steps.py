"""Real training steps whose memory torch's own profiler counts, in the allocator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from accel_bench.engine import Batch
from accel_bench.machine.info import Device
from accel_bench.modeling.checkpointing import enable_gradient_checkpointing
from accel_bench.plugins.active import task_of
from accel_bench.plugins.manager import activate
from accel_bench.run_context import Run
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.models import Scenario, Stack


def experiment_of(work: dict[str, Any]) -> Experiment:
    """Return the experiment of a scenario's work."""
    settings = {"metrics": [], "resources": {"device": "cpu"}, **work}
    scenario = Scenario.model_validate(settings)
    return Experiment(id="", scenario=scenario, stack=Stack(name="baseline"), identity={})


def first_batch(experiment: Experiment, folder: Path) -> Batch:
    """Return the first micro-batch that the experiment is trained on."""
    run = Run(experiment, Device("cpu"), folder, folder)
    active = activate(run.scenario, run.stack, allow_torch=True)
    run.dataset = active.require("load_data", run=run)
    run.task = task_of(active)
    run.model = run.unwrapped_model = active.require("load_model", run=run)
    batch = next(iter(active.require("build_batches", run=run)))
    assert isinstance(batch, Batch)
    return batch


class Steps:
    """A stopwatch that runs for a number of steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    @property
    def running(self) -> bool:
        """Whether another step is to be taken."""
        return self.left > 0

    def mark(self, phase: str) -> None:
        """Ignore phases."""

    def lap(self, batches: Any, loss: Any) -> None:
        """Count a step."""
        self.left -= 1


def measured_peak(experiment: Experiment, folder: Path) -> int:
    """Take three real steps; return the most bytes that the allocator had given out in the third.

    The events of the allocator are those of kernels' workspaces too, which no simulation sees.
    """
    run = Run(experiment, Device("cpu"), folder, folder)
    active = activate(run.scenario, run.stack, allow_torch=True)
    list(active.call_all("prepare_process", run=run))
    run.dataset = active.require("load_data", run=run)
    run.task = task_of(active)
    run.model = run.unwrapped_model = active.require("load_model", run=run)
    run.task.adjust_model(run.model)
    if active.answers("add_adapter"):
        run.model = run.unwrapped_model = active.require("add_adapter", run=run)
    if run.scenario.train.gradient_checkpointing:
        enable_gradient_checkpointing(run.model)
    list(active.call_all("accelerate_model", run=run))
    run.loss = active.require("build_loss", run=run)
    run.optimizer = active.require("build_optimizer", run=run)
    run.batches = active.require("build_batches", run=run)
    engine = active.require("build_engine", run=run)
    engine.run(Steps(2))
    with closed(run):
        before = alive_bytes(run)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            engine.run(Steps(1))
    return before + most_given_out(found)


def alive_bytes(run: Run) -> int:
    """Return the bytes of weights, buffers and optimizer state between two steps; the loss may hold
    another model."""
    state = [
        value
        for of_parameter in run.optimizer.state.values()
        for value in of_parameter.values()
        if isinstance(value, torch.Tensor)
    ]
    held = vars(run.loss).values() if hasattr(run.loss, "__dict__") else ()
    models = [run.model, *(one for one in held if isinstance(one, torch.nn.Module))]
    weights = [one for model in models for one in (*model.parameters(), *model.buffers())]
    tensors = [*weights, *state]
    storages = {id(s): s.nbytes() for s in (t.untyped_storage() for t in tensors)}
    return sum(storages.values())


def most_given_out(found: profile) -> int:
    """Return the highest sum of the allocator's events."""
    kineto = found.profiler.kineto_results  # type: ignore[union-attr]
    events = [event for event in kineto.events() if event.name() == "[memory]"]
    total = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        total += event.nbytes()
        most = max(most, total)
    return most


@contextlib.contextmanager
def closed(run: Run) -> Iterator[None]:
    """Undo what plugins have changed, at the end."""
    try:
        yield
    finally:
        for _, undo in reversed(run.undo_callbacks):
            undo()
