"""The task `masked-lm`: an encoder predicts tokens that are hidden from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from accel_bench import Loss, Options, Run, Task, hookimpl

if TYPE_CHECKING:
    from accel_bench_text_tasks.tasks.masked_lm_impl import Masking


class MaskedLMOptions(Options):
    """Which tokens are predicted, and what stands in their place (Devlin et al., 2018)."""

    masked: float = Field(0.15, gt=0, le=1)
    """Probability with which a token is predicted; at least one of each sample is."""

    replaced: float = Field(0.8, ge=0, le=1)
    """Fraction of these in whose place the mask stands."""

    random: float = Field(0.1, ge=0, le=1)
    """Fraction of these in whose place a random token stands; the others stay as they are."""

    mask_token_id: int | None = Field(None, ge=0)
    """Id of the mask; null: that of the data's tokenizer, or where it has none the first id that
    none of its tokens has."""

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
        """Return what masks the samples of the run's dataset."""
        from accel_bench_text_tasks.tasks.masked_lm_impl import Masking

        found = Masking(run, self.options)
        # Batches of the training are built first: what else is masked trains nothing.
        self._masking = self._masking or found
        return found

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the cross-entropy of the masked tokens."""
        from accel_bench.modeling.losses import labelled_loss

        run.on_evidence(lambda: self._masking.evidence() if self._masking else {})
        return labelled_loss
