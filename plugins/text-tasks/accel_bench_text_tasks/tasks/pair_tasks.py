"""Tasks on text pairs: `seq2seq-lm` generates the second text, `embedding` retrieves it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from accel_bench import (
    Batch,
    Experiment,
    Held,
    Loss,
    Options,
    Run,
    Task,
    held_tokens,
    hookimpl,
)
from accel_bench.errors import ScenarioError


def require_pairs(run: Run) -> None:
    """Raise ScenarioError if the run's data have no pairs, except in simulations without data."""
    from accel_bench.modeling.tensors import is_simulated

    if not hasattr(run.dataset, "pair") and not is_simulated():
        raise ScenarioError(
            f"task {run.scenario.task.use!r} reads pairs, and data {run.scenario.data.use!r} holds "
            "none; use data such as docstrings, translations or synthetic-pairs"
        )


class Seq2SeqLM(Task[Options]):
    """Trains encoder-decoders to write the second text of a pair, given the first."""

    model_class = "AutoModelForSeq2SeqLM"
    families = frozenset({"text-to-text"})
    pairs = "labels"

    def held(self, batch: Batch) -> Held | None:
        """Return bounds of the number of tokens in a batch's pairs; those of second texts are
        supervised. Returns None if the batch lacks ids or labels."""
        firsts, labels = held_tokens(batch), batch.inputs.get("labels")
        if firsts is None or labels is None:
            return None
        written, size = firsts.supervised, int(labels.numel())
        processed = firsts.processed[0] + size, firsts.processed[1] + size
        real = firsts.real[0] + written[0], firsts.real[1] + written[1]
        return Held(processed, real, written)

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the loss function: cross-entropy of the second text's next tokens."""
        from accel_bench_text_tasks.tasks.pair_losses_impl import Seq2SeqLoss

        require_pairs(run)
        loss = Seq2SeqLoss(run.unwrapped_model)
        run.on_evidence(loss.evidence)
        return loss


class EmbeddingOptions(Options):
    """Options of `embedding`: pooling, temperature and symmetry (Wang et al., 2022)."""

    temperature: float = Field(0.01, gt=0)
    """Temperature by which cosines are divided."""

    pooling: Literal["mean", "first"] = "mean"
    """Pooling of the last hidden states: their mean over real tokens, or the first token's."""

    symmetric: bool = False
    """True to retrieve in both directions, and average the two losses."""


class Embedding(Task[EmbeddingOptions]):
    """Trains encoders by InfoNCE: the other pairs of a micro-batch are the negatives."""

    Options = EmbeddingOptions
    model_class = "AutoModel"
    families = frozenset({"text-encoder"})
    pairs = "stacked"
    batch_dependent = True

    def adjust_model(self, model: Any) -> None:
        """Remove the pooler, whose output the loss does not use."""
        for module in model.modules():
            if getattr(module, "pooler", None) is not None:
                module.pooler = None

    def held(self, batch: Batch) -> Held | None:
        """Return bounds of the number of tokens in a batch's pairs, with one supervised element for
        each pair, or None if the batch has no ids."""
        tokens, ids = held_tokens(batch), batch.inputs.get("input_ids")
        if tokens is None or ids is None:
            return None
        pairs = len(ids) // 2
        return tokens._replace(supervised=(pairs, pairs))

    @hookimpl
    def check_scenario(self, experiment: Experiment) -> list[str]:
        """Return a list with a reason to refuse micro-batches of one pair, whose loss is always 0;
        empty for larger ones."""
        if experiment.scenario.train.micro_batch_size > 1:
            return []
        return [
            "a pair that is alone in its micro-batch has no other to be told from: give "
            "train.micro_batch_size, 2 or more"
        ]

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the loss function: InfoNCE, the cross-entropy of finding each text's match among
        the second texts of the micro-batch."""
        from accel_bench_text_tasks.tasks.pair_losses_impl import InfoNCE

        require_pairs(run)
        loss = InfoNCE(self.options)
        run.on_evidence(loss.evidence)
        return loss
