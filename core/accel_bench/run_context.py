"""Run: the one object that hooks share."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from accel_bench.documents.base import JsonValue
from accel_bench.documents.canonical import digest
from accel_bench.documents.files import locked
from accel_bench.engine import Loss, own_loss
from accel_bench.flops.workload import Workload
from accel_bench.machine.device_type import DeviceType
from accel_bench.machine.devices import of_torch_type
from accel_bench.machine.info import Device
from accel_bench.machine.process_memory import Trace
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.models import Scenario, Stack

if TYPE_CHECKING:
    from accel_bench.engine import Batch
    from accel_bench.result import Metric, Window


@dataclass
class Run:
    """One rank's run. Core sets `dataset`, `model`, `optimizer` and `batches` from what hooks
    return."""

    experiment: Experiment
    """What is run."""

    device: Device
    """Device on which this rank computes."""

    folder: Path
    """Folder of this attempt; what a plugin leaves here stays with the run."""

    cache_folder: Path
    """Folder of content-keyed caches; use `cache`."""

    rank: int = 0
    """Global rank."""

    local_rank: int = 0
    """Rank on this node."""

    world_size: int = 1
    """Ranks in all."""

    round: int = 0
    """Round, from 0: what is drawn anew in each round is the same for all stacks of it."""

    trust_remote_code: bool = False
    """True if a model may bring code of its own."""

    rehearsal: bool = False
    """Set by `prepare_experiment` to have a few untimed steps taken, so that compile caches fill.
    """

    task: Any = None
    """The plugin that fills the slot `task`, an `accel_bench.Task`."""

    loss: Loss = own_loss
    """What `build_loss` returned: engines call it with a model, the inputs of a micro-batch on the
    device and `supervised_in_step`."""

    dataset: Any = None
    """What `load_data` returned."""

    model: Any = None
    """The model as the steps will call it."""

    weights_fingerprint: str = ""
    """Digest of the weights that were loaded, before anything quantized them; `load_base_model`
    sets it."""

    unwrapped_model: Any = None
    """The model before `parallelize_model`."""

    recomputes_last_matmul: bool | None = None
    """True if activation checkpointing computes the last matmul of a decoder block again, as core
    observed in the first step; None where it could not observe that."""

    workload: Workload | None = None
    """Matmuls and attentions for a token, as core traced them in the model that trains; set before
    `start_metrics`, None where they are not known. A plugin that loads a model which core cannot
    trace may declare them here: that is used in its place."""

    workload_reason: str = ""
    """Why the workload is not known, or why it is a plugin's declaration."""

    optimizer: Any = None
    """What `build_optimizer` returned."""

    trains_from: int = 0
    """Number of warm-up steps in which part of the model is still frozen; set by the task. The
    checks of the first step are made on the first step after them."""

    batches: Any = None
    """What `build_batches` returned: an endless iterator of `Batch`."""

    evaluation_batches: Any = None
    """What `build_evaluation_batches` returned; None where nothing is evaluated."""

    answers: list[Sequence[int]] = field(default_factory=list)
    """Token ids that were generated for each request so far, in the order of the requests; the
    engine of `mode: inference` adds them, outside of its steps."""

    prompts: list[Any] = field(default_factory=list)
    """Prompts of those answers, tensors of shape (length,) on the host, by which core finds where
    rounding alone may choose another token: one for each answer, in the same order. An engine whose
    model core cannot call adds none."""

    first_prompt: str = ""
    """Digest of the first prompt, which seeds and round decide; empty before it is taken."""

    answer_unit: Literal["tokens", "letters"] = "tokens"
    """What the numbers in `answers` are: token ids, or code points where only text is known."""

    trace: Trace = field(default_factory=Trace)
    """Stages passed so far."""

    active_plugin: Any = None
    """The plugin whose hook core is calling, to which `on_close`, `on_evidence` and
    `on_metrics` attribute."""

    on_calling: Callable[[Any], None] = field(default=lambda plugin: None)
    """Is called with the plugin whose code is called from here on; None for none."""

    undo_callbacks: list[tuple[Any, Callable[[], object]]] = field(default_factory=list)
    """What `on_close` has registered, each with its plugin; core calls them."""

    evidence_callbacks: list[tuple[Any, Callable[[], dict[str, JsonValue]]]] = field(
        default_factory=list
    )
    """What `on_evidence` has registered, each with its plugin; core calls them."""

    metric_callbacks: list[tuple[Any, Callable[[Window], Iterable[Metric]]]] = field(
        default_factory=list
    )
    """What `on_metrics` has registered, each with its plugin; core calls them."""

    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("accel_bench"))
    """Writes to the log of the rank."""

    barrier: Callable[[], None] = field(default=lambda: None)
    """Waits for all ranks; does nothing with one rank."""

    @property
    def scenario(self) -> Scenario:
        """The resolved scenario."""
        return self.experiment.scenario

    @property
    def stack(self) -> Stack:
        """The stack under test."""
        return self.experiment.stack

    @property
    def device_type(self) -> DeviceType:
        """What is known of the kind of device that this rank computes on."""
        return of_torch_type(self.device.type, self.scenario.resources.device)

    @property
    def data_parallel(self) -> int:
        """Groups of ranks that each take batches of their own; a rehearsal is one."""
        alone = self.world_size != self.scenario.world_size
        return self.world_size if alone else self.scenario.data_parallel

    @property
    def data_rank(self) -> int:
        """Number of this rank's group among them: ranks of one group, which follow one another,
        compute the same batches together."""
        return self.rank * self.data_parallel // self.world_size

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which an engine computes a forward pass, by `train.precision`."""
        dtype = self.scenario.train.autocast_dtype
        if dtype is None:
            return contextlib.nullcontext()
        import torch

        context: contextlib.AbstractContextManager[Any] = torch.autocast(
            self.device.type, getattr(torch, dtype)
        )
        return context

    def on_close(self, undo: Callable[[], object]) -> None:
        """Register a call that undoes what the calling plugin has changed outside the model.

        Call this within a hook. However the run ends, core calls `undo` after all `close_run`
        hooks, the last registered first. An error is logged and attributed to the plugin; the other
        calls are still made.
        """
        self.undo_callbacks.append((self.active_plugin, undo))

    def on_evidence(self, report: Callable[[], dict[str, JsonValue]]) -> None:
        """Register a call that returns JSON that shows that the calling plugin acted.

        Call this within a hook. Core calls `report` together with `report_evidence`, after the
        window; what a plugin's calls and its hook return is stored as one mapping.
        """
        self.evidence_callbacks.append((self.active_plugin, report))

    def on_metrics(self, report: Callable[[Window], Iterable[Metric]]) -> None:
        """Register a call that returns metrics of the measured window.

        Call this within a hook. Core calls `report` with the window together with `finish_metrics`.
        """
        self.metric_callbacks.append((self.active_plugin, report))

    @contextlib.contextmanager
    def calling(self, plugin: Any) -> Iterator[None]:
        """Attribute to `plugin` what is registered within the block; core enters it."""
        before, self.active_plugin = self.active_plugin, plugin
        self.on_calling(plugin)
        try:
            yield
        finally:
            self.active_plugin = before
            self.on_calling(before)

    def cache(self, kind: str, key: JsonValue, fill: Callable[[Path], None]) -> Path:
        """Return the folder with the content of `key`, calling `fill(folder)` when it is not there
        yet.

        `key` is everything that the content depends on, as JSON. One process fills while others
        wait; a fill that fails leaves nothing behind. Raises what `fill` raises.
        """
        target = self.cache_folder / kind / digest(key, 24)
        with locked(target.with_suffix(".lock")):
            if not target.exists():
                _fill_aside(target, fill)
        return target


class StepObserver(Protocol):
    """Observes optimizer steps that are taken for it alone, after the measured window.

    Where a step fails, `fail(error)` is called in the place of `finish`, if there is such a method.
    `mark(phase)`, if there is such a method, is called where an engine ends a part of a step.
    """

    steps: int
    """How many steps it needs, at least 1."""

    def start(self) -> None:
        """Begin before the first step, when the device has finished all work."""

    def end_step(self, batches: Sequence[Batch]) -> None:
        """End a step of these micro-batches of this rank; the device may still be at work."""

    def finish(self) -> Iterable[Metric]:
        """Stop when the device has finished the last step, and return what was measured."""


def _fill_aside(target: Path, fill: Callable[[Path], None]) -> None:
    """Fill a temporary folder and rename it, so that a half-filled one is never seen."""
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        fill(aside)
        aside.rename(target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
