"""The data plugin `preferences`: prompts, each with a chosen and a rejected answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from accel_bench import Batch, Run, hookimpl
from accel_bench.modeling.data.data_plugins import SampleData
from accel_bench_text_tasks.data.instructions import ConversationOptions, Conversations

if TYPE_CHECKING:
    from accel_bench.modeling.data.batch_plan import BatchPlan, Padding
    from accel_bench.modeling.data.sample_batches import Collate
    from accel_bench.modeling.data.token_batches import TokenDataset
    from accel_bench_text_tasks.data.preferences_impl import PreferenceDataset


class PreferencesOptions(ConversationOptions):
    """Options of `preferences`. The named fields hold text, or lists of messages."""

    sample_name: ClassVar[str] = "pair of answers"

    chosen: str = Field("chosen", min_length=1)
    """Name of the better answer's field."""

    rejected: str = Field("rejected", min_length=1)
    """Name of the worse answer's field."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that are read from each row."""
        return (*self.prompts, self.chosen, self.rejected)


class Preferences(Conversations[PreferencesOptions], SampleData[PreferencesOptions]):
    """Pairs of answers to a prompt, of which one is preferred; a pair is a sample."""

    Options = PreferencesOptions
    tasks = frozenset({"dpo"})
    _kind = "preferences"
    _per_sample = 2

    def _impl(self) -> Any:
        from accel_bench_text_tasks.data import preferences_impl

        return preferences_impl

    def _dataset(self, sequences: TokenDataset) -> PreferenceDataset:
        return self._impl().PreferenceDataset(sequences)

    @hookimpl
    def sample_lengths(self, run: Run) -> Sequence[int]:
        """Return the number of tokens of each pair's longer sequence, in the order of the pairs."""
        return self._impl().kept_lengths(self._tokenized(run)[1])

    def padding(self) -> Padding:
        """Return the padding that the options set."""
        return self.options.padding

    def collate(self, run: Run, plan: BatchPlan) -> Collate:
        """Return the function that makes micro-batches of all chosen, then all rejected sequences,
        with the padding of `plan`."""
        return self._impl().collate_of(run, plan)

    @hookimpl
    def simulate_batch(self, run: Run, micro_batch_size: int, sequence_length: int) -> Batch:
        """Return a micro-batch of `micro_batch_size` pairs of the full sequence length, for a
        simulation."""
        return self._impl().simulated_batch(micro_batch_size, sequence_length)
