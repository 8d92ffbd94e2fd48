"""The task `ctc`: a speech encoder writes down what is said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from accel_bench import Batch, Experiment, Held, Loss, Options, Run, Task, hookimpl, model_config
from accel_bench.builtin.tasks.speech import (
    AUDIO_SAMPLES,
    dropped_layers,
    held_waveforms,
    refuse_dropped_layers,
)

LONGEST_WARMUP = 30
"""Steps after which a warm-up of `auto` length ends at the latest."""


class CTCOptions(Options):
    """Which parts of the encoder train."""

    freeze_feature_encoder: bool = True
    """Leave the convolutions that read the waveform as they are, as fine-tuning does."""

    freeze_encoder_for_n_steps: int = Field(0, ge=0)
    """Train the output projection alone in the first steps. A run measures one of the two phases:
    with 0 the encoder trains from the first step, and with a number that no step of the window
    reaches it does not train; anything between is refused."""


class CTC(Task[CTCOptions]):
    """Trains speech encoders by connectionist temporal classification (Graves et al. 2006).

    The loss is that of utterances over their characters. What is counted are audio samples.
    """

    Options = CTCOptions
    counts = AUDIO_SAMPLES
    model_class = "AutoModelForCTC"
    families = frozenset({"audio"})

    def held(self, batch: Batch) -> Held:
        """Return the audio samples of a batch; characters are supervised."""
        return held_waveforms(batch, (batch.inputs["labels"] >= 0).sum())

    @hookimpl
    def check_scenario(self, experiment: Experiment) -> Iterator[str]:
        """Refuse an encoder that would start to train while it is measured."""
        measure, frozen = experiment.scenario.measure, self.options.freeze_encoder_for_n_steps
        warmup = LONGEST_WARMUP if measure.warmup == "auto" else measure.warmup
        if 0 < frozen < (steps := warmup + measure.steps):
            yield (
                f"task.freeze_encoder_for_n_steps is {frozen}, so that the encoder would start to "
                f"train within the {steps} steps of warm-up and window: set it to 0, or to {steps} "
                "or more, and sweep both to measure the two phases apart"
            )
        yield from dropped_layers(model_config(experiment.scenario.model) or {})

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        """Freeze what the options say, before the optimizer is built."""
        model = run.model
        refuse_dropped_layers(model)
        if self.options.freeze_encoder_for_n_steps:
            model.freeze_base_model()
        if self.options.freeze_feature_encoder:
            model.freeze_feature_encoder()
        run.on_evidence(lambda: self._evidence(model))

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the loss, with blanks as the model's configuration says."""
        from accel_bench.builtin.tasks.ctc_impl import CTCLoss

        return CTCLoss(run.unwrapped_model.config)

    def _evidence(self, model: Any) -> dict[str, Any]:
        trained = sum(one.requires_grad for one in model.base_model.parameters())
        return {
            "encoder_frozen": bool(self.options.freeze_encoder_for_n_steps),
            "trained_encoder_tensors": trained,
        }
