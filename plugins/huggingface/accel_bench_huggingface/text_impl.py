"""Tokenization of documents into the cache, and their loading as samples."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import Tokenizer

from accel_bench import Run
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data import tokenizing
from accel_bench.modeling.data.batch_plan import Integers
from accel_bench.modeling.data.text_sources import read_documents
from accel_bench.modeling.data.token_batches import TokenDataset, Tokens, windows
from accel_bench_huggingface.text import TextOptions, content_fingerprint

CACHE_FORM = 2
"""Version of the files in a cached folder, which is a part of the cache key."""

NOT_TOKENS = {"path", "packing", "padding", "tokenizer", "tokenizer_revision"}
"""Options left out of the cache key: they change no token, or a fingerprint has their content."""

DOCUMENTS_AT_ONCE = 256
"""Number of documents that are passed to the tokenizer in one call."""


@dataclass(frozen=True)
class TokenizedFacts:
    """Numbers of documents, characters and tokens in a cached folder, stored as `facts.json`."""

    documents: int
    characters: int

    tokens: int
    """Number of tokens of all documents, without end-of-text tokens."""

    vocab_size: int
    """Upper bound of token ids, exclusive."""

    pad_token_id: int

    limited: bool
    """True if `data.limit_bytes` ended the reading before the end of the text."""


def tokenized(run: Run, options: TextOptions) -> Path:
    """Return the cache folder with tokenizer.json, tokens.npy, ends.npy and facts.json.

    If the cache lacks the folder, the text is tokenized into it. The cache key omits later settings
    (sequence length, packing, padding), so that a sweep over them tokenizes once. Raises
    ScenarioError for unusable text or tokenizer.
    """
    chosen = options.model_dump(mode="json", exclude=NOT_TOKENS)
    key: dict[str, Any] = {
        "form": CACHE_FORM,
        "options": chosen,
        "content": content_fingerprint(options),
        "tokenizers": tokenizers.__version__,
    }
    return run.cache("text", key, lambda folder: fill(folder, options))


def fill(folder: Path, options: TextOptions) -> None:
    """Read and tokenize the documents that the options select, and write the files of `tokenized`.

    Raises ScenarioError if there is no text or no token.
    """
    documents = _read(options)
    tokenizer = tokenizing.make_tokenizer(documents, options)
    end = tokenizing.end_of_text(tokenizer, options)
    tokens, ends = _encode(tokenizer, documents, end)
    if len(tokens) == len(documents):
        raise ScenarioError(
            f"data.tokenizer {options.tokenizer_name()}: makes no token of this text"
        )
    facts = TokenizedFacts(
        documents=len(documents),
        characters=sum(map(len, documents)),
        tokens=len(tokens) - len(documents),
        vocab_size=max(tokenizer.get_vocab().values()) + 1,
        pad_token_id=tokenizing.pad_token(tokenizer, end),
        limited=_is_limited(options, documents),
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    np.save(folder / "tokens.npy", tokens, allow_pickle=False)
    np.save(folder / "ends.npy", ends, allow_pickle=False)
    (folder / "facts.json").write_text(json.dumps(asdict(facts)), encoding="utf8")


def load(folder: Path, options: TextOptions, sequence_length: int) -> TokenDataset:
    """Return a cached folder's samples of at most `sequence_length` tokens, mapped into memory."""
    tokens = np.load(folder / "tokens.npy", mmap_mode="r", allow_pickle=False)
    ends = np.load(folder / "ends.npy", allow_pickle=False)
    starts, lengths = windows(ends, sequence_length, options.packing)
    if options.packing:
        more = "raise data.limit_bytes, bring more text, or shorten data.sequence_length"
    else:
        more = "raise data.limit_bytes, bring more documents, or set data.packing: true"
    facts = _facts(folder)
    return TokenDataset(
        tokens=tokens,
        starts=starts,
        lengths=lengths,
        sequence_length=sequence_length,
        vocab_size=facts.vocab_size,
        pad_token_id=facts.pad_token_id,
        fingerprint=folder.name,
        more_samples=more,
        tokenizer_path=folder / "tokenizer.json",
    )


def evidence(folder: Path, dataset: TokenDataset, options: TextOptions) -> dict[str, Any]:
    """Return JSON evidence: sizes of the text and the tokens, and the number of samples."""
    facts = _facts(folder)
    return {
        **asdict(facts),
        "samples": len(dataset),
        "characters_per_token": facts.characters / facts.tokens,
        "fingerprint": dataset.fingerprint,
        "tokenizer": options.tokenizer_name(),
        "constant_length": options.packing or options.padding == "max_length",
    }


def _facts(folder: Path) -> TokenizedFacts:
    return TokenizedFacts(**json.loads((folder / "facts.json").read_text(encoding="utf8")))


def _read(options: TextOptions) -> list[str]:
    texts = read_documents(
        options.files(),
        field=options.field,
        limit_bytes=options.limit_bytes,
        functions=options.documents == "functions",
        skip_undecodable=options.source == "stdlib",
    )
    documents = list(islice(texts, options.maximum_documents))
    if not documents:
        raise ScenarioError(
            f"data: no text in the first {options.limit_bytes} bytes of "
            f"{options.path or 'the standard library'}: name other files in data.path, or raise "
            "data.limit_bytes"
        )
    return documents


def _is_limited(options: TextOptions, documents: list[str]) -> bool:
    """Return whether the limit ended the reading: within a file, or before all files were read."""
    if len(documents) == options.maximum_documents:
        return False
    read = sum(len(document.encode()) for document in documents)
    # The last character may be cut, of four bytes at most.
    return read > options.limit_bytes - 4 or options.leaves_files_out()


def _encode(tokenizer: Tokenizer, documents: list[str], end: int) -> tuple[Tokens, Integers]:
    """Return the tokens of all documents in one array, and the end index of each document.

    The token `end` follows each document.
    """
    # The name of a special token inside a document is text like any other.
    tokenizer.encode_special_tokens = True
    pieces: list[Tokens] = []
    for first in range(0, len(documents), DOCUMENTS_AT_ONCE):
        some = documents[first : first + DOCUMENTS_AT_ONCE]
        encodings = tokenizer.encode_batch_fast(some, add_special_tokens=False)
        pieces += [np.array([*encoding.ids, end], dtype=np.uint32) for encoding in encodings]
    return np.concatenate(pieces), np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
