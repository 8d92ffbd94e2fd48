"""The cache of rendered and tokenized conversations: its key, its files, and what it may read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tokenizers
import transformers

from accel_bench import Run
from accel_bench_text_tasks.data.conversations_impl import Codec, Encoded
from accel_bench_text_tasks.data.instructions import ConversationOptions

CACHE_FORM = 2
"""Version of what a cached folder holds; another one is another key."""

NOT_TOKENS = {
    *("packing", "padding", "path"),
    *("tokenizer", "tokenizer_revision", "chat_template"),
}
"""Options that change no token, or whose content is in the fingerprint."""

S = TypeVar("S")


OptionsT = TypeVar("OptionsT", bound=ConversationOptions)


def cached(
    run: Run, kind: str, options: OptionsT, fill: Callable[[Path, OptionsT, int], None]
) -> Path:
    """Return the folder with tokenizer.json, tokens.npy, answers.npy, ends.npy and facts.json.

    `fill` writes them when they are new, by the options and the seed of the data. What comes after
    (sequence length, packing and padding) is no part of the key. Raises ScenarioError when rows,
    tokenizer or template cannot be used.
    """
    seed = run.scenario.data.seed
    templates = ("plain", "tokenizer", None)
    named = options.chat_template if options.chat_template in templates else "file"
    key: dict[str, Any] = {
        "form": CACHE_FORM,
        "options": options.model_dump(mode="json", exclude=NOT_TOKENS),
        "chat_template": named,
        "content": options.content_fingerprint(seed),
        "tokenizers": tokenizers.__version__,
        "transformers": transformers.__version__,
    }
    return run.cache(kind, key, lambda folder: fill(folder, options, seed))


def save(folder: Path, codec: Codec, encoded: Sequence[Encoded], facts: dict[str, Any]) -> None:
    """Write a tokenizer, all tokens in a row with where each text ends, and facts about them."""
    codec.tokenizer.save(str(folder / "tokenizer.json"))
    np.save(folder / "tokens.npy", np.concatenate([one.tokens for one in encoded]))
    np.save(folder / "answers.npy", np.concatenate([one.answers for one in encoded]))
    np.save(folder / "ends.npy", np.cumsum([len(one.tokens) for one in encoded], dtype=np.int64))
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf8")


def within_limit(
    found: Iterator[S], options: ConversationOptions, size: Callable[[S], int]
) -> tuple[list[S], bool]:
    """Return the samples whose text does not exceed the limit, and whether there are more."""
    left, read = options.limit_bytes, list[S]()
    for sample in islice(found, options.maximum_samples):
        left -= size(sample)
        if left < 0:
            return read, True
        read.append(sample)
    return read, len(read) != options.maximum_samples and options.leaves_files_out()


def limit_note(options: ConversationOptions, limited: bool) -> str:
    """Return the end of a summary of data that the limit has cut off; empty for the others."""
    if not limited:
        return ""
    return f"; only what data.limit_bytes {options.limit_bytes:,} lets be read"
