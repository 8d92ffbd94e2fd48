"""Reader of samples and maker of batches for the data plugin `preferences`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from accel_bench import Batch, Run, TokenCounts
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data import batch_plan, token_batches
from accel_bench.modeling.data.batch_plan import BatchPlan, Integers
from accel_bench.modeling.data.token_batches import TokenDataset, Tokens
from accel_bench_text_tasks.data.conversations_cache_impl import PromptSample
from accel_bench_text_tasks.data.conversations_impl import ASSISTANT
from accel_bench_text_tasks.data.documented_functions import documented_functions
from accel_bench_text_tasks.data.preferences import PreferencesOptions
from accel_bench_text_tasks.data.row_sources import (
    Message,
    Row,
    messages_of,
    read_rows,
    text_of,
    value_of,
    with_all_parts,
)
from accel_bench_text_tasks.data.synthetic_rows import synthetic_rows

if TYPE_CHECKING:
    from accel_bench.modeling.data.sample_batches import Collate


@dataclass(frozen=True)
class PreferenceDataset:
    """Dataset of pairs of sequences with the same prompt, one chosen and one rejected."""

    sequences: TokenDataset
    """All sequences: number 2 n is the chosen sequence of pair n, and 2 n + 1 the rejected one."""

    @property
    def lengths(self) -> Integers:
        """Number of tokens of each pair's longer sequence, shape (pairs,)."""
        longer: Integers = self.sequences.lengths.reshape(-1, 2).max(axis=1)
        return longer

    @property
    def sequence_length(self) -> int:
        """Maximum number of tokens of a sequence."""
        return self.sequences.sequence_length

    @property
    def more_samples(self) -> str:
        """Advice on getting more pairs, a clause for error messages."""
        return self.sequences.more_samples

    @property
    def vocab_size(self) -> int:
        """Size of the tokenizer's vocabulary."""
        return self.sequences.vocab_size

    @property
    def fingerprint(self) -> str:
        """Hexadecimal digest of the dataset's content."""
        return self.sequences.fingerprint

    @property
    def tokenizer_path(self) -> Path | None:
        """Path of the tokenizer's `tokenizer.json`."""
        return self.sequences.tokenizer_path

    def __len__(self) -> int:
        return len(self.sequences) // 2

    def sample(self, index: int) -> Tokens:
        """Return the token ids of the chosen sequence of the pair at `index`, shape (tokens,)."""
        return self.sequences.sample(2 * index)

    def training_samples(self, run: Run) -> Integers:
        """Return the indices of the pairs that a run trains on, without held-out pairs."""
        data = run.scenario.data
        return batch_plan.split_samples(len(self), data.held_out, data.seed)[0]


def kept_lengths(folder: Path) -> list[int]:
    """Return the number of tokens of each pair's longer sequence in a cache folder."""
    both = np.array(token_batches.kept_lengths(folder)).reshape(-1, 2)
    longer: list[int] = both.max(axis=1).tolist()
    return longer


def collate_of(run: Run, plan: BatchPlan) -> Collate:
    """Return the function that makes micro-batches of `run.dataset`; `plan` has the padding.

    `input_ids` and `labels` have shape (2 x pairs, length), the chosen sequences before the
    rejected ones. `supervised_in_step` is the number of pairs in the step, by which losses are
    divided. `chosen_tokens`, of shape (1,), is the number of tokens in the step's chosen answers.
    Raises ScenarioError for a model with too few token ids.
    """
    token_batches.check_vocabulary(run)
    sequences = run.dataset.sequences
    return lambda pairs, step: _batch(sequences, plan, pairs, step.samples)


def _batch(sequences: TokenDataset, plan: BatchPlan, pairs: Integers, step: Integers) -> Batch:
    """Return a micro-batch of the pairs with the indices `pairs`. `step` has the indices of all
    pairs in the optimizer step, on all ranks."""
    import torch

    chosen = torch.tensor([int(sequences.supervised_lengths[2 * step].sum())])
    rows = np.concatenate((2 * pairs, 2 * pairs + 1))
    batch = token_batches.batch_of(sequences, rows, plan, len(step))
    inputs = {**batch.inputs, "chosen_tokens": chosen}
    return replace(batch, inputs=inputs, sequences=len(pairs))


def simulated_batch(pairs: int, length: int) -> Batch:
    """Return a micro-batch of zeros with `pairs` pairs of `length` tokens per sequence."""
    import torch

    names = ("input_ids", "labels", "attention_mask")
    tensors = {name: torch.zeros((2 * pairs, length), dtype=torch.long) for name in names}
    tokens = 2 * pairs * length
    counts = TokenCounts(tokens, tokens, 2 * pairs * (length - 1))
    inputs = {**tensors, "chosen_tokens": torch.zeros(1, dtype=torch.long)}
    return Batch(inputs, pairs, counts, pairs)


def read(options: PreferencesOptions, seed: int) -> Iterator[PromptSample]:
    """Yield prompts with a chosen and a rejected answer, read from files or generated from
    `seed`."""
    if options.source == "synthetic":
        for made in synthetic_rows(seed, options.maximum_samples):
            yield PromptSample(made.where, made.prompt, (made.answer, made.rejected))
        return
    if options.path is None:
        functions = list(documented_functions(options.files()))
        for number, function in enumerate(functions):
            # A body of another function, of which none is near: the next ones may be much alike.
            other = functions[(number + len(functions) // 2) % len(functions)]
            yield PromptSample(function.where, function.prompt, (function.answer, other.answer))
        return
    for row in with_all_parts(read_rows(options.files(), options.fields), options.prompts):
        chosen = _said(row, options.chosen, "data.chosen")
        rejected = _said(row, options.rejected, "data.rejected")
        yield without_repeated_prompt(
            PromptSample(row[0], _prompt(row, options), (chosen, rejected))
        )


def without_repeated_prompt(pair: PromptSample) -> PromptSample:
    """Remove the prompt from answers that are whole conversations, and return the pair.

    Messages at the start of both answers become the prompt. Raises ScenarioError for answers that
    begin with messages missing in the prompt.
    """
    chosen, rejected = pair.answers
    if isinstance(chosen, str) or isinstance(rejected, str):
        return pair
    if not chosen or not rejected or chosen[0]["role"] == rejected[0]["role"] == ASSISTANT:
        return pair
    prompt = pair.prompt
    both = zip(chosen, rejected, strict=False)
    shared = sum(1 for _ in takewhile(lambda two: two[0] == two[1], both))
    while shared and chosen[shared - 1]["role"] == ASSISTANT:
        shared -= 1  # Equal answers are answers.
    turns = chosen[:shared]
    repeated = (
        any(turn.get("content") == prompt for turn in turns)
        if isinstance(prompt, str)
        else turns[: len(prompt)] == prompt
    )
    if not turns or not repeated:
        raise ScenarioError(
            f"{pair.where}: the answers begin with a message of {chosen[0]['role']!r}, and what "
            "both begin with is not the prompt: leave all turns before the answer out of both, or "
            "let both begin with the prompt"
        )
    return PromptSample(pair.where, turns, (chosen[shared:], rejected[shared:]))


def _prompt(row: Row, options: PreferencesOptions) -> str | list[Message]:
    if len(options.prompts) == 1:
        return _said(row, options.prompts[0], "data.prompt")
    parts = [text_of(row, field, "data.prompt") for field in options.prompts]
    return "\n\n".join(part for part in parts if part)


def _said(row: Row, field: str, option: str) -> str | list[Message]:
    """Return a row's field: its messages if it is a list, else its text. `option` is the dotted key
    that sets the field's name, for error messages."""
    is_list = isinstance(value_of(row, field, option), list)
    return messages_of(row, field, option) if is_list else text_of(row, field, option)
