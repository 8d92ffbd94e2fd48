"""The task `masked-lm`, in which an encoder predicts masked tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from accel_bench import Loss, Options, Run, Task, hookimpl

if TYPE_CHECKING:
    from accel_bench_text_tasks.tasks.masked_lm_impl import Masking


class MaskedLMOptions(Options):
    """Options of `masked-lm`: the fractions of masked tokens (Devlin et al., 2018)."""

    masked: float = Field(0.15, gt=0, le=1)
    """Probability of predicting a token; at least one per sample is predicted."""

    replaced: float = Field(0.8, ge=0, le=1)
    """Fraction of the predicted tokens that the mask token replaces."""

    random: float = Field(0.1, ge=0, le=1)
    """Fraction of the predicted tokens that a random token replaces; the rest stays unchanged."""

    mask_token_id: int | None = Field(None, ge=0)
    """Id of the mask token; null: the data tokenizer's, by default the first unused id."""

    @model_validator(mode="after")
    def _fractions_fit(self) -> MaskedLMOptions:
        if self.replaced + self.random > 1:
            raise ValueError(f"replaced {self.replaced} and random {self.random} exceed 1 together")
        return self


class MaskedLM(Task[MaskedLMOptions]):
    """Trains encoders to predict masked tokens, which are drawn anew in each epoch."""

    Options = MaskedLMOptions
    model_class = "AutoModelForMaskedLM"
    families = frozenset({"text-encoder"})

    _masking: Masking | None = None

    def labels_of(self, run: Run) -> Any:
        """Return a function that masks tokens of a sample, and returns the inputs and the labels.
        Its arguments are the sample's tokens, and the sample's index since the first step."""
        from accel_bench_text_tasks.tasks.masked_lm_impl import Masking

        masking = Masking(run, self.options)
        # Batches of the training are built first: what else is masked trains nothing.
        self._masking = self._masking or masking
        return masking

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the loss function, the cross-entropy of the masked tokens."""
        from accel_bench.modeling.losses import labelled_loss

        run.on_evidence(lambda: self._masking.evidence() if self._masking else {})
        return labelled_loss
