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
"""Keys of configurations for the probability that a layer is left out of a step."""


class SpeechTask(Task[OptionsT]):
    """Base of tasks of speech; layers that are left out by chance are refused.

    What is counted are audio samples: values of the waveform, 16,000 a second, as fairseq2 counts
    the elements of its batches of audio.
    """

    counts = "audio_samples"
    families: ClassVar[frozenset[str]] = frozenset({"audio"})

    def random_operations(self, model: Any) -> str:
        """Return `SpecAugment` for a model that hides times or frequencies at random while it
        trains; else an empty text. See Park et al. 2019, arXiv:1904.08779."""
        config = model.config
        probabilities = (getattr(config, f"mask_{axis}_prob", 0) for axis in ("time", "feature"))
        asked = getattr(config, "apply_spec_augment", True) and any(probabilities)
        return "SpecAugment" if asked else ""

    @hookimpl
    def check_scenario(self, experiment: Experiment) -> Iterator[str]:
        """Refuse layers that are left out by chance."""
        yield from dropped_layers(model_config(experiment.scenario.model) or {})

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        """Refuse what the plan could not know. Raises ScenarioError."""
        for problem in dropped_layers(run.model.config.to_dict()):
            raise ScenarioError(problem)


def held_waveforms(batch: Batch, supervised: Any) -> Held:
    """Return the audio samples of a batch of waveforms."""
    values, mask = batch.inputs["input_values"], batch.inputs.get("attention_mask")
    size = int(values.numel())
    real = size if mask is None else int(mask.sum())
    count = int(supervised)
    return Held((size, size), (real, real), (count, count))


def dropped_layers(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield that layers are left out by chance: they get no gradient, so that nothing is proven,
    and what a step costs is chance too."""
    for key in DROPPED_LAYERS:
        if (value := config.get(key)) and isinstance(value, int | float):
            yield (
                f"the model leaves each layer out of a step with probability {value:g}, and so of "
                f"its gradient: set model.overrides.{key}: 0.0"
            )


class SpeechSeq2Seq(SpeechTask[Options]):
    """Trains encoder-decoders such as whisper by the cross-entropy of what is said.

    What is counted are audio samples; the silence to which a model pads is processed too.
    """

    model_class = "AutoModelForSpeechSeq2Seq"

    def held(self, batch: Batch) -> Held:
        """Return the tokens that are supervised; features do not tell how long an utterance was."""
        most = batch.tokens.processed
        supervised = int((batch.inputs["labels"] >= 0).sum())
        return Held((most, most), (1, most), (supervised, supervised))

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the cross-entropy."""
        from accel_bench.modeling.losses import labelled_loss

        return labelled_loss


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
