"""The task `embedding`: texts that belong together get vectors that are near to one another."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from accel_bench import Batch, Held, Loss, Options, Run, Task, held_tokens, hookimpl
from accel_bench_text_tasks.tasks.needed_pairs import require_pairs


class EmbeddingOptions(Options):
    """How a text becomes a vector, and how sharply pairs are told apart (Wang et al., 2022)."""

    temperature: float = Field(0.01, gt=0)
    """What the cosines are divided by."""

    pooling: Literal["mean", "first"] = "mean"
    """The mean of the last hidden states of real tokens, or that of the first token."""

    symmetric: bool = False
    """Also find the first of each pair among all firsts, and take the mean of both losses."""


class Embedding(Task[EmbeddingOptions]):
    """Trains encoders by InfoNCE: the other pairs of a micro-batch are the negatives."""

    Options = EmbeddingOptions
    model_class = "AutoModel"
    families = frozenset({"text-encoder"})
    pairs = "stacked"
    batch_dependent = True

    def adjust_model(self, model: Any) -> None:
        """Take off the pooler, whose output the loss does not use."""
        for module in model.modules():
            if getattr(module, "pooler", None) is not None:
                module.pooler = None

    def held(self, batch: Batch) -> Held | None:
        """Return the tokens of both texts of all pairs; each pair is supervised once."""
        found, ids = held_tokens(batch), batch.inputs.get("input_ids")
        if found is None or ids is None:
            return None
        pairs = len(ids) // 2
        return found._replace(supervised=(pairs, pairs))

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the cross-entropy of the right text among those of the micro-batch."""
        from accel_bench_text_tasks.tasks.embedding_impl import InfoNCE

        require_pairs(run)
        loss = InfoNCE(self.options)
        run.on_evidence(loss.evidence)
        return loss
