"""Stacks that look faster since they train otherwise: silent mistakes that users have made.

Each takes a first step that is sound, as mistakes do that get past a check of the first step.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from same_training.changes import (
    Laps,
    PlainLoop,
    after_each_step,
    blocks,
    causal_model,
    change_batches,
    cut,
    half,
    linears,
    outlast_the_slack,
    plain_loop,
    scale_rate,
    steps_only,
    trained,
    with_inputs,
)

from accel_bench import Engine, Options, Plugin, Run, Window, hookimpl


class SkipsEverySecondStep(PlainLoop):
    """Accumulation is set in the loop and once more in the optimizer."""

    _caught: ClassVar[str] = r"the optimizer took \d+ of \d+ steps"

    def change(self, run: Run) -> None:
        steps_only(run, lambda step: step % 2 == 0)


class StepsOnce(PlainLoop):
    """After the first step the optimizer is that of a model that was copied."""

    _caught: ClassVar[str] = r"the optimizer took 1 of \d+ steps"

    def change(self, run: Run) -> None:
        steps_only(run, lambda step: step == 0)


class ZeroRate(PlainLoop):
    """The schedule was told of one step, and has come to its end."""

    _caught: ClassVar[str] = "learning rate 0 in force"

    def change(self, run: Run) -> None:
        after_each_step(run, lambda: scale_rate(run, 0.0))


class TenthOfTheRate(PlainLoop):
    """The rate of another recipe."""

    _caught: ClassVar[str] = "learning rate .* in force, the baseline's"

    def change(self, run: Run) -> None:
        scale_rate(run, 0.1)


class TwiceTheRate(PlainLoop):
    """The rate is scaled with the number of devices, and again by the trainer."""

    _caught: ClassVar[str] = "learning rate .* in force, the baseline's"

    def change(self, run: Run) -> None:
        scale_rate(run, 2.0)


class SgdForAdamw(Plugin[Options]):
    """An optimizer that keeps no state, for its memory."""

    @hookimpl
    def build_optimizer(self, run: Run) -> Any:
        import torch

        return torch.optim.SGD(trained(run), lr=run.scenario.train.learning_rate)


class DecayInTheGradient(Plugin[Options]):
    """Adam with its penalty in the place of AdamW, whose decay is apart from the gradient."""

    @hookimpl
    def build_optimizer(self, run: Run) -> Any:
        import torch

        rate = run.scenario.train.learning_rate
        return torch.optim.Adam(trained(run), lr=rate, weight_decay=0.1)


class LargeEpsilon(Plugin[Options]):
    """The epsilon with which float16 trains, in float32."""

    _caught: ClassVar[str] = "its optimizer has eps 0.001, the baseline's 1e-08"

    @hookimpl
    def build_optimizer(self, run: Run) -> Any:
        import torch

        rate = run.scenario.train.learning_rate
        return torch.optim.AdamW(trained(run), lr=rate, weight_decay=0.01, eps=1e-3)


class NoMomentum(Plugin[Options]):
    """An optimizer that saves its first moment."""

    _caught: ClassVar[str] = "its optimizer has betas 0, 0.999, the baseline's 0.9, 0.999"

    @hookimpl
    def build_optimizer(self, run: Run) -> Any:
        import torch

        rate = run.scenario.train.learning_rate
        return torch.optim.AdamW(trained(run), lr=rate, weight_decay=0.01, betas=(0.0, 0.999))


class OtherBetas(Plugin[Options]):
    """The betas of another recipe."""

    _caught: ClassVar[str] = "its optimizer has betas 0.9, 0.95, the baseline's 0.9, 0.999"

    @hookimpl
    def build_optimizer(self, run: Run) -> Any:
        import torch

        rate = run.scenario.train.learning_rate
        return torch.optim.AdamW(trained(run), lr=rate, weight_decay=0.01, betas=(0.9, 0.95))


class DecaysHalfOfTheTensors(Plugin[Options]):
    """A list of names that are not to decay holds too many."""

    _caught: ClassVar[str] = r"its optimizer has weight_decay 0.01 \(\d+ tensors\) and 0 \("

    @hookimpl
    def build_optimizer(self, run: Run) -> Any:
        import torch

        rate, tensors = run.scenario.train.learning_rate, trained(run)
        groups = [
            {"params": tensors[::2], "weight_decay": 0.01},
            {"params": tensors[1::2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=rate)


class Bfloat16Moments(PlainLoop):
    """Moments are kept in bfloat16, for their memory."""

    _caught: ClassVar[str] = "its optimizer keeps its state in bfloat16, the baseline's in float32"

    def change(self, run: Run) -> None:
        import torch

        def store(dtype: Any) -> None:
            for state in run.optimizer.state.values():
                state |= {k: v.to(dtype) for k, v in state.items() if k.startswith("exp_avg")}

        step = run.optimizer.step
        run.optimizer.step = lambda: (store(torch.float32), step(), store(torch.bfloat16))[1]


class StepsHalfOfTheTensors(Plugin[Options]):
    """Of two groups of parameters one is given to the optimizer."""

    _caught: ClassVar[str] = "did not move"

    @hookimpl
    def build_optimizer(self, run: Run) -> Any:
        import torch

        rate = run.scenario.train.learning_rate
        return torch.optim.AdamW(trained(run)[::2], lr=rate, weight_decay=0.01)


class ForgetsTheNorms(Plugin[Options]):
    """The group without weight decay, which holds the norms, is lost."""

    _trains = "full"
    _caught: ClassVar[str] = "did not move"

    @hookimpl
    def build_optimizer(self, run: Run) -> Any:
        import torch

        matrices = [parameter for parameter in trained(run) if parameter.ndim > 1]
        rate = run.scenario.train.learning_rate
        return torch.optim.AdamW(matrices, lr=rate, weight_decay=0.01)


class ForgetsTheEmbedding(Plugin[Options]):
    """The embedding is taken for tied to the head, which is in the optimizer, and left out."""

    _trains = "full"
    _caught: ClassVar[str] = "did not move"

    @hookimpl
    def build_optimizer(self, run: Run) -> Any:
        import torch

        embedding = run.model.get_input_embeddings().weight
        rest = [parameter for parameter in trained(run) if parameter is not embedding]
        rate = run.scenario.train.learning_rate
        return torch.optim.AdamW(rest, lr=rate, weight_decay=0.01)


class FreezesHalfAfterWarmup(Plugin[Options]):
    """Layers are frozen one after the other, as some recipes do."""

    _caught: ClassVar[str] = "no longer do after the window"

    @hookimpl
    def start_metrics(self, run: Run) -> None:
        for block in half(run):
            block.requires_grad_(False)


class SkipsLayers(Plugin[Options]):
    """A schedule of dropped layers leaves half of them out from some step on."""

    @hookimpl
    def start_metrics(self, run: Run) -> None:
        for block in half(run):
            block.forward = lambda hidden, *_, **__: hidden


class CutsGradients(Plugin[Options]):
    """A cache of a compiled region gives back tensors without their history."""

    @hookimpl
    def start_metrics(self, run: Run) -> None:
        for block in half(run):
            block.mlp.register_forward_hook(lambda module, inputs, output: output.detach())


class DropsNearlyAll(PlainLoop):
    """A filter that was for a quick look is still there: one sequence, four tokens."""

    _caught: ClassVar[str] = "processed tokens, and its batches hold"

    def change(self, run: Run) -> None:
        change_batches(run, lambda batch: cut(batch, 1, 4))


class HalfOfTheBatch(PlainLoop):
    """The batch is divided by a number of devices that are not there."""

    _caught: ClassVar[str] = "processed tokens, and its batches hold"

    def change(self, run: Run) -> None:
        change_batches(run, lambda batch: cut(batch, len(batch.inputs["labels"]) // 2, 1 << 20))


class HalfOfTheLength(PlainLoop):
    """The tokenizer's longest length is half of the scenario's."""

    _caught: ClassVar[str] = "processed tokens, and its batches hold"

    def change(self, run: Run) -> None:
        change_batches(run, lambda batch: cut(batch, 1 << 20, batch.inputs["labels"].shape[1] // 2))


class RepeatsTheFirstBatch(PlainLoop):
    """Inputs of a captured graph are never copied into it again."""

    def change(self, run: Run) -> None:
        taken = itertools.islice(run.batches, run.scenario.train.gradient_accumulation)
        run.batches = itertools.cycle(list(taken))


class SupervisesFewTokens(PlainLoop):
    """The mask of the prompt is turned round: the loss is that of the first tokens alone."""

    _caught: ClassVar[str] = "supervised tokens, and its batches hold"

    def change(self, run: Run) -> None:
        def change(batch: Any) -> Any:
            labels = batch.inputs["labels"].clone()
            labels[:, 4:] = -100
            return with_inputs(batch, **{**batch.inputs, "labels": labels})

        change_batches(run, change)


class DropsLabelsLater(PlainLoop):
    """From the second step on a buffer is too short for the labels of a step by a few."""

    _caught: ClassVar[str] = "a step after the window counted .* and its batches hold"

    def change(self, run: Run) -> None:
        numbers = itertools.count()

        def change(batch: Any) -> Any:
            if next(numbers) < run.scenario.train.gradient_accumulation:
                return batch
            return with_inputs(batch, **{**batch.inputs, "labels": fewer(batch.inputs["labels"])})

        change_batches(run, change)


class GivesFewerLabelsLater(Plugin[Options]):
    """A wrapper of the model leaves labels out, once its buffers are there."""

    _caught: ClassVar[str] = "a step after the window counted .* and the model was given"

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        numbers = itertools.count()

        def give(module: Any, inputs: Any, words: dict[str, Any]) -> Any:
            if next(numbers) < run.scenario.train.gradient_accumulation:
                return None
            return inputs, {**words, "labels": fewer(words["labels"])}

        run.model.register_forward_pre_hook(give, with_kwargs=True)


def fewer(labels: Any) -> Any:
    """Return labels of which every sixteenth is left out."""
    kept = labels.clone()
    places = (labels[:, 1:] != -100).nonzero()[::16]
    kept[places[:, 0], places[:, 1] + 1] = -100
    return kept


class TrainsOnPadding(PlainLoop):
    """The labels are a copy of the tokens, and padding is one of them."""

    _caught: ClassVar[str] = "supervised tokens, and its batches hold"

    def change(self, run: Run) -> None:
        def change(batch: Any) -> Any:
            return with_inputs(batch, **{**batch.inputs, "labels": batch.inputs["input_ids"]})

        change_batches(run, change)


class ShiftsLabelsTwice(PlainLoop):
    """The collator shifts labels, and so does the model."""

    def change(self, run: Run) -> None:
        def change(batch: Any) -> Any:
            import torch

            labels = torch.nn.functional.pad(batch.inputs["labels"][:, 1:], (0, 1), value=-100)
            return with_inputs(batch, **{**batch.inputs, "labels": labels})

        change_batches(run, change)


class PacksWithoutBorders(PlainLoop):
    """Sequences lie in one row, and each attends to those before it."""

    _caught: ClassVar[str] = "processed tokens, and its batches hold"

    def change(self, run: Run) -> None:
        def change(batch: Any) -> Any:
            rows = batch.inputs["labels"]
            real = rows != -100
            labels = rows.clone()
            labels[:, 0] = -100
            return replace(
                batch,
                inputs={
                    "input_ids": batch.inputs["input_ids"][real][None],
                    "labels": labels[real][None],
                },
            )

        change_batches(run, change)


class LastMicroBatchOnly(PlainLoop):
    """Gradients are zeroed before each micro-batch, so that only the last one counts."""

    def change(self, run: Run) -> None:
        run.model.register_forward_pre_hook(lambda *_: run.optimizer.zero_grad())


class StaleGradients(PlainLoop):
    """Gradients are never zeroed, and add up over all steps."""

    def change(self, run: Run) -> None:
        run.optimizer.zero_grad = lambda *_, **__: None


class ClipsToNothing(PlainLoop):
    """Gradients are clipped before their loss scale is taken off."""

    def change(self, run: Run) -> None:
        import torch

        parameters = trained(run)
        run.optimizer.register_step_pre_hook(
            lambda *_: torch.nn.utils.clip_grad_norm_(parameters, 1e-6) and None
        )


class KeepsLargestGradients(PlainLoop):
    """Gradients are sent as their largest hundredth, and what is left is not kept for later."""

    def change(self, run: Run) -> None:
        def keep(*_: Any) -> None:
            for parameter in trained(run):
                gradient = parameter.grad.abs().flatten()
                least = gradient.topk(max(1, len(gradient) // 100)).values[-1]
                parameter.grad[parameter.grad.abs() < least] = 0.0

        run.optimizer.register_step_pre_hook(keep)


class NoRotaryEmbedding(Plugin[Options]):
    """A fused attention takes queries and keys from before the rotation."""

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        def unrotated(module: Any, inputs: Any, output: Any) -> Any:
            cosine, sine = output
            return cosine.new_ones(cosine.shape), sine.new_zeros(sine.shape)

        causal_model(run).model.rotary_emb.register_forward_hook(unrotated)


class NoCausalMask(Plugin[Options]):
    """A fused attention is called without its causal flag: every token sees the next one."""

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        def see_all(module: Any, inputs: Any, words: dict[str, Any]) -> Any:
            return inputs, {**words, "attention_mask": None}

        for block in blocks(run):
            block.self_attn.is_causal = False
            block.register_forward_pre_hook(see_all, with_kwargs=True)


class DropoutLeftOn(Plugin[Options]):
    """A block of another library brings its dropout along."""

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        import torch

        for block in blocks(run):
            block.mlp.register_forward_hook(
                lambda module, inputs, output: torch.nn.functional.dropout(output, 0.1)
            )


class RoundsUpdatesAway(Plugin[Options]):
    """Trained weights are kept in bfloat16, where a small update is rounded away."""

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        import torch

        for parameter in trained(run):
            parameter.data = parameter.data.to(torch.bfloat16)
        run.model.forward = torch.autocast("cpu", torch.bfloat16)(run.model.forward)


class LowersPrecisionLater(Plugin[Options]):
    """Kernels of another precision are chosen once the first forward has shown the shapes."""

    _caught: ClassVar[str] = "linear modules compute in bfloat16 after the window, and did in float"

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        for module in linears(run):
            self._replace(module, module.forward, in_bfloat16(module))

    def _replace(self, module: Any, plain: Any, later: Any) -> None:
        numbers = itertools.count()
        module.forward = lambda x: later(x) if next(numbers) else plain(x)


class AutocastsLater(Plugin[Options]):
    """Autocast is entered from the second call of the model on."""

    _caught: ClassVar[str] = LowersPrecisionLater._caught

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        import torch

        plain, numbers = run.model.forward, itertools.count()

        def forward(*inputs: Any, **words: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16, enabled=next(numbers) > 0):
                return plain(*inputs, **words)

        run.model.forward = forward


class CallsLikeCompiledCode(Plugin[Options]):
    """Kernels of 8 bits are put where torch puts compiled code, so that no hook is called."""

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        import torch

        def rounded(x: Any) -> Any:
            return x + (x.to(torch.float8_e4m3fn).to(x.dtype) - x).detach()

        def call(module: Any, x: Any) -> Any:
            out = torch.nn.functional.linear(rounded(x), rounded(module.weight))
            return out if module.bias is None else out + module.bias

        for module in linears(run):
            module._compiled_call_impl = functools.partial(call, module)


def in_bfloat16(module: Any) -> Callable[[Any], Any]:
    """Return the product of a linear layer in bfloat16, which answers in the dtype of its input."""

    def forward(x: Any) -> Any:
        import torch

        half = torch.bfloat16
        out = torch.nn.functional.linear(x.to(half), module.weight.to(half))
        return out.to(x.dtype) if module.bias is None else out.to(x.dtype) + module.bias

    return forward


class RoundsWeights(PlainLoop):
    """Weights are rounded to bfloat16 after each step, as a copy back from another model does."""

    def change(self, run: Run) -> None:
        import torch

        def round_all() -> None:
            for parameter in trained(run):
                parameter.data.copy_(parameter.data.to(torch.bfloat16))

        after_each_step(run, round_all)


class ForgetsLoraScale(Plugin[Options]):
    """What adapters add is not multiplied by alpha / r."""

    _trains = "lora"
    _caught: ClassVar[str] = "its loss differs|gradient norms"

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        for module in run.model.modules():
            if isinstance(getattr(module, "scaling", None), dict):
                module.scaling = dict.fromkeys(module.scaling, 1.0)


class FreezesLoraB(Plugin[Options]):
    """A fused adapter has no gradient for its second matrix, from some shape on."""

    _trains = "lora"
    _caught: ClassVar[str] = "no longer do after the window"
    _matrix: ClassVar[str] = "lora_B"

    @hookimpl
    def start_metrics(self, run: Run) -> None:
        for name, parameter in run.model.named_parameters():
            if self._matrix in name:
                parameter.requires_grad_(False)


class FreezesLoraA(FreezesLoraB):
    """A fused adapter has no gradient for its first matrix, from some shape on."""

    _matrix: ClassVar[str] = "lora_A"


class CountsPaddingAsReal(PlainLoop):
    """Tokens are counted by the shape of the batch."""

    _caught: ClassVar[str] = "real tokens"

    def change(self, run: Run) -> None:
        change_batches(run, lambda b: replace(b, tokens=replace(b.tokens, real=b.tokens.processed)))


class DoublesTokens(PlainLoop):
    """Tokens are counted for two devices where there is one."""

    _caught: ClassVar[str] = "processed tokens"

    def change(self, run: Run) -> None:
        def change(batch: Any) -> Any:
            real, processed = 2 * batch.tokens.real, 2 * batch.tokens.processed
            return replace(batch, tokens=replace(batch.tokens, real=real, processed=processed))

        change_batches(run, change)


class SlowsTheClock(Plugin[Options]):
    """A library replaces clocks to make its traces reproducible, and reaches those of core."""

    _caught: ClassVar[str] = "the wall clock says"

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        outlast_the_slack(run)

    @hookimpl
    def start_metrics(self, run: Run) -> None:
        from accel_bench.worker import clocks

        ticks = clocks.perf_counter_ns
        run.on_close(lambda: setattr(clocks, "perf_counter_ns", ticks))
        clocks.perf_counter_ns = lambda: ticks() // 10


class LeavesTimeOut(Plugin[Options]):
    """The loop of an engine that answers requests is copied, with its pauses between them."""

    _caught: ClassVar[str] = r"the engine called stopwatch\.resume\(\)"

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        from accel_bench_torch.engine_impl import TorchEngine

        class Pausing(TorchEngine):
            def run(self, stopwatch: Any) -> None:
                super().run(Laps(stopwatch, resume_first))

        def resume_first(stopwatch: Any, batches: Any, loss: Any) -> None:
            stopwatch.resume()
            stopwatch.lap(batches, loss)

        return Pausing(run)


class TrainsInStartMetrics(Plugin[Options]):
    """A meter takes the steps that it measures, and the loop hands them on."""

    _caught: ClassVar[str] = r"took 0 of \d+ steps of the window"

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        self._loop = plain_loop(run)
        return self._loop

    @hookimpl
    def start_metrics(self, run: Run) -> None:
        self._loop.take_window_ahead()


class TrainsInTheWarmup(Plugin[Options]):
    """A loop runs ahead of the stopwatch, in the last step of the warm-up."""

    _caught: ClassVar[str] = r"took 0 of \d+ steps of the window"

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        loop, last = plain_loop(run), run.scenario.measure.warmup - 1
        loop.at_end = lambda step: loop.take_window_ahead() if step == last else None
        return loop


class IdlesInTheKeptWindow(Plugin[Options]):
    """The last step of a window is slow, and takes those of the window that is measured again."""

    _caught: ClassVar[str] = r"took 0 of \d+ steps of the window"

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        loop, measure = plain_loop(run), run.scenario.measure
        last = measure.warmup + measure.steps - 1

        def at_end(step: int) -> None:
            if step == last:
                loop.take_window_ahead()
                time.sleep(0.5)

        loop.at_end = at_end
        return loop


class PutsStepsOff(Plugin[Options]):
    """A lazy framework computes a step when its loss is read."""

    _caught: ClassVar[str] = "the window's median step took"

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        loop = plain_loop(run)

        class Later:
            def __init__(self) -> None:
                self.batches = loop.draw()

            def __float__(self) -> float:
                return float(loop.compute(self.batches))

        def queue() -> Any:
            later = Later()
            return later.batches, later

        loop.take = queue
        return loop


class ReplaysCopies(Plugin[Options]):
    """A copy of the model trains in the warm-up; the window loads its weights, step by step."""

    _caught: ClassVar[str] = "autograd recorded 0 operations in a step of the window"
    _every: ClassVar[int] = 1

    def steps(self, run: Run) -> range:
        """Return the numbers of the steps that are trained by the copy."""
        measure = run.scenario.measure
        return range(measure.warmup, measure.warmup + measure.steps)

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        loop, steps = plain_loop(run), self.steps(run)

        def at_end(step: int) -> None:
            if step == steps.start - 1:
                # The batches that the copy sees come once more.
                batches = [loop.draw() for _ in steps]
                run.batches = itertools.chain(*batches, *batches, run.batches)
                loads = [partial(loop.load, one) for one in loop.record(len(steps))]
                loop.before = [
                    loop.take if number % self._every else load for number, load in enumerate(loads)
                ]

        loop.at_end = at_end
        return loop


class ReplaysEverySecondStep(ReplaysCopies):
    """Of the window every second step is loaded: its median is near that of steps before it."""

    _caught: ClassVar[str] = r"autograd recorded \d+ operations in a step of the window, and"
    _every: ClassVar[int] = 2


class ReplaysUntilTheEnd(ReplaysCopies):
    """The steps after the window are loaded too."""

    _caught: ClassVar[str] = "autograd recorded no operation in a step after the window"

    def steps(self, run: Run) -> range:
        window = super().steps(run)
        return range(window.start, window.stop + 10)


class TrainsWhilePreparing(Plugin[Options]):
    """All steps are taken once, where caches are filled, and the window loads what they made."""

    _caught: ClassVar[str] = "autograd recorded 0 operations in a step of the window"

    @hookimpl
    def prepare_experiment(self, run: Run) -> None:
        run.rehearsal = True

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        import torch

        loop, file = plain_loop(run), run.cache_folder / f"{run.experiment.id}.pt"
        measure = run.scenario.measure
        if file.exists():
            kept = torch.load(file, weights_only=True)[measure.warmup :]
            loop.before = [loop.take] * measure.warmup + [partial(loop.load, one) for one in kept]
        else:
            torch.save([*loop.record(measure.warmup + measure.steps)], file)
        return loop


class EvaluationMode(Plugin[Options]):
    """An evaluation within the training leaves the model in evaluation mode."""

    _caught: ClassVar[str] = "model.training was True before the window"

    @hookimpl
    def start_metrics(self, run: Run) -> None:
        run.model.eval()


class ForgesTheResult(Plugin[Options]):
    """A plugin writes the steps that it wishes for in the place of those that were measured."""

    _caught: ClassVar[str] = "the window's median step took"

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        outlast_the_slack(run)

    @hookimpl
    def finish_metrics(self, run: Run, window: Window) -> list[Any]:
        for sample in window.samples:
            object.__setattr__(sample, "seconds", sample.seconds / 10)
        return []


class NeverReduces(Plugin[Options]):
    """Ranks are left in the mode in which gradients are not averaged, as for accumulation."""

    _trains = "ranks"
    _caught: ClassVar[str] = "replicas: "

    @hookimpl
    def start_metrics(self, run: Run) -> None:
        run.model.require_backward_grad_sync = False
