"""The data plugin `preferences`: prompts, each with a chosen and a rejected answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from accel_bench import Batch, Run, hookimpl
from accel_bench_text_tasks.data.instructions import ConversationOptions, Conversations

if TYPE_CHECKING:
    from accel_bench_text_tasks.data.preferences_impl import PreferenceDataset


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

    @hookimpl
    def prepare_experiment(self, run: Run) -> None:
        """Render and tokenize in a process that is not measured."""
        from accel_bench_text_tasks.data import preferences_impl

        preferences_impl.tokenized(run, self.options.of_model(run))

    @hookimpl
    def sample_lengths(self, run: Run) -> Sequence[int]:
        """Return the tokens of the longer sequence of each pair."""
        from accel_bench_text_tasks.data import preferences_impl

        folder = preferences_impl.tokenized(run, self.options.of_model(run))
        return preferences_impl.kept_lengths(folder)

    @hookimpl
    def load_data(self, run: Run) -> PreferenceDataset:
        """Map the tokens into memory; tokenize first where that was not prepared."""
        from accel_bench_text_tasks.data import preferences_impl

        options = self.options.of_model(run)
        folder = preferences_impl.tokenized(run, options)
        loaded = preferences_impl.load(folder, options, run.scenario.data.sequence_length)
        run.on_evidence(loaded.evidence)
        return loaded.dataset

    @hookimpl
    def build_batches(self, run: Run) -> Iterator[Batch]:
        """Yield micro-batches of pairs: first the chosen sequences, then the rejected ones."""
        from accel_bench_text_tasks.data import preferences_impl

        return preferences_impl.pair_batches(run, self.options.padding)

    @hookimpl
    def build_evaluation_batches(self, run: Run) -> Iterable[Batch]:
        """Return the batches of the pairs that are held out, in the same form."""
        from accel_bench_text_tasks.data import preferences_impl

        return preferences_impl.evaluation_batches_of(run, self.options.padding)

    @hookimpl
    def simulate_batch(self, run: Run, micro_batch_size: int, sequence_length: int) -> Batch:
        """Return pairs of which both sequences are as long as they may be."""
        from accel_bench_text_tasks.data import preferences_impl

        return preferences_impl.simulated_batch(micro_batch_size, sequence_length)
