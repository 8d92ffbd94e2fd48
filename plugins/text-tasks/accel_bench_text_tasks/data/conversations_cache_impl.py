"""Token cache of prompts with answers: rendered and tokenized once, then memory-mapped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tokenizers
import transformers

from accel_bench import Run
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data.token_batches import TokenDataset, supervised_lengths, windows
from accel_bench_text_tasks.data.conversations_impl import (
    ASSISTANT,
    Codec,
    Encoded,
    Rendered,
    Template,
    bytes_of,
    make_template,
    render,
)
from accel_bench_text_tasks.data.instructions import ConversationOptions
from accel_bench_text_tasks.data.row_sources import Message

CACHE_FORM = 3
"""Version of the cached files' format, which is part of the cache key."""

NOT_TOKENS = {
    *("packing", "padding", "path"),
    *("tokenizer", "tokenizer_revision", "chat_template"),
}
"""Options that do not change tokens, or whose content is in the fingerprint."""

OptionsT = TypeVar("OptionsT", bound=ConversationOptions)


class PromptSample(NamedTuple):
    """Prompt with one answer, or with several answers to compare, each as text or as messages."""

    where: str
    prompt: str | list[Message]
    answers: tuple[str | list[Message], ...]

    @property
    def size(self) -> int:
        """Total bytes of the sample's texts."""
        return sum(map(bytes_of, (self.prompt, *self.answers)))


@dataclass(frozen=True)
class CacheFacts:
    """Counts of the samples and tokens in a cache folder, stored in its `facts.json`."""

    samples: int
    characters: int

    tokens: int
    """Number of tokens of all sequences."""

    answer_tokens: int | None
    """Number of answer tokens; null if every token is supervised."""

    vocab_size: int
    """Size of the tokenizer's vocabulary."""

    pad_token_id: int

    empty: int
    """Number of rows left out because an answer is missing."""

    limited: bool
    """True if `data.limit_bytes` ended the reading before the end of the data."""


class TokenizedSamples(NamedTuple):
    """Token sequences of all samples, with counts of truncated and omitted samples."""

    sequences: TokenDataset
    """Sequences of all samples; the sequences of a sample are adjacent."""

    facts: CacheFacts
    cut: int
    """Number of samples with a truncated sequence."""

    without_answer: int
    """Number of samples, or packed pieces, left out because no token is supervised."""

    def evidence(self, options: ConversationOptions, per_sample: int = 1) -> dict[str, Any]:
        """Return JSON evidence with counts of the samples and their tokens. `per_sample` is the
        number of sequences of a sample."""
        real = int(self.sequences.lengths.sum())
        share = int(self.sequences.supervised_lengths.sum()) / max(1, real)
        samples = len(self.sequences) // per_sample
        count = f"{samples:,} {'samples' if per_sample == 1 else 'pairs'}"
        left_out = f"; {self.without_answer} samples without an answer left out"
        limit = f"; only what data.limit_bytes {options.limit_bytes:,} lets be read"
        return {
            "summary": f"{count}, {share:.0%} of the tokens have a loss"
            + (left_out if self.without_answer else "")
            + (limit if self.facts.limited else ""),
            **asdict(self.facts),
            "samples": samples,
            "samples_cut": self.cut,
            "samples_without_answer": self.without_answer,
            "supervised_fraction": share,
            "sequences_per_sample": per_sample,
            "constant_length": options.is_packed or options.padding == "max_length",
            "fingerprint": self.sequences.fingerprint,
            "tokenizer": options.tokenizer_name(),
        }


def cached(
    run: Run, kind: str, options: OptionsT, read: Callable[[OptionsT, int], Iterator[PromptSample]]
) -> Path:
    """Return the cache folder with tokenizer.json, {tokens,answers,ends}.npy and facts.json.

    A new folder is filled with samples that `read` yields for the options and the seed. `kind` is
    the name of its parent folder in the cache. Sequence length, packing and padding do
    not affect the content. Raises ScenarioError for unusable rows, tokenizer or template.
    """
    seed = run.scenario.data.seed
    key: dict[str, Any] = {
        "form": CACHE_FORM,
        "options": options.model_dump(mode="json", exclude=NOT_TOKENS),
        "chat_template": "file" if options.template_path() else options.chat_template,
        "content": options.content_fingerprint(seed),
        "tokenizers": tokenizers.__version__,
        "transformers": transformers.__version__,
    }
    return run.cache(kind, key, lambda folder: _fill(folder, options, read(options, seed)))


def _fill(folder: Path, options: ConversationOptions, samples: Iterator[PromptSample]) -> None:
    """Render, tokenize and write all samples into an empty folder. Raises ScenarioError if no
    sample has answers."""
    read, limited = _within_limit(samples, options)
    kept = [sample for sample in read if all(sample.answers)]
    if not kept:
        raise ScenarioError(
            f"data: no {options.sample_name} in the first {options.limit_bytes} bytes of "
            f"{options.source_name}: name other files in data.path, or raise data.limit_bytes"
        )
    has_messages = any(
        not isinstance(part, str) for sample in kept for part in (sample.prompt, *sample.answers)
    )
    template = make_template(options, has_messages)
    find = options.learns_answers
    rendered = [
        _rendered(template, sample, reply, find) for sample in kept for reply in sample.answers
    ]
    codec = Codec(options, template, [text.text for text in rendered])
    encoded = codec.encode(rendered)
    facts = CacheFacts(
        samples=len(kept),
        characters=sum(len(text.text) for text in rendered),
        tokens=sum(len(sample.tokens) for sample in encoded),
        answer_tokens=sum(int(sample.answers.sum()) for sample in encoded) if find else None,
        vocab_size=codec.vocab_size,
        pad_token_id=codec.pad_token_id,
        empty=len(read) - len(kept),
        limited=limited,
    )
    _save(folder, codec, encoded, facts)


def _within_limit(
    samples: Iterator[PromptSample], options: ConversationOptions
) -> tuple[list[PromptSample], bool]:
    """Return the samples that `maximum_samples` and `limit_bytes` allow, and whether `limit_bytes`
    left out any samples."""
    left, read = options.limit_bytes, list[PromptSample]()
    for sample in islice(samples, options.maximum_samples):
        left -= sample.size
        if left < 0:
            return read, True
        read.append(sample)
    return read, len(read) != options.maximum_samples and options.leaves_files_out()


def _rendered(
    template: Template | None, sample: PromptSample, answer: str | list[Message], find: bool
) -> Rendered:
    """Return the text of a prompt and `answer`, with the character spans of the answer only.

    Without `find`, only answers that the template marks have spans.
    """
    text = render(template, sample.prompt, answer, sample.where, find)
    said = () if isinstance(sample.prompt, str) else sample.prompt
    before = sum(message["role"] == ASSISTANT for message in said)
    return Rendered(text.text, text.answers[before:])


def _save(folder: Path, codec: Codec, encoded: Sequence[Encoded], facts: CacheFacts) -> None:
    """Write tokenizer, tokens, masks of answer tokens, ends of texts, and `facts` to a folder."""
    codec.tokenizer.save(str(folder / "tokenizer.json"))
    np.save(folder / "tokens.npy", np.concatenate([text.tokens for text in encoded]))
    np.save(folder / "answers.npy", np.concatenate([text.answers for text in encoded]))
    np.save(folder / "ends.npy", np.cumsum([len(text.tokens) for text in encoded], dtype=np.int64))
    (folder / "facts.json").write_text(json.dumps(asdict(facts)), encoding="utf8")


def load(
    folder: Path, options: ConversationOptions, sequence_length: int, per_sample: int = 1
) -> TokenizedSamples:
    """Return cached tokens, memory-mapped, as sequences truncated to `sequence_length` tokens.

    `folder` is as `cached` returns it, and `per_sample` is the number of sequences of a sample.
    Samples with a sequence without supervised tokens are left out. Raises ScenarioError if no
    sample remains.
    """
    facts = CacheFacts(**json.loads((folder / "facts.json").read_text(encoding="utf8")))
    flags = np.load(folder / "answers.npy", mmap_mode="r", allow_pickle=False)
    ends = np.load(folder / "ends.npy", allow_pickle=False)
    starts, lengths = windows(ends, sequence_length, options.is_packed)
    learned = flags if options.learns_answers else None
    taught = lengths - 1 if learned is None else supervised_lengths(learned, starts, lengths)
    kept = (taught > 0).reshape(-1, per_sample).all(axis=1)
    if not kept.any():
        raise ScenarioError(
            f"data: no {options.sample_name} is left within data.sequence_length "
            f"{sequence_length}: {options.way_to_answers}"
        )
    each = np.repeat(kept, per_sample)
    sequences = TokenDataset(
        tokens=np.load(folder / "tokens.npy", mmap_mode="r", allow_pickle=False),
        starts=starts[each],
        lengths=lengths[each],
        sequence_length=sequence_length,
        vocab_size=facts.vocab_size,
        pad_token_id=facts.pad_token_id,
        fingerprint=folder.name,
        more_samples=options.more_samples,
        tokenizer_path=folder / "tokenizer.json",
        supervised=learned,
    )
    longer = (np.diff(ends, prepend=0) > sequence_length).reshape(-1, per_sample).any(axis=1)
    cut = 0 if options.is_packed else int(longer.sum())
    return TokenizedSamples(sequences, facts, cut, int((~kept).sum()))
