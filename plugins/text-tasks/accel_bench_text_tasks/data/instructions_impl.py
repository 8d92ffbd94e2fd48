"""Render and tokenize prompts and answers into the cache, and load them as samples."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from accel_bench.errors import ScenarioError
from accel_bench.modeling.data.token_batches import TokenDataset, supervised_lengths, windows
from accel_bench_text_tasks.data.conversations_cache_impl import (
    limit_note,
    save,
    within_limit,
)
from accel_bench_text_tasks.data.conversations_impl import (
    Codec,
    bytes_of,
    make_template,
    render,
)
from accel_bench_text_tasks.data.documented_functions import documented_functions
from accel_bench_text_tasks.data.instructions import InstructionsOptions
from accel_bench_text_tasks.data.row_sources import (
    Message,
    Row,
    messages_of,
    read_rows,
    text_of,
)
from accel_bench_text_tasks.data.synthetic_rows import synthetic_rows


class Sample(NamedTuple):
    """A prompt and an answer, or no prompt and the messages of both."""

    where: str
    prompt: str | list[Message]
    answer: str | list[Message]


@dataclass(frozen=True)
class ConversationFacts:
    """What is known about a cached folder beside its arrays; `facts.json` in it."""

    samples: int
    characters: int

    tokens: int
    """Tokens of all samples."""

    answer_tokens: int | None
    """Tokens that belong to answers; null where all are learned, and none are told apart."""

    vocab_size: int
    """Every token id is smaller than this."""

    pad_token_id: int

    empty: int
    """Rows that were left out, since they have no answer."""

    limited: bool
    """True if `data.limit_bytes` ended the reading before the data did."""


class Loaded(NamedTuple):
    """A dataset, and what cutting has cost."""

    dataset: TokenDataset
    facts: ConversationFacts
    options: InstructionsOptions

    cut: int
    """Samples that are longer than the sequence length."""

    without_answer: int
    """Samples, or packed pieces, that were left out: no token of an answer is left in them."""

    def evidence(self) -> dict[str, Any]:
        """Return JSON of what the rows became."""
        dataset, options = self.dataset, self.options
        supervised = int(dataset.supervised_lengths.sum())
        real = int(dataset.lengths.sum())
        left_out = f"; {self.without_answer} samples without an answer left out"
        return {
            "summary": f"{supervised / max(1, real):.0%} of the tokens have a loss"
            + (left_out if self.without_answer else "")
            + limit_note(options, self.facts.limited),
            **asdict(self.facts),
            "samples": len(dataset),
            "samples_cut": self.cut,
            "samples_without_answer": self.without_answer,
            "train_on": options.train_on,
            "supervised_fraction": supervised / max(1, real),
            "fingerprint": dataset.fingerprint,
            "tokenizer": options.tokenizer_name(),
            "constant_length": options.packing or options.padding == "max_length",
        }


def fill(folder: Path, options: InstructionsOptions, seed: int) -> None:
    """Read or make up rows, render, tokenize and write everything into an empty folder."""
    read, limited = within_limit(
        _samples(options, seed), options, lambda one: bytes_of(one.prompt) + bytes_of(one.answer)
    )
    kept = [one for one in read if one.answer]
    if not kept:
        raise ScenarioError(
            f"data: no prompt with an answer in the first {options.limit_bytes} bytes of "
            f"{options.source_name}: name other files in data.path, or raise "
            "data.limit_bytes"
        )
    template = make_template(options, options.messages is not None)
    find = options.train_on == "answers"
    rendered = [render(template, one.prompt, one.answer, one.where, find) for one in kept]
    codec = Codec(options, template, [one.text for one in rendered])
    encoded = codec.encode(rendered)
    facts = ConversationFacts(
        samples=len(kept),
        characters=sum(len(one.text) for one in rendered),
        tokens=sum(len(one.tokens) for one in encoded),
        answer_tokens=sum(int(one.answers.sum()) for one in encoded) if find else None,
        vocab_size=codec.vocab_size,
        pad_token_id=codec.pad_token_id,
        empty=len(read) - len(kept),
        limited=limited,
    )
    save(folder, codec, encoded, asdict(facts))


def load(folder: Path, options: InstructionsOptions, sequence_length: int) -> Loaded:
    """Map cached tokens into memory as samples of at most `sequence_length` tokens.

    Samples are cut at their end. One without a supervised token is left out. Raises ScenarioError
    when none is left.
    """
    facts = ConversationFacts(**json.loads((folder / "facts.json").read_text(encoding="utf8")))
    tokens = np.load(folder / "tokens.npy", mmap_mode="r", allow_pickle=False)
    answers = np.load(folder / "answers.npy", mmap_mode="r", allow_pickle=False)
    ends = np.load(folder / "ends.npy", allow_pickle=False)
    starts, lengths = windows(ends, sequence_length, options.packing)
    cut = 0 if options.packing else int((np.diff(ends, prepend=0) > sequence_length).sum())
    learned = answers if options.train_on == "answers" else None
    taught = (lengths - 1 if learned is None else supervised_lengths(learned, starts, lengths)) > 0
    if not taught.any():
        raise ScenarioError(
            f"data: no answer begins within data.sequence_length {sequence_length}: raise it, or "
            "set data.train_on: all"
        )
    dataset = TokenDataset(
        tokens=tokens,
        starts=starts[taught],
        lengths=lengths[taught],
        sequence_length=sequence_length,
        vocab_size=facts.vocab_size,
        pad_token_id=facts.pad_token_id,
        fingerprint=folder.name,
        more_samples=options.more_samples,
        tokenizer_path=folder / "tokenizer.json",
        supervised=learned,
    )
    return Loaded(dataset, facts, options, cut, int((~taught).sum()))


def _samples(options: InstructionsOptions, seed: int) -> Iterator[Sample]:
    if options.source == "synthetic":
        for made in synthetic_rows(seed, options.maximum_samples):
            yield Sample(made.where, made.prompt, made.answer)
        return
    if options.path is None:
        for function in documented_functions(options.files()):
            yield Sample(function.where, function.prompt, function.answer)
        return
    for row in read_rows(options.files(), options.fields):
        yield _sample(row, options)


def _sample(row: Row, options: InstructionsOptions) -> Sample:
    if options.messages is not None:
        return Sample(row[0], [], messages_of(row, options.messages, "data.messages"))
    named = "data.prompt, or data.messages for a list of messages"
    parts = [text_of(row, field, named) for field in options.prompts]
    prompt = "\n\n".join(part for part in parts if part)
    return Sample(row[0], prompt, text_of(row, options.answer, "data.answer"))
