"""The data plugin `synthetic`: made-up token ids that cost nothing to get and can be learned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from accel_bench import Batch, Options, Plugin, Run, hookimpl

if TYPE_CHECKING:
    from accel_bench.builtin.dataset_impl import TokenDataset


class SyntheticOptions(Options):
    """What the made-up tokens look like."""

    vocab_size: int = Field(2048, ge=2)
    """Token ids are below this; at most the vocabulary of the model."""

    samples: int = Field(512, ge=1)
    """Samples of an epoch, each of `data.sequence_length` tokens."""

    pattern: Literal["markov", "uniform"] = "markov"
    """`markov`: few tokens can follow each token, so that a model learns; `uniform`: pure noise."""

    successors: int = Field(4, ge=1)
    """Tokens that can follow each token in the pattern `markov`."""

    maximum_token: int | None = Field(None, ge=2)
    """Only ids below this occur, such as 100 for random tokens of a narrow range; null: all."""

    @model_validator(mode="after")
    def _within_vocabulary(self) -> SyntheticOptions:
        """Refuse ids that the vocabulary does not have."""
        if self.maximum_token is not None and self.maximum_token > self.vocab_size:
            raise ValueError(
                f"maximum_token {self.maximum_token} is larger than vocab_size {self.vocab_size}"
            )
        return self

    @property
    def distinct_tokens(self) -> int:
        """How many token ids can occur."""
        return self.maximum_token or self.vocab_size


class Synthetic(Plugin[SyntheticOptions]):
    """Seeded made-up tokens of one length, without padding; nothing is read or downloaded."""

    Options = SyntheticOptions

    def __init__(self, options: SyntheticOptions, name: str = "") -> None:
        super().__init__(options, name)
        self._made: TokenDataset | None = None

    @hookimpl
    def load_data(self, run: Run) -> TokenDataset:
        """Make up the samples from `data.seed`."""
        from accel_bench.builtin import synthetic_impl

        data = run.scenario.data
        self._made = synthetic_impl.make_up(self.options, data.sequence_length, data.seed)
        return self._made

    @hookimpl
    def build_batches(self, run: Run) -> Iterator[Batch]:
        """Batches of constant shape."""
        from accel_bench.builtin import dataset_impl

        return dataset_impl.batches_of(run, "none")

    @hookimpl
    def report_evidence(self) -> dict[str, Any]:
        """What was trained on; nothing where another plugin brought the data."""
        made = self._made
        if made is None:
            return {}
        return {
            "samples": len(made),
            "tokens": int(made.lengths.sum()),
            "vocab_size": made.vocab_size,
            "distinct_tokens": self.options.distinct_tokens,
            "pattern": self.options.pattern,
            "fingerprint": made.fingerprint,
            "constant_length": True,
        }
