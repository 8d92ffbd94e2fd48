"""The task `speech-seq2seq`: an encoder listens, and a decoder writes down what is said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from accel_bench import Batch, Experiment, Held, Loss, Options, Run, Task, hookimpl, model_config
from accel_bench_media.tasks.speech import (
    AUDIO_SAMPLES,
    augmentation,
    dropped_layers,
    refuse_dropped_layers,
)


class SpeechSeq2Seq(Task[Options]):
    """Trains encoder-decoders such as whisper by the cross-entropy of what is said.

    What is counted are audio samples; the silence to which a model pads is processed too.
    """

    counts = AUDIO_SAMPLES
    model_class = "AutoModelForSpeechSeq2Seq"
    families = frozenset({"audio"})

    def random_operations(self, model: Any) -> str:
        """Return `SpecAugment` where the model's configuration asks for it."""
        return augmentation(model)

    def held(self, batch: Batch) -> Held:
        """Return the tokens that are supervised; features do not tell how long an utterance was."""
        most = batch.tokens.processed
        supervised = int((batch.inputs["labels"] >= 0).sum())
        return Held((most, most), (1, most), (supervised, supervised))

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
        """Return the cross-entropy."""
        return transcript_loss


def transcript_loss(model: Any, inputs: Mapping[str, Any], supervised_in_step: int) -> Any:
    """Return the sum of the cross-entropies of tokens, divided by those of the step."""
    from accel_bench.modeling.losses import token_loss

    others = {name: value for name, value in inputs.items() if name != "labels"}
    return token_loss(model(**others).logits, inputs["labels"], supervised_in_step)
