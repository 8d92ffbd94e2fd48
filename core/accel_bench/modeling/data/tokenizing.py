"""Training and loading of tokenizers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from accel_bench.errors import ScenarioError
from accel_bench.modeling.data.tokenizer_options import TokenizerOptions

PAD = "<|pad|>"
"""Padding token of a trained tokenizer."""

PAD_NAMES = (PAD, "<pad>", "[PAD]")
"""Padding tokens that a given tokenizer may have; the default is its end-of-text token."""


def make_tokenizer(documents: list[str], options: TokenizerOptions) -> Tokenizer:
    """Return the tokenizer that the options name, or train it on the documents."""
    path = options.tokenizer_path()
    return train_tokenizer(documents, options) if path is None else load_tokenizer(path)


def train_tokenizer(documents: list[str], options: TokenizerOptions) -> Tokenizer:
    """Return a byte-level BPE trained on evenly spaced documents, at most `tokenizer_files`."""
    count = min(len(documents), options.tokenizer_files)
    chosen = (documents[index * len(documents) // count] for index in range(count))
    return train_bpe(chosen, options.vocab_size, (options.end_of_text, PAD))


def train_bpe(texts: Iterable[str], vocab_size: int, special_tokens: Iterable[str]) -> Tokenizer:
    """Return a byte-level BPE trained on texts; special tokens have the first ids, in order."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*special_tokens],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer in a tokenizer.json, with truncation and padding switched off."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing narrower.
        raise ScenarioError(f"data.tokenizer {path}: not a tokenizer.json: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def end_of_text(tokenizer: Tokenizer, options: TokenizerOptions) -> int:
    """Return the id of the token that ends a document, or raise ScenarioError if there is none."""
    text = options.end_of_text
    if "end_of_text" not in options.model_fields_set:
        text = _own_end(options.tokenizer_folder()) or text
    token_id = tokenizer.token_to_id(text)
    if token_id is None:
        special = (token.content for token in tokenizer.get_added_tokens_decoder().values())
        raise ScenarioError(
            f"data.end_of_text {text!r} is not a token of {options.tokenizer_name()}; "
            f"its special tokens are {', '.join(islice(special, 20)) or 'none'}"
        )
    return int(token_id)


def _own_end(folder: Path | None) -> str | None:
    """Return the end-of-text token of a saved tokenizer; None if its folder names none."""
    path = folder / "tokenizer_config.json" if folder else None
    if path is None or not path.is_file():
        return None
    try:
        saved = json.loads(path.read_text(encoding="utf8"))
    except ValueError as error:
        raise ScenarioError(f"data.tokenizer: {path} is no JSON: {error}") from error
    named = saved.get("eos_token") or saved.get("sep_token")
    return named.get("content") if isinstance(named, dict) else named


def pad_token(tokenizer: Tokenizer, end: int) -> int:
    """Return the id of the padding token, or `end` for a tokenizer without a padding token."""
    known = (tokenizer.token_to_id(name) for name in PAD_NAMES)
    return next((int(token_id) for token_id in known if token_id is not None), end)
