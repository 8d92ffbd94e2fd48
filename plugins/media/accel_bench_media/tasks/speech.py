"""The tasks of speech: `speech-seq2seq`, `speech-pretraining` and `ctc`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import Field

from accel_bench import (
    Batch,
    Experiment,
    Held,
    Loss,
    Options,
    Run,
    Scenario,
    Task,
    hookimpl,
    model_config,
)
from accel_bench.errors import ScenarioError

OptionsT = TypeVar("OptionsT", bound=Options)

DROPPED_LAYERS = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")
"""Configuration keys of the probability of dropping a layer (LayerDrop)."""


class SpeechTask(Task[OptionsT]):
    """Base class of speech tasks, which refuse LayerDrop.

    The counted unit is an audio sample: a value of the waveform, 16,000 per second, as fairseq2
    counts elements of audio batches.
    """

    counts = "audio_samples"
    families: ClassVar[frozenset[str]] = frozenset({"audio"})

    def random_operations(self, model: Any) -> str:
        """Return `SpecAugment` if the model randomly masks its input in training; else empty.

        Times or frequencies are masked. See Park et al. 2019, arXiv:1904.08779.
        """
        config = model.config
        probabilities = (getattr(config, f"mask_{axis}_prob", 0) for axis in ("time", "feature"))
        asked = getattr(config, "apply_spec_augment", True) and any(probabilities)
        return "SpecAugment" if asked else ""

    @hookimpl
    def check_scenario(self, experiment: Experiment) -> Iterator[str]:
        """Yield a reason if the model has LayerDrop."""
        yield from dropped_layers(model_config(experiment.scenario.model) or {})

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        """Raise ScenarioError if the loaded model has LayerDrop, which the plan could not know."""
        for problem in dropped_layers(run.model.config.to_dict()):
            raise ScenarioError(problem)


def held_waveforms(batch: Batch, supervised: Any) -> Held:
    """Return a batch's processed, real and supervised elements, as lower and upper bounds.

    Processed and real elements are audio samples; `supervised` is the number of supervised ones.
    """
    values, mask = batch.inputs["input_values"], batch.inputs.get("attention_mask")
    size = int(values.numel())
    real = size if mask is None else int(mask.sum())
    count = int(supervised)
    return Held((size, size), (real, real), (count, count))


def dropped_layers(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a reason for each setting of LayerDrop in a model's configuration that is not 0.

    Dropped layers get no gradient, so core cannot verify training, and the cost of a step is
    random.
    """
    for key in DROPPED_LAYERS:
        if (value := config.get(key)) and isinstance(value, int | float):
            yield (
                f"the model leaves each layer out of a step with probability {value:g}, and so of "
                f"its gradient: set model.overrides.{key}: 0.0"
            )


class SpeechSeq2Seq(SpeechTask[Options]):
    """Trains encoder-decoders such as whisper by the cross-entropy of what is said.

    The counted unit is an audio sample; padded silence is processed too.
    """

    model_class = "AutoModelForSpeechSeq2Seq"

    def held(self, batch: Batch) -> Held:
        """Return lower and upper bounds of a batch's audio samples and supervised tokens.

        The lower bound of real samples is 1, since features do not reveal the utterances' lengths.
        """
        most = batch.tokens.processed
        supervised = int((batch.inputs["labels"] >= 0).sum())
        return Held((most, most), (1, most), (supervised, supervised))

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the cross-entropy loss."""
        from accel_bench.modeling.losses import labelled_loss

        return labelled_loss


class SpeechPretrainingOptions(Options):
    """Options of `speech-pretraining`: the fraction of masked frames."""

    masked: float = Field(0.65, gt=0, le=1)
    """Fraction of frames in masked spans. Spans may overlap, so that 0.65 masks about half of an
    utterance, as in Baevski et al."""


class SpeechPretraining(SpeechTask[SpeechPretrainingOptions]):
    """Trains wav2vec 2.0 without transcripts (Baevski et al. 2020, arXiv:2006.11477).

    The contrastive and diversity loss is over the masked frames. The counted unit is an audio
    sample.
    """

    Options = SpeechPretrainingOptions
    model_class = "AutoModelForPreTraining"
    batch_dependent = True

    def adjust_model(self, model: Any) -> None:
        """Set the masked fraction, in place of SpecAugment's fraction in published configurations.

        Raises ScenarioError if the model has no embedding for masked frames.
        """
        for problem in without_embedding(model.config.to_dict()):
            raise ScenarioError(problem)
        model.config.mask_time_prob = self.options.masked

    def random_operations(self, model: Any) -> str:
        """Return `Gumbel noise`, with which the model quantizes the targets of frames."""
        return "Gumbel noise"

    def held(self, batch: Batch) -> Held:
        """Return the numbers of audio samples and masked frames, as lower and upper bounds."""
        return held_waveforms(batch, batch.inputs["mask_time_indices"].sum())

    @hookimpl
    def check_scenario(self, experiment: Experiment) -> Iterator[str]:
        """Yield a reason if the model has LayerDrop, or no embedding for masked frames."""
        yield from super().check_scenario(experiment)
        yield from without_embedding(model_config(experiment.scenario.model) or {})

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the model's own loss over the masked frames of the step."""
        return hidden_loss


def without_embedding(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a reason if the model has no embedding for masked frames, by its configuration."""
    if config.get("mask_time_prob") == 0 and not config.get("mask_feature_prob"):
        yield (
            "with mask_time_prob 0 the model has no embedding of hidden frames: set "
            "model.overrides.mask_time_prob: 0.05; how many are hidden says task.masked"
        )


def hidden_loss(model: Any, inputs: Mapping[str, Any], supervised_in_step: int) -> Any:
    """Return the model's own loss of a micro-batch, divided by the masked frames of the step."""
    return model(**inputs).loss / supervised_in_step


LONGEST_WARMUP = 30
"""Maximum number of steps of a warm-up of `auto` length."""


class CTCOptions(Options):
    """Options of `ctc`: frozen parts of the encoder."""

    freeze_feature_encoder: bool = True
    """Freeze the convolutions that read the waveform, as in fine-tuning."""

    freeze_encoder_for_n_steps: int = Field(0, ge=0)
    """Number of first steps that train the output projection alone. A run measures one of two
    phases: with fewer steps than `measure.warmup` the encoder trains in the whole window, and with
    at least as many as the run's steps it never trains; numbers in between are refused."""


class CTC(SpeechTask[CTCOptions]):
    """Trains speech encoders by connectionist temporal classification (Graves et al. 2006).

    The loss of an utterance is divided by its characters. The counted unit is an audio sample.
    """

    Options = CTCOptions
    model_class = "AutoModelForCTC"

    def held(self, batch: Batch) -> Held:
        """Return the numbers of audio samples and of characters, as lower and upper bounds."""
        return held_waveforms(batch, (batch.inputs["labels"] >= 0).sum())

    @hookimpl
    def check_scenario(self, experiment: Experiment) -> Iterator[str]:
        """Yield a reason if the encoder would start to train within the run, except in the warm-up.

        On several devices, a start in the warm-up is a reason too.
        """
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
        """Freeze the parts that the options name, before the optimizer is built."""
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
        """Return the CTC loss, with the blank token of the model's configuration.

        The loss's first call freezes the encoder, after the optimizer was built with all weights.
        """
        from accel_bench_media.tasks.ctc_impl import CTCLoss, FrozenEncoder

        micro_batches = run.trains_from * run.scenario.train.gradient_accumulation
        return CTCLoss(run.unwrapped_model, FrozenEncoder(run.unwrapped_model, micro_batches))

    def _thaws(self, scenario: Scenario) -> bool:
        """Return whether the encoder is unfrozen during the warm-up."""
        warmup = scenario.measure.warmup
        return warmup != "auto" and 0 < self.options.freeze_encoder_for_n_steps < warmup

    def _evidence(self, model: Any, trains_from: int) -> dict[str, Any]:
        trained = sum(weight.requires_grad for weight in model.base_model.parameters())
        frozen = bool(self.options.freeze_encoder_for_n_steps) and not trains_from
        state = {"encoder_frozen": frozen, "trained_encoder_tensors": trained}
        return {**state, "encoder_trains_from_step": trains_from} if trains_from else state


def steps_of(scenario: Scenario) -> int:
    """Return the maximum optimizer steps of a run: warm-up, measured window and learning curve."""
    measure = scenario.measure
    warmup = LONGEST_WARMUP if measure.warmup == "auto" else measure.warmup
    return warmup + measure.steps + scenario.evaluate.steps
