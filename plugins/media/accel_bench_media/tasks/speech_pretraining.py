"""The task `speech-pretraining`: a speech encoder tells hidden parts of an utterance apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from accel_bench import Batch, Experiment, Held, Loss, Options, Run, hookimpl, model_config
from accel_bench.errors import ScenarioError
from accel_bench_media.tasks.speech import SpeechTask, held_waveforms


class SpeechPretrainingOptions(Options):
    """How much of an utterance is hidden."""

    masked: float = Field(0.65, gt=0, le=1)
    """Frames in the spans that are hidden / frames. Spans may overlap, so that with 0.65 about half
    of an utterance is hidden, as in Baevski et al."""


class SpeechPretraining(SpeechTask[SpeechPretrainingOptions]):
    """Trains wav2vec 2.0 without transcripts (Baevski et al. 2020, arXiv:2006.11477).

    The loss, contrastive and of diversity, is over the hidden frames. What is counted are audio
    samples.
    """

    Options = SpeechPretrainingOptions
    model_class = "AutoModelForPreTraining"
    batch_dependent = True

    def adjust_model(self, model: Any) -> None:
        """Set how much is hidden: published configurations have SpecAugment's share instead.

        Raises ScenarioError for a model that cannot hide anything.
        """
        for problem in without_embedding(model.config.to_dict()):
            raise ScenarioError(problem)
        model.config.mask_time_prob = self.options.masked

    def random_operations(self, model: Any) -> str:
        """Return the noise by which an utterance's frames get their quantized targets."""
        return "Gumbel noise"

    def held(self, batch: Batch) -> Held:
        """Return the audio samples of a batch; hidden frames are supervised."""
        return held_waveforms(batch, batch.inputs["mask_time_indices"].sum())

    @hookimpl
    def check_scenario(self, experiment: Experiment) -> Iterator[str]:
        """Refuse layers that are left out by chance, and a model that cannot hide anything."""
        yield from super().check_scenario(experiment)
        yield from without_embedding(model_config(experiment.scenario.model) or {})

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the model's own loss over the hidden frames of the step."""
        return hidden_loss


def without_embedding(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield that a model has no embedding to put in the place of hidden frames."""
    if config.get("mask_time_prob") == 0 and not config.get("mask_feature_prob"):
        yield (
            "with mask_time_prob 0 the model has no embedding of hidden frames: set "
            "model.overrides.mask_time_prob: 0.05; how many are hidden says task.masked"
        )


def hidden_loss(model: Any, inputs: Mapping[str, Any], supervised_in_step: int) -> Any:
    """Return the sum of the losses of hidden frames, divided by those of the step."""
    return model(**inputs).loss / supervised_in_step
