"""The task `ctc`: a speech encoder writes down what is said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from accel_bench import (
    Batch,
    Experiment,
    Held,
    Loss,
    Options,
    Run,
    Scenario,
    hookimpl,
)
from accel_bench_media.tasks.speech import SpeechTask, held_waveforms

LONGEST_WARMUP = 30
"""Steps after which a warm-up of `auto` length ends at the latest."""


class CTCOptions(Options):
    """Which parts of the encoder train."""

    freeze_feature_encoder: bool = True
    """Leave the convolutions that read the waveform as they are, as fine-tuning does."""

    freeze_encoder_for_n_steps: int = Field(0, ge=0)
    """Train the output projection alone in the first steps. A run measures one of the two phases:
    with fewer steps than `measure.warmup` the encoder trains before the window opens, and with a
    number that no step of the run reaches it does not train; anything between is refused."""


class CTC(SpeechTask[CTCOptions]):
    """Trains speech encoders by connectionist temporal classification (Graves et al. 2006).

    The loss is that of utterances over their characters. What is counted are audio samples.
    """

    Options = CTCOptions
    model_class = "AutoModelForCTC"

    def held(self, batch: Batch) -> Held:
        """Return the audio samples of a batch; characters are supervised."""
        return held_waveforms(batch, (batch.inputs["labels"] >= 0).sum())

    @hookimpl
    def check_scenario(self, experiment: Experiment) -> Iterator[str]:
        """Refuse an encoder that would start to train while it is measured."""
        scenario, frozen = experiment.scenario, self.options.freeze_encoder_for_n_steps
        if self._thaws(scenario):
            if scenario.world_size > 1:
                yield (
                    f"task.freeze_encoder_for_n_steps: {frozen}: an encoder that starts to train "
                    "in the warm-up needs one device, since others would wait for its gradients"
                )
        elif 0 < frozen < (steps := steps_of(scenario)):
            yield (
                f"task.freeze_encoder_for_n_steps is {frozen}, so that the encoder would start to "
                f"train within the {steps} steps of the run, and steps of the window would not be "
                f"alike: set measure.warmup to {frozen + 1} or more to measure steps in which it "
                f"trains, or freeze it for {steps} or more to measure steps in which it does not"
            )
        yield from super().check_scenario(experiment)

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        """Freeze what the options say, before the optimizer is built."""
        super().accelerate_model(run)
        model, frozen = run.model, self.options.freeze_encoder_for_n_steps
        if self._thaws(run.scenario):
            run.trains_from = frozen
        elif frozen:
            model.freeze_base_model()
        if self.options.freeze_feature_encoder:
            model.freeze_feature_encoder()
        run.on_evidence(lambda: self._evidence(model, run.trains_from))

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the loss, with blanks as the model's configuration says.

        The encoder is frozen with its first call: the optimizer has all weights by then.
        """
        from accel_bench_media.tasks.ctc_impl import CTCLoss, FrozenEncoder

        micro_batches = run.trains_from * run.scenario.train.gradient_accumulation
        return CTCLoss(run.unwrapped_model, FrozenEncoder(run.unwrapped_model, micro_batches))

    def _thaws(self, scenario: Scenario) -> bool:
        """Return whether the encoder starts to train in the warm-up."""
        warmup = scenario.measure.warmup
        return warmup != "auto" and 0 < self.options.freeze_encoder_for_n_steps < warmup

    def _evidence(self, model: Any, trains_from: int) -> dict[str, Any]:
        trained = sum(one.requires_grad for one in model.base_model.parameters())
        frozen = bool(self.options.freeze_encoder_for_n_steps) and not trains_from
        found = {"encoder_frozen": frozen, "trained_encoder_tensors": trained}
        return {**found, "encoder_trains_from_step": trains_from} if trains_from else found


def steps_of(scenario: Scenario) -> int:
    """Return the steps of a run at most: of warm-up, window and learning curve."""
    measure = scenario.measure
    warmup = LONGEST_WARMUP if measure.warmup == "auto" else measure.warmup
    return warmup + measure.steps + scenario.evaluate.steps
