"""The task `speech-seq2seq`: an encoder listens, and a decoder writes down what is said."""

from __future__ import annotations

from accel_bench import Batch, Held, Loss, Options, Run, hookimpl
from accel_bench_media.tasks.speech import SpeechTask


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
