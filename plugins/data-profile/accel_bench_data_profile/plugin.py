"""The data plugin `length-profile`: random tokens in samples with the lengths of a data set."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from accel_bench import Experiment, Options, Run, hookimpl
from accel_bench.modeling.data.data_plugins import TokenData

if TYPE_CHECKING:
    from accel_bench.modeling.data.batch_plan import Padding
    from accel_bench.modeling.data.token_batches import TokenDataset


class LengthProfileOptions(Options):
    """Options of `length-profile`: the file of a profile, and the samples to make from it."""

    path: str = Field(min_length=1)
    """Path of a file that `accel-bench data profile` wrote."""

    samples: int = Field(2048, ge=1, le=1_000_000)
    """Number of samples in an epoch, drawn from the profile by `data.seed`; at most those of the
    data set."""

    vocab_size: int = Field(2048, ge=2, le=10_000_000)
    """Upper bound of token ids, exclusive; at most the vocabulary of the model."""

    padding: Literal["max_length", "longest"] = "max_length"
    """Length to pad to: `data.sequence_length`, or the longest sample of the micro-batch."""


class LengthProfile(TokenData[LengthProfileOptions]):
    """Made-up tokens in samples with the lengths of a data set, from its shared profile."""

    Options = LengthProfileOptions

    def fingerprint(self, experiment: Experiment) -> str:
        """Return 24 hex digits that identify the histogram in the profile's file."""
        from accel_bench_data_profile.histogram import read_histogram, text_of

        text = text_of(read_histogram(Path(self.options.path)))
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    @hookimpl
    def sample_lengths(self, run: Run) -> Sequence[int]:
        """Return the length in tokens of each sample of an epoch."""
        from accel_bench_data_profile import plugin_impl

        lengths: list[int] = plugin_impl.lengths_of(self.options, run.scenario.data.seed).tolist()
        return lengths

    @hookimpl
    def load_data(self, run: Run) -> TokenDataset:
        """Return random samples with the lengths of the profile, cut to `data.sequence_length`."""
        from accel_bench_data_profile import plugin_impl

        data = run.scenario.data
        made = plugin_impl.make_up(self.options, data.sequence_length, data.seed)
        run.on_evidence(lambda: plugin_impl.evidence(made))
        return made

    def padding(self) -> Padding:
        """Return the way of padding that the options choose."""
        return self.options.padding
