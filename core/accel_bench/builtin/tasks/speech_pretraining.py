"""The task `speech-pretraining`: a speech encoder tells hidden parts of an utterance apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from accel_bench import Batch, Experiment, Held, Loss, Options, Run, Task, hookimpl, model_config
from accel_bench.builtin.tasks.speech import (
    AUDIO_SAMPLES,
    dropped_layers,
    held_waveforms,
    refuse_dropped_layers,
)


class SpeechPretraining(Task[Options]):
    """Trains wav2vec 2.0 without transcripts (Baevski et al. 2020, arXiv:2006.11477).

    The loss, contrastive and of diversity, is over the hidden frames. What is counted are audio
    samples.
    """

    counts = AUDIO_SAMPLES
    model_class = "AutoModelForPreTraining"
    families = frozenset({"audio"})
    batch_dependent = True

    def held(self, batch: Batch) -> Held:
        """Return the audio samples of a batch; hidden frames are supervised."""
        return held_waveforms(batch, batch.inputs["mask_time_indices"].sum())

    @hookimpl
    def check_scenario(self, experiment: Experiment) -> Iterator[str]:
        """Refuse layers that are left out by chance."""
        yield from dropped_layers(model_config(experiment.scenario.model) or {})

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        """Refuse what the plan could not know."""
        refuse_dropped_layers(run.model)

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the model's own loss over the hidden frames of the step."""
        return hidden_loss


def hidden_loss(model: Any, inputs: Mapping[str, Any], supervised_in_step: int) -> Any:
    """Return the sum of the losses of hidden frames, divided by those of the step."""
    return model(**inputs).loss / supervised_in_step
