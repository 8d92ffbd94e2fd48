"""Simulated run: build an experiment of fake tensors by its hooks and let its engine step."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import masking_utils

from accel_bench.engine import FOLLOWING, Batch, PhaseName, TokenCounts
from accel_bench.errors import ScenarioError
from accel_bench.machine.info import Device
from accel_bench.modeling.checkpointing import enable_gradient_checkpointing
from accel_bench.modeling.contract import text_config
from accel_bench.modeling.loading import learned_positions
from accel_bench.plugins.active import ActivePlugins, task_of
from accel_bench.plugins.manager import activate
from accel_bench.run_context import Run
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.uses import TOKENS, slot_defaults
from accel_bench.worker.answers import require
from accel_bench_advise.estimates.schema import BatchShape, Simulation, SimulationRequest
from accel_bench_advise.simulation.tracker import StepTracker

FINDS_PACKED = "find_packed_sequence_indices"
"""Function by which transformers detects packed samples."""

DRAWS_TRUNCATED = "_no_grad_trunc_normal_"
"""Function by which torch draws from a truncated normal distribution."""

OF_TEXT_ALONE = frozenset({"AutoModelForCausalLM", "AutoModelForMaskedLM"})
"""Model classes whose inputs are token ids with labels only."""

QUANTIZED = (torch.uint8, torch.int8, torch.int16, torch.int32)
"""Dtypes that pack quantized weights."""


class SimulatedRun:
    """An experiment of fake tensors, ready to step, which allocates no memory.

    The hooks up to `build_optimizer` are the experiment's own; the engine is the default one,
    without compilation and parallelization. Published weights are not loaded.
    """

    def __init__(self, request: SimulationRequest) -> None:
        self.run = run = _run_of(request)
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._tracker = StepTracker()
        self._shape, self._processed = request.shape, 0
        active = activate(run.scenario, run.stack, allow_torch=True)
        list(active.call_all("prepare_process", run=run))
        with self._simulating():
            _build(active, run, self._tracker, request.device)
            run.batches = self._batches(active)
            self._engine = require(active, "build_engine", run)
            self._tracker.phase = "optimizer"
            _make_state(run)

    def simulate(self, shape: BatchShape) -> Simulation:
        """Return the memory and work of a step with a batch shape, optimizer state included."""
        self._shape = shape
        with self._simulating():
            self._tracker.assign(_state_of(self.run.optimizer), "optimizer state")
            self._engine.run(_OneStep(self._tracker))
            footprint = self._tracker.footprint(self._processed)
        parameters = list(self.run.model.parameters())
        config = getattr(self.run.model, "config", None)
        learned = learned_positions(config) if hasattr(config, "get_text_config") else None
        return Simulation(
            footprint=footprint,
            parameters=sum(p.numel() for p in parameters),
            trained_parameters=sum(p.numel() for p in parameters if p.requires_grad),
            longest_learned=learned,
            longest_published=getattr(text_config(config), "max_position_embeddings", None),
        )

    def _batches(self, active: ActivePlugins) -> Iterator[Batch]:
        """Yield micro-batches of the current shape endlessly, from a plugin or of random tokens."""
        while True:
            sizes = self._shape.micro_batch_size, self._shape.sequence_length
            if active.answers("simulate_batch") is None:
                batch = _tokens_with_labels(*sizes)
            else:
                batch = active.require(
                    "simulate_batch",
                    "a Batch",
                    lambda value: isinstance(value, Batch),
                    run=self.run,
                    micro_batch_size=sizes[0],
                    sequence_length=sizes[1],
                )
            self._processed = batch.tokens.processed
            yield batch

    @contextlib.contextmanager
    def _simulating(self) -> Iterator[None]:
        with self._fake, _fit_for_fake_tensors(), self._tracker:
            yield


def _run_of(request: SimulationRequest) -> Run:
    """Return the run of one rank of the experiment, prepared for simulation."""
    scenario = request.experiment.scenario
    precision = scenario.train.precision
    changed = scenario.model_copy(
        update={
            "engine": scenario.engine.model_copy(
                update={"use": slot_defaults().slots["engine"], "options": {}}
            ),
            "model": scenario.model.model_copy(update={"weights": "random"}),
            "train": scenario.train.model_copy(
                # A CPU's engine refuses it, and its tensors are as large.
                update={"precision": precision.replace("fp16-autocast", "bf16-autocast")}
            ),
            "resources": scenario.resources.model_copy(
                update={"device": "cpu", "devices": 1, "nodes": 1, "data_parallel": None}
            ),
            "metrics": (),
        }
    )
    experiment: Experiment = request.experiment.model_copy(update={"scenario": changed})
    logger = logging.getLogger("accel_bench.estimate")
    run = Run(experiment, Device("cpu"), Path(), Path(), logger=logger)
    run.trust_remote_code = request.trust_remote_code
    return run


def _build(active: ActivePlugins, run: Run, tracker: StepTracker, device: str) -> None:
    """Call the hooks that build the model and the optimizer, in the order of a real run.

    Results are set on `run`. `device` is the type, `cpu` or `cuda`, whose defaults apply.
    """
    run.task = task_of(active)
    if active.answers("simulate_batch") is None:
        _check_task(run)
    run.model = require(active, "load_model", run)
    if run.task is not None:
        run.task.adjust_model(run.model)
    if active.answers("add_adapter"):
        run.model = require(active, "add_adapter", run)
    if run.scenario.train.gradient_checkpointing:
        enable_gradient_checkpointing(run.model)
    for _, changed in active.call_all("accelerate_model", run=run):
        run.model = run.model if changed is None else changed
    run.unwrapped_model = run.model
    run.loss = require(active, "build_loss", run)
    weights = [*run.model.parameters(), *run.model.buffers()]
    config = getattr(run.model, "config", None)
    tracker.vocabulary = getattr(text_config(config), "vocab_size", None)
    # Batches that hold images or audio beside text.
    counts = TOKENS if run.task is None else run.task.counts
    tracker.assumes = hasattr(config, "vision_config") or counts != TOKENS
    tracker.copies = device == "cpu"
    tracker.assign((w for w in weights if w.dtype in QUANTIZED), "quantized weights")
    tracker.assign((w for w in weights if w.dtype not in QUANTIZED), "weights")
    for parameter in run.model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(
                lambda p: tracker.assign([p.grad], "gradients")
            )
    run.optimizer = require(active, "build_optimizer", run)
    if device == "cuda":
        _use_lists(run.optimizer)


def _check_task(run: Run) -> None:
    """Raise ScenarioError for a task whose batches are not token ids with labels."""
    task, scenario = run.task, run.scenario
    if task is not None and (
        task.pairs is not None or task.counts != TOKENS or task.model_class not in OF_TEXT_ALONE
    ):
        raise ScenarioError(
            f"data {scenario.data.use!r} does not say what a batch of task {scenario.task.use!r} "
            "is: it has no simulate_batch; measure it with `accel-bench run`"
        )


def _use_lists(optimizer: Any) -> None:
    """Let an optimizer update tensors in lists (`foreach`) by default, as torch does on a GPU."""
    for group in optimizer.param_groups:
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True


def _state_of(optimizer: Any) -> Iterator[Any]:
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def _make_state(run: Run) -> None:
    """Create the optimizer's state by one step, without a pass through the model."""
    trained = [p for p in run.model.parameters() if p.requires_grad]
    torch.stack([p.float().sum() for p in trained]).sum().backward()
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)


@contextlib.contextmanager
def _fit_for_fake_tensors() -> Iterator[None]:
    """Patch torch and transformers so that fake parameters and masks work.

    Converting parameters would swap tensors, which torch refuses for weakly referenced (fake) ones.
    Masks would look for packed samples in positions without values; instead the general mask is
    built. A truncated normal distribution would be redrawn until all values lie within its bounds.
    """

    def take_data(tensor: torch.Tensor, other: torch.Tensor) -> None:
        tensor.data = other.data

    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.utils, "swap_tensors", take_data))
        drawn = patch.object(torch.nn.init, DRAWS_TRUNCATED, lambda tensor, *_, **__: tensor)
        stack.enter_context(drawn)
        if hasattr(masking_utils, FINDS_PACKED):
            stack.enter_context(patch.object(masking_utils, FINDS_PACKED, lambda positions: None))
        yield


@dataclass
class _OneStep:
    """Stopwatch that an engine uses for one simulated step; it sets the tracker's phase."""

    tracker: StepTracker
    running: bool = True

    def __post_init__(self) -> None:
        self.tracker.restart()
        self.tracker.phase = "forward"

    def resume(self) -> None:
        """Do nothing: no time is measured."""

    def mark(self, phase: PhaseName) -> None:
        """Set the tracker's phase to the one that follows `phase`, which has ended."""
        self.tracker.phase = FOLLOWING.get(phase, self.tracker.phase)

    def lap(self, batches: Sequence[Batch], loss: Any) -> None:
        """End the simulated step."""
        self.running = False


def _tokens_with_labels(samples: int, length: int) -> Batch:
    ids = torch.zeros((samples, length), dtype=torch.long)
    tokens, supervised = samples * length, samples * (length - 1)
    counts = TokenCounts(tokens, tokens, supervised)
    return Batch({"input_ids": ids, "labels": ids.clone()}, samples, counts, supervised)
