"""The data plugin `synthetic`: learnable synthetic token ids, without files or downloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from accel_bench import Options, Run, hookimpl
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data.data_plugins import TokenData

if TYPE_CHECKING:
    from accel_bench.modeling.data.batch_plan import Padding
    from accel_bench.modeling.data.token_batches import TokenDataset


LONGEST = 16_777_216
"""Maximum length in tokens of a drawn sample."""


class Lengths(Options):
    """Log-normal distribution of sample lengths in tokens, similar to instructions and answers."""

    median: int = Field(300, ge=1, le=16_777_216)
    """Median length in tokens."""

    sigma: float = Field(0.8, ge=0, allow_inf_nan=False)
    """Standard deviation of the natural logarithm of the length."""

    minimum: int = Field(16, ge=2, le=16_777_216)
    """Smallest length in tokens; the largest is `data.sequence_length`."""


class SyntheticOptions(Options):
    """Options of `synthetic`: number, lengths and tokens of the samples."""

    vocab_size: int = Field(2048, ge=2, le=10_000_000)
    """Upper bound of token ids, exclusive; at most the vocabulary of the model."""

    samples: int = Field(512, ge=1, le=10_000_000)
    """Number of samples in an epoch."""

    lengths: Lengths | None = None
    """Distribution of random sample lengths, from `data.seed`: `{median: 300, sigma: 0.8, minimum:
    16}`; null: each sample has `data.sequence_length` tokens."""

    padding: Literal["max_length", "longest"] = "max_length"
    """Length to pad to with `lengths`: `data.sequence_length`, or the micro-batch's longest."""

    pattern: Literal["markov", "uniform"] = "markov"
    """Distribution of tokens: `markov`, which a model can learn, or `uniform` noise."""

    successors: int = Field(4, ge=1, le=10_000_000)
    """Number of tokens that can follow each token in the pattern `markov`."""

    maximum_token: int | None = Field(None, ge=2)
    """Upper bound of the token ids that occur, such as 100 for a narrow range; null: all."""

    @model_validator(mode="after")
    def _within_vocabulary(self) -> SyntheticOptions:
        if self.maximum_token is not None and self.maximum_token > self.vocab_size:
            raise ValueError(
                f"maximum_token {self.maximum_token} is larger than vocab_size {self.vocab_size}"
            )
        return self

    @property
    def distinct_tokens(self) -> int:
        """Return the number of token ids that can occur."""
        return self.maximum_token or self.vocab_size


class Synthetic(TokenData[SyntheticOptions]):
    """Seeded made-up tokens, of one length or of log-normal ones; nothing is read or downloaded."""

    Options = SyntheticOptions

    @hookimpl
    def sample_lengths(self, run: Run) -> Sequence[int]:
        """Return random sample lengths in tokens, one per sample of an epoch.

        Raises ScenarioError if the option `lengths` is not set.
        """
        from accel_bench_huggingface import synthetic_impl

        options = self.options
        if options.lengths is None:
            raise ScenarioError(
                "data.sequence_length: auto: made-up samples have the length that you choose; give "
                "a number, or `lengths` to draw from"
            )
        seed = run.scenario.data.seed
        drawn = synthetic_impl.draw_lengths(options.lengths, options.samples, LONGEST, seed)
        lengths: list[int] = drawn.tolist()
        return lengths

    @hookimpl
    def load_data(self, run: Run) -> TokenDataset:
        """Return synthetic samples that depend on `data.seed`."""
        from accel_bench_huggingface import synthetic_impl

        data = run.scenario.data
        made = synthetic_impl.make_up(self.options, data.sequence_length, data.seed)
        run.on_evidence(lambda: synthetic_impl.evidence(made, self.options))
        return made

    def padding(self) -> Padding:
        """Return the padding mode in the options, or `none` if all samples have one length."""
        return "none" if self.options.lengths is None else self.options.padding
