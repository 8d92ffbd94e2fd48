"""Places at which a plugin of these tests changes a run: its steps, batches, blocks and tensors."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeAlias

from accel_bench import Batch, Engine, Options, Plugin, Run, Stopwatch, hookimpl


class PlainLoop(Plugin[Options]):
    """The plain training loop, in which `change` alters one thing once everything is built."""

    def change(self, run: Run) -> None:
        """Alter the optimizer, the batches or the model of a run."""
        raise NotImplementedError

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        from accel_bench_torch.engine_impl import TorchEngine

        self.change(run)
        return TorchEngine(run)


class Laps:
    """Stands between the plain loop and its stopwatch; `end` is called for each step that ends."""

    def __init__(self, stopwatch: Stopwatch, end: Callable[[Stopwatch, Any, Any], None]) -> None:
        self._stopwatch, self._end = stopwatch, end
        self.mark = stopwatch.mark

    @property
    def running(self) -> bool:
        return self._stopwatch.running

    def lap(self, batches: Any, loss: Any) -> None:
        self._end(self._stopwatch, batches, loss)


Step: TypeAlias = tuple[list[Batch], Any]
"""What a loop hands to the stopwatch: the micro-batches of a step, and its loss."""


def plain_loop(run: Run) -> Any:
    """Return the plain loop, in parts: what waits in `before` is called in the place of a step.

    `at_end` is called with the number of each step, before the step is handed to the stopwatch.
    """
    from accel_bench_torch.engine_impl import TorchEngine

    class Loop(TorchEngine):
        def __init__(self) -> None:
            super().__init__(run)
            self.before: list[Callable[[], Step]] = []
            self.at_end: Callable[[int], object] = lambda step: None

        def draw(self) -> list[Batch]:
            return list(itertools.islice(run.batches, run.scenario.train.gradient_accumulation))

        def compute(self, batches: list[Batch]) -> Any:
            loss = self._forward_backward(batches, SimpleNamespace(mark=lambda phase: None))
            self._step()
            return loss

        def take(self) -> Step:
            batches = self.draw()
            return batches, self.compute(batches)

        def run(self, stopwatch: Stopwatch) -> None:
            for step in itertools.count():
                if not stopwatch.running:
                    return
                ended = (self.before.pop(0) if self.before else self.take)()
                self.at_end(step)
                stopwatch.lap(*ended)

        def take_window_ahead(self) -> None:
            """Take the steps of a window now, so that the loop has nothing but to hand them on."""
            ended = [self.take() for _ in range(run.scenario.measure.steps)]
            self.before += [lambda one=one: one for one in ended]

        def record(self, steps: int) -> Iterator[dict[str, Any]]:
            """Train a copy; yield after each step what the loop needs to look as if it had."""
            kept = self._model, self._optimizer
            self._model, self._optimizer = copy.deepcopy(kept)
            for _ in range(steps):
                loss = self.compute(self.draw())
                states = self._model.state_dict(), self._optimizer.state_dict()
                yield copy.deepcopy({"loss": loss, "states": states})
            self._model, self._optimizer = kept

        def load(self, step: dict[str, Any]) -> Step:
            """Load what a step of a copy has made, in the place of taking it."""
            for one, state in zip((self._model, self._optimizer), step["states"], strict=True):
                one.load_state_dict(state)
            return self.draw(), step["loss"]

    return Loop()


def trained(run: Run) -> list[Any]:
    """Return the parameters that train."""
    return [parameter for parameter in run.model.parameters() if parameter.requires_grad]


def steps_only(run: Run, wanted: Callable[[int], bool]) -> None:
    """Call the optimizer in the wanted steps alone, which are counted from 0."""
    step, numbers = run.optimizer.step, itertools.count()
    run.optimizer.step = lambda *_, **__: step() if wanted(next(numbers)) else None


def after_each_step(run: Run, call: Callable[[], object]) -> None:
    """Call it after each step of the optimizer."""
    step = run.optimizer.step
    run.optimizer.step = lambda *_, **__: (step(), call())[0]


def scale_rate(run: Run, factor: float) -> None:
    """Multiply the learning rate that is in force."""
    for group in run.optimizer.param_groups:
        group["lr"] *= factor


def change_batches(run: Run, change: Callable[[Batch], Batch]) -> None:
    """Put every micro-batch through `change`."""
    run.batches = map(change, run.batches)


def with_inputs(batch: Batch, **inputs: Any) -> Batch:
    """Return the batch with other tensors, its loss the mean over what they supervise.

    The counts of tokens stay, as they do in a loop that counts before it cuts.
    """
    kept = int((inputs["labels"][:, 1:] != -100).sum())
    divisor = batch.supervised_in_step * kept / batch.tokens.supervised
    return replace(batch, inputs=inputs, supervised_in_step=max(1, round(divisor)))


def cut(batch: Batch, rows: int, columns: int) -> Batch:
    """Return the first rows and columns of a batch."""
    return with_inputs(batch, **{k: v[:rows, :columns] for k, v in batch.inputs.items()})


def outlast_the_slack(run: Run) -> None:
    """Make steps so long that a false clock is not within what two readings may be apart."""
    run.model.register_forward_pre_hook(lambda *_: time.sleep(0.01))


def blocks(run: Run) -> list[Any]:
    """Return the decoder blocks of the model."""
    from accel_bench.modeling.blocks import decoder_blocks

    return list(decoder_blocks(run.model)[1])


def half(run: Run) -> list[Any]:
    """Return the first half of the decoder blocks."""
    found = blocks(run)
    return found[: len(found) // 2]


def linears(run: Run) -> Iterator[Any]:
    """Yield the linear modules, those within adapters too."""
    import torch

    return (module for module in run.model.modules() if type(module) is torch.nn.Linear)


def causal_model(run: Run) -> Any:
    """Return the causal language model, without the wrapper of an adapter."""
    return run.model.get_base_model() if hasattr(run.model, "get_base_model") else run.model
