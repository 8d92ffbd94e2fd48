"""Class of a model to which the plugins of a stack are applied until it is closed."""

from __future__ import annotations

import functools
import shutil
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel_bench.engine import Batch, Loss
from accel_bench.errors import AccelBenchError, InvalidRunError, ScenarioError
from accel_bench.modeling.contract import text_config
from accel_bench.plugins.active import task_of
from accel_bench.plugins.constraints import refuse_architecture
from accel_bench.run_context import Run
from accel_bench.scenario.experiment import Experiment
from accel_bench.worker.answers import require
from accel_bench.worker.heartbeat import Heartbeat
from accel_bench.worker.measurement import build_model, close
from accel_bench.worker.record import RankRecord, collect_evidence
from accel_bench.worker.verify.recomputation import read_checkpointing
from accel_bench_apply.given import (
    move,
    place_of,
    recomputes,
    remembered,
    remembered_parts,
    set_attention,
)
from accel_bench_apply.outside import Outside, parts_outside
from accel_bench_apply.request import Asked, World
from accel_bench_apply.runs import one_micro_batch, run_of_script, with_checkpointing

if TYPE_CHECKING:
    from accel_bench.effective import EffectiveConfiguration
    from accel_bench_apply.samples import Features


class AcceleratedModel(AbstractContextManager["AcceleratedModel"]):
    """Model that a stack's plugins have loaded, adapted, accelerated and compiled.

    The stack is active until `close`, or the end of a `with` block.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - `accelerate` alone calls it
        self,
        asked: Asked,
        world: World,
        folder: Path,
        given: Any,
        trust_remote_code: bool,
        closing: Callable[[AcceleratedModel], AbstractContextManager[object]],
    ) -> None:
        experiment, self._active = asked.planned.experiment, asked.planned.active
        stack = experiment.stack
        self.stack: str = stack.name
        """Name of the stack."""

        self.experiment: Experiment = experiment
        """Experiment of the script: its scenario and its stack, resolved as for a run."""

        self.notices: tuple[str, ...] = (*experiment.notices, *asked.notices)
        """Notices to the user: additions that plugins require, such as an adapter, and settings of
        the scenario that the model does not have."""

        self.outside: tuple[Outside, ...] = tuple(
            parts_outside(
                self._active, experiment.scenario, stack.settings, asked.written, given is not None
            )
        )
        """Parts of the stack that the script must apply itself, or take from this object."""

        self.closed = False
        """True once the changes of the plugins are undone."""

        self.built_optimizer: Any = None
        """Optimizer of the last call of `optimizer()`, or None before the first call."""

        self.recomputes = False
        """True if the stack recomputes activations in the backward pass."""

        self._closing = closing
        # Also for a script that ends without `close`.
        self._remove_folder = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._heartbeat = Heartbeat(folder / "heartbeat")
        place = place_of(given, asked.device) if given is not None else None
        self._run = run_of_script(experiment, world, folder, trust_remote_code, place)
        self._probe: Any = None
        self._checked: EffectiveConfiguration | None = None
        # Checkpointing that the model, or its Trainer, has beside the stack is no difference.
        self._recomputes_anyway = asked.recomputes or (given is not None and recomputes(given))
        restore_parts = remembered_parts(given) if given is not None else None
        try:
            self._build(given, asked)
        except BaseException:
            self._undo()
            if restore_parts:
                restore_parts()
            raise

    @property
    def model(self) -> Any:
        """The model to train, wrapped or sharded if a plugin of the stack does that."""
        return self._alive().model

    @property
    def unwrapped(self) -> Any:
        """The model before it was wrapped."""
        return self._alive().unwrapped_model

    @property
    def effective(self) -> EffectiveConfiguration:
        """The effective configuration that `check` has read, or the present one before `check`."""
        from accel_bench.worker.verify.effective import read_effective

        run = self._alive()
        return self._checked or read_effective(run)

    def evidence(self) -> dict[str, Any]:
        """Return each plugin's evidence of its effect, such as counts of replaced modules, by the
        plugin's name."""
        record = RankRecord()
        collect_evidence(self._active, self._alive(), record)
        return record.evidence

    def optimizer(self) -> Any:
        """Return a new optimizer for the trained parameters, chosen by the stack or scenario.

        Its initial learning rate is `train.learning_rate`.
        """
        run = self._alive()
        self.built_optimizer = run.optimizer = require(self._active, "build_optimizer", run)
        return run.optimizer

    def answered(self, hook: str) -> bool:
        """Return whether a plugin that the stack lists implements `hook`, which only one plugin may
        implement. Plugins that fill slots of the scenario do not count."""
        plugin = self._active.answers(hook)
        return plugin is not None and plugin.slot is None

    def loss(self, model: Any, inputs: Mapping[str, Any], supervised_in_step: int) -> Any:
        """Return the loss of a micro-batch as a run computes it, a tensor of shape ().

        It is the sum of the losses of supervised tokens, divided by `supervised_in_step`, the
        number of supervised tokens in the whole optimizer step.
        """
        run = self._alive()
        built: Loss = require(self._active, "build_loss", run)
        vars(self)["loss"] = built
        return built(model, inputs, supervised_in_step)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context manager for a forward pass in the precision of `train.precision`."""
        return self._alive().autocast()

    def batches(self, samples: Iterable[Features] | None = None) -> Iterator[Batch]:
        """Return an endless iterator over this rank's micro-batches, as a run builds them.

        `samples` are lists of token ids, or mappings with `input_ids` and possibly `labels`; None
        means the scenario's data. Sizes, seed and order are the scenario's.
        """
        run = self._alive()
        if samples is not None:
            run = replace(run, dataset=self._dataset(samples))
        elif run.dataset is None:
            run.dataset = self._active.require("load_data", run=run)
        batches: Iterator[Batch] = require(self._active, "build_batches", run)
        return batches

    def collate(self, features: Sequence[Features]) -> dict[str, Any]:
        """Return the model inputs of one micro-batch, as a data collator does.

        `features` are the samples, as in `batches`. The stack's plugin that builds batches, or else
        the scenario's data plugin, makes the micro-batch.
        """
        run = self._alive()
        alone = one_micro_batch(run, self._dataset(features), len(features))
        batch: Batch = next(require(self._active, "build_batches", alone))
        return dict(batch.inputs)

    def check(self) -> EffectiveConfiguration:
        """Return the effective configuration, read back after the first optimizer step as a run
        does.

        Differences from the scenario are warnings. Raises InvalidRunError before the first step,
        and if the training differs from the stack: a trained module has no gradient, or the model
        is on another device. A step that a gradient scaler skips, or with learning rate 0, does
        not count.
        """
        from accel_bench.worker.verify.effective import differences, read_effective

        run = self._alive()
        if self._checked:
            return self._checked
        self._probe.check()
        self._probe.remove()
        # The script's own one, if it takes none from here.
        run.optimizer = next(iter(self._probe.optimizers.values()), run.optimizer)
        effective = read_effective(run, self._probe)
        degraded, invalid = differences(self._as_asked(effective), effective)
        if invalid:
            raise InvalidRunError(invalid)
        for plugin in self._active.plugins:
            if plugin.slot is None:
                self._active.call_plugin(plugin, "start_metrics", run=run)
        for text in degraded:
            warnings.warn(f"stack {self.stack!r}: {text}", stacklevel=2)
        self._checked = effective
        return effective

    @property
    def stepped(self) -> bool:
        """True once an optimizer has taken a step, which `check` needs."""
        self._alive()
        return self._probe.flow is not None

    @property
    def idle(self) -> bool:
        """True while the optimizer steps have learning rate 0, as at the start of a warm-up."""
        self._alive()
        return not self.stepped and bool(self._probe.idle)

    def trainer_callback(self) -> Any:
        """Return a callback for Trainer and its subclasses, such as TRL's. It refuses arguments
        that omit a part of `outside`, and calls `check` after the first step."""
        from accel_bench_apply.trainer_impl import AccelerateCallback

        return AccelerateCallback(self)

    def close(self) -> None:
        """Undo the plugins' changes outside the model, and the changes of the model that can be
        undone.

        Adapters, quantized weights and trained values stay. A second call does nothing. Raises the
        first error of a plugin after all plugins are closed. Warns if optimizers took steps, but
        all of them with learning rate 0.
        """
        idle = not self.closed and self.idle
        with self._closing(self):
            error = None if self.closed else self._undo()
        if error:
            raise error
        if idle:
            warnings.warn(
                f"stack {self.stack!r}: all optimizer steps had learning rate 0, so nothing was "
                "trained or checked",
                stacklevel=2,
            )

    def __exit__(self, *_: object) -> None:
        self.close()

    def _alive(self) -> Run:
        """Return the run object of this model. Raises AccelBenchError if the model is closed."""
        if self.closed:
            raise AccelBenchError(
                f"the accelerated model of stack {self.stack!r} is closed; call accelerate again"
            )
        return self._run

    def _build(self, given: Any, asked: Asked) -> None:
        """Call the plugins' hooks from `prepare_experiment` to `parallelize_model`, as a run does.

        `given` is the script's module, or None if a plugin loads the model. `asked` is the plan.
        """
        run, active = self._run, self._active
        run.task = task_of(active)
        list(active.call_all("prepare_experiment", run=run))
        list(active.call_all("prepare_process", run=run))
        self._set_up()
        if given is None and asked.names_data:
            run.dataset = active.require("load_data", run=run)
        if given is not None:
            refuse_architecture(active, type(given).__name__)
            self._prepare_given(given)
            move(given, asked.device, asked.dtype)  # A call refused so far leaves it as it was.
        try:
            build_model(active, run, self._heartbeat, given)
        except ScenarioError as error:
            if run.dataset is not None or run.model is not None:
                raise
            way_out = "what loading needs of data is that of `scenario`, which names none"
            raise ScenarioError(f"{error}; {way_out}") from error
        from accel_bench.worker.verify.gradient_flow import FirstStepProbe

        self.recomputes = (
            run.scenario.train.gradient_checkpointing
            or read_checkpointing(run.unwrapped_model).policy is not None
        )
        self._probe = FirstStepProbe(run)
        run.on_close(self._probe.remove)

    def _set_up(self) -> None:
        """Set torch's precision of float32 matrix products to the scenario's until `close`."""
        import torch

        asked, before = (
            self._run.scenario.train.matmul_precision,
            torch.get_float32_matmul_precision(),
        )
        if asked != before:
            self._run.on_close(lambda: torch.set_float32_matmul_precision(before))
            torch.set_float32_matmul_precision(asked)

    def _prepare_given(self, model: Any) -> None:
        """Prepare a given model like a loaded one: train mode, the scenario's attention, and no
        key-value cache."""
        self._run.on_close(remembered(model))
        model.train()
        if undo := set_attention(model, self._run.scenario.model.attention):
            self._run.on_close(undo)
        config: Any = getattr(model, "config", None)
        for part in (config, text_config(config)):
            if getattr(part, "use_cache", None):
                self._run.on_close(functools.partial(setattr, part, "use_cache", True))
                part.use_cache = False

    def _dataset(self, samples: Iterable[Features]) -> Any:
        """Return the given samples as a dataset, for plugins that build batches."""
        from accel_bench_apply.samples import dataset_of

        config = text_config(getattr(self._run.unwrapped_model, "config", None))
        vocab_size = getattr(config, "vocab_size", 2**31)
        longest = self._run.scenario.data.sequence_length
        made = dataset_of(samples, vocab_size, longest)
        if made.sequence_length > longest and self.answered("build_batches"):
            raise ScenarioError(
                f"a sample has {made.sequence_length} tokens, and the stack {self.stack!r} was "
                f"made for {longest} at most: cut the samples, or give accelerate "
                f"overrides={{'data.sequence_length': {made.sequence_length}}}"
            )
        return made

    def _as_asked(self, found: EffectiveConfiguration) -> Run:
        """Return the run object whose scenario `check` compares with the effective one, `found`.

        If the script, not the stack, recomputes activations, the scenario's
        `train.gradient_checkpointing` becomes the value in `found`.
        """
        if self._recomputes_anyway and not self.recomputes:
            return with_checkpointing(self._run, bool(found.gradient_checkpointing))
        return self._run

    def _undo(self) -> BaseException | None:
        """Close all plugins and remove the run's folder; return a plugin's first error, or None."""
        self.closed = True
        error = close(self._active, self._run, self._heartbeat)
        self._remove_folder()
        return error
