"""Class `Run`, whose instance all hooks of a rank share."""

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
    """Run of one rank, the object that all hooks share. Core sets `dataset`, `model`, `optimizer`
    and `batches` to the results of hooks."""

    experiment: Experiment
    """Experiment of this run."""

    device: Device
    """Device on which this rank computes."""

    folder: Path
    """Folder of this attempt; files that a plugin writes here stay with the run."""

    cache_folder: Path
    """Folder of content-keyed caches, for the method `cache`."""

    rank: int = 0
    """Global rank."""

    local_rank: int = 0
    """Number of this rank on its node."""

    world_size: int = 1
    """Number of ranks."""

    round: int = 0
    """Round, from 0; all stacks of a round draw the same random values."""

    trust_remote_code: bool = False
    """True if a model may bring code of its own."""

    rehearsal: bool = False
    """True if a few untimed steps fill compile caches; set by `prepare_experiment`."""

    task: Any = None
    """Plugin of the slot `task`, an `accel_bench.Task`."""

    loss: Loss = own_loss
    """Result of `build_loss`: a function that engines call with a model, the inputs of a
    micro-batch on the device and `supervised_in_step`."""

    dataset: Any = None
    """Result of `load_data`."""

    model: Any = None
    """Model as the optimizer steps call it, accelerated and wrapped."""

    weights_fingerprint: str = ""
    """Digest of the weights that were loaded, before anything quantized them; `load_base_model`
    sets it."""

    unwrapped_model: Any = None
    """Model before `parallelize_model`."""

    recomputes_last_matmul: bool | None = None
    """True if activation checkpointing computes the last matmul of a decoder block again, as core
    observed in the first step; None if it could not."""

    workload: Workload | None = None
    """Matmuls and attentions for a token, as core traced them in the model that trains; None if
    unknown. Set before `start_metrics`. A plugin whose model core cannot trace may declare it here,
    which replaces core's."""

    workload_reason: str = ""
    """Reason why the workload is not known, or why a plugin declared it."""

    optimizer: Any = None
    """Result of `build_optimizer`."""

    trains_from: int = 0
    """Number of warm-up steps in which part of the model is still frozen, set by the task; the
    checks of the first step are made on the step after them."""

    batches: Any = None
    """Result of `build_batches`: an endless iterator of `Batch`."""

    evaluation_batches: Any = None
    """Result of `build_evaluation_batches`; None if nothing is evaluated."""

    answers: list[Sequence[int]] = field(default_factory=list)
    """Token ids generated for each request so far, in the order of the requests; the engine of
    `mode: inference` adds them between its steps."""

    prompts: list[Any] = field(default_factory=list)
    """Prompt of each answer, in the same order: tensors of shape (length,) on the host, by which
    core finds where rounding alone may choose another token. Empty if core cannot call the engine's
    model."""

    first_prompt: str = ""
    """Digest of the first prompt, determined by seeds and round; empty before the first prompt."""

    answer_unit: Literal["tokens", "letters"] = "tokens"
    """Kind of the numbers in `answers`: token ids, or code points if only text is known."""

    trace: Trace = field(default_factory=Trace)
    """Stages of the run that have been passed so far."""

    active_plugin: Any = None
    """Plugin whose hook core is calling; `on_close`, `on_evidence` and `on_metrics` attribute to
    it."""

    on_calling: Callable[[Any], None] = field(default=lambda plugin: None)
    """Function called with the plugin whose code runs from here on, or with None."""

    undo_callbacks: list[tuple[Any, Callable[[], object]]] = field(default_factory=list)
    """Functions registered by `on_close`, each with its plugin."""

    evidence_callbacks: list[tuple[Any, Callable[[], dict[str, JsonValue]]]] = field(
        default_factory=list
    )
    """Functions registered by `on_evidence`, each with its plugin."""

    metric_callbacks: list[tuple[Any, Callable[[Window], Iterable[Metric]]]] = field(
        default_factory=list
    )
    """Functions registered by `on_metrics`, each with its plugin."""

    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("accel_bench"))
    """Logger that writes to the log of the rank."""

    barrier: Callable[[], None] = field(default=lambda: None)
    """Function that waits for all ranks; it does nothing with one rank."""

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
        """Properties of the type of device that this rank computes on."""
        return of_torch_type(self.device.type, self.scenario.resources.device)

    @property
    def data_parallel(self) -> int:
        """Number of groups of ranks that each take batches of their own; 1 in a rehearsal."""
        alone = self.world_size != self.scenario.world_size
        return self.world_size if alone else self.scenario.data_parallel

    @property
    def data_rank(self) -> int:
        """Number of this rank's group; the ranks of a group follow one another and compute the same
        batches together."""
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
        """Register a function that undoes a change of the calling plugin outside the model.

        Call this within a hook. However the run ends, core calls `undo` after all `close_run`
        hooks, the last registered function first. An error is logged and attributed to the plugin;
        the other functions are still called.
        """
        self.undo_callbacks.append((self.active_plugin, undo))

    def on_evidence(self, report: Callable[[], dict[str, JsonValue]]) -> None:
        """Register a function that returns JSON by which the calling plugin shows that it acted.

        Call this within a hook. Core calls `report` together with `report_evidence`, after the
        window, and stores both as one mapping.
        """
        self.evidence_callbacks.append((self.active_plugin, report))

    def on_metrics(self, report: Callable[[Window], Iterable[Metric]]) -> None:
        """Register a function that returns metrics of the measured window.

        Call this within a hook. Core calls `report` with the window together with `finish_metrics`.
        """
        self.metric_callbacks.append((self.active_plugin, report))

    @contextlib.contextmanager
    def calling(self, plugin: Any) -> Iterator[None]:
        """Attribute callbacks registered in the `with` block to `plugin`; only core calls this."""
        before, self.active_plugin = self.active_plugin, plugin
        self.on_calling(plugin)
        try:
            yield
        finally:
            self.active_plugin = before
            self.on_calling(before)

    def cache(self, kind: str, key: JsonValue, fill: Callable[[Path], None]) -> Path:
        """Return the cache folder of `key` among the caches called `kind`.

        If the folder does not exist, `fill(folder)` fills it. `key` holds, as JSON, everything that
        the content depends on. One process fills the folder while others wait; a failed `fill`
        leaves nothing behind. Raises the exception that `fill` raises.
        """
        target = self.cache_folder / kind / digest(key, 24)
        with locked(target.with_suffix(".lock")):
            if not target.exists():
                _fill_aside(target, fill)
        return target


class StepObserver(Protocol):
    """Observer of optimizer steps that are taken for it alone, after the measured window.

    If a step fails, an optional method `fail(error)` is called in place of `finish`. An optional
    method `mark(phase)` is called at the end of each phase that the engine marks.
    """

    steps: int
    """Number of steps to observe, at least 1."""

    def start(self) -> None:
        """Start observing optimizer steps; called once, on an idle device, before the first one."""

    def end_step(self, batches: Sequence[Batch]) -> None:
        """Handle the end of a step with these micro-batches; the device may still be at work."""

    def finish(self) -> Iterable[Metric]:
        """Stop observing when the device has finished the last step, and return the metrics."""


def _fill_aside(target: Path, fill: Callable[[Path], None]) -> None:
    """Fill a temporary folder, then rename it to `target`, which so is never seen half filled."""
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        fill(aside)
        aside.rename(target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
