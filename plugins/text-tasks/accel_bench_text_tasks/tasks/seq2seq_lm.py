"""The task `seq2seq-lm`: an encoder reads a text, and a decoder writes what follows from it."""

from __future__ import annotations

from accel_bench import Batch, Held, Loss, Options, Run, Task, held_tokens, hookimpl
from accel_bench_text_tasks.tasks.needed_pairs import require_pairs


class Seq2SeqLM(Task[Options]):
    """Trains encoder-decoders to write the second text of a pair, given the first."""

    model_class = "AutoModelForSeq2SeqLM"
    families = frozenset({"text-to-text"})
    pairs = "labels"

    def held(self, batch: Batch) -> Held | None:
        """Return the tokens of both texts; those of the second are supervised."""
        found, labels = held_tokens(batch), batch.inputs.get("labels")
        if found is None or labels is None:
            return None
        written, size = found.supervised, int(labels.numel())
        processed = found.processed[0] + size, found.processed[1] + size
        real = found.real[0] + written[0], found.real[1] + written[1]
        return Held(processed, real, written)

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the cross-entropy of the tokens of the second text, each given those before."""
        from accel_bench_text_tasks.tasks.seq2seq_lm_impl import Seq2SeqLoss

        require_pairs(run)
        loss = Seq2SeqLoss(run.unwrapped_model)
        run.on_evidence(loss.evidence)
        return loss
