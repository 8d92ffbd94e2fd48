"""The data plugin `preferences`: prompts, each with a chosen and a rejected answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import Field

from accel_bench import Batch, Run, hookimpl
from accel_bench_text_tasks.data.instructions import ConversationOptions, Conversations


class PreferencesOptions(ConversationOptions):
    """Which pairs of answers are compared. Fields hold text, or lists of messages."""

    chosen: str = Field("chosen", min_length=1)
    """Field that holds the better answer."""

    rejected: str = Field("rejected", min_length=1)
    """Field that holds the worse answer."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields that are read of each row."""
        return (*self.prompts, self.chosen, self.rejected)


class Preferences(Conversations[PreferencesOptions]):
    """Pairs of answers to a prompt, of which one is preferred; a pair is a sample."""

    Options = PreferencesOptions
    tasks = frozenset({"dpo"})

    def _impl(self) -> Any:
        from accel_bench_text_tasks.data import preferences_impl

        return preferences_impl

    @hookimpl
    def sample_lengths(self, run: Run) -> Sequence[int]:
        """Return the tokens of the longer sequence of each pair."""
        folder = self._impl().tokenized(run, self.options.of_model(run))
        return self._impl().kept_lengths(folder)

    @hookimpl
    def build_batches(self, run: Run) -> Iterator[Batch]:
        """Yield micro-batches of pairs: first the chosen sequences, then the rejected ones."""
        return self._impl().pair_batches(run, self.options.padding)

    @hookimpl
    def build_evaluation_batches(self, run: Run) -> Iterable[Batch]:
        """Return the batches of the pairs that are held out, in the same form."""
        return self._impl().evaluation_batches_of(run, self.options.padding)

    @hookimpl
    def simulate_batch(self, run: Run, micro_batch_size: int, sequence_length: int) -> Batch:
        """Return pairs of which both sequences are as long as they may be."""
        return self._impl().simulated_batch(micro_batch_size, sequence_length)
