"""Datasets of pairs of token sequences, such as texts and translations, and their batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import tokenizers
from tokenizers import Tokenizer

from accel_bench import Batch, Run, TokenCounts, model_config
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data.batch_plan import BatchPlan, Integers
from accel_bench.modeling.data.token_batches import (
    IGNORED_LABEL,
    Tokens,
    check_vocabulary,
    pinned,
)
from accel_bench.modeling.data.tokenizing import train_bpe

if TYPE_CHECKING:
    from accel_bench.modeling.data.sample_batches import Collate, Step

PAD, END = "<|pad|>", "<|endoftext|>"
"""Tokens for padding and for the end of a text."""

PAD_ID, END_ID = 0, 1
"""Default token ids of padding and of the end of a text."""

UNUSED = "<|unused {}|>"
"""Placeholder token for ids that lie below the model's padding and end ids but are not used."""

MOST_SPECIAL = 64
"""Largest token id, exclusive, that may be a model's padding or end."""

TRAINING_TEXTS = 2000
"""Number of text pairs, evenly spaced, on which a tokenizer is trained."""

FORMS = ("labels", "stacked")
"""Batch layouts of tasks (`Task.pairs`): second texts as labels, or stacked below the first."""

CACHE_FORM = 2
"""Version of the cached files' format, which is part of the cache key."""

Texts: TypeAlias = Sequence[tuple[str, str]]
"""Pairs of texts."""


@dataclass(frozen=True)
class PairDataset:
    """Dataset of pairs, stored as slices of one flat array that may be memory-mapped."""

    tokens: Tokens
    """Token ids of all texts, shape (tokens,)."""

    bounds: Integers
    """Start and end in `tokens` of both sequences of each pair, shape (pairs, 4)."""

    sequence_length: int
    """Maximum number of tokens of a sequence."""

    vocab_size: int
    """Size of the tokenizer's vocabulary."""

    pad_token_id: int
    fingerprint: str
    end_token_id: int = END_ID
    more_samples: str = "bring more data"
    tokenizer_path: Path | None = None

    def __len__(self) -> int:
        return len(self.bounds)

    @property
    def lengths(self) -> Integers:
        """Number of tokens of each pair's first sequence, shape (pairs,)."""
        return self._cut(self.bounds[:, 1] - self.bounds[:, 0])

    @property
    def second_lengths(self) -> Integers:
        """Number of tokens of each pair's second sequence, shape (pairs,)."""
        return self._cut(self.bounds[:, 3] - self.bounds[:, 2])

    def pair(self, index: int) -> tuple[Tokens, Tokens]:
        """Return the token ids of both sequences of the pair at `index`. A truncated sequence keeps
        its end token."""
        first, end, second, last = self.bounds[index]
        return self._sequence(first, end), self._sequence(second, last)

    def _sequence(self, start: int, end: int) -> Tokens:
        if end - start <= self.sequence_length:
            return self.tokens[start:end]
        kept = self.tokens[start : start + self.sequence_length].copy()
        kept[-1] = self.tokens[end - 1]
        return kept

    def _cut(self, lengths: Integers) -> Integers:
        return np.minimum(lengths, self.sequence_length)


def collate_of(run: Run, plan: BatchPlan) -> Collate:
    """Return the function that makes micro-batches of `run.dataset` for the layout of the task.

    `plan` has the padding. Raises ScenarioError for a task that reads no pairs, or a model with too
    few token ids.
    """
    form, dataset = _form_of(run), run.dataset
    check_vocabulary(run)
    if hasattr(run.unwrapped_model, "config"):
        _check_special_tokens(run.unwrapped_model.config, dataset, form)
    make = _with_labels if form == "labels" else _stacked

    def collate(samples: Integers, step: Step) -> Batch:
        of_step = dataset.second_lengths[step.samples]
        supervised = len(of_step) if form == "stacked" else int(of_step.sum())
        return make([dataset.pair(int(sample)) for sample in samples], dataset, plan, supervised)

    return collate


def simulated_batch(run: Run, pairs: int, length: int) -> Batch:
    """Return a micro-batch of zeros with `pairs` pairs of `length` tokens per sequence, in the
    layout of the run's task."""
    import torch

    form = _form_of(run)
    shape = (pairs if form == "labels" else 2 * pairs, length)
    names = ("input_ids", "attention_mask", *(["labels"] if form == "labels" else []))
    tensors = {name: torch.zeros(shape, dtype=torch.long) for name in names}
    supervised = pairs * (length if form == "labels" else 1)
    tokens = 2 * pairs * length
    return Batch(tensors, pairs, TokenCounts(tokens, tokens, supervised), supervised)


def _form_of(run: Run) -> str:
    """Return the batch layout of the run's task, `labels` or `stacked`. Raises ScenarioError for a
    task that reads no pairs."""
    form = getattr(run.task, "pairs", None)
    if form not in FORMS:
        raise ScenarioError(
            f"data {run.scenario.data.use!r} holds pairs, which task {run.scenario.task.use!r} "
            "does not read; choose a task such as seq2seq-lm or embedding, or other data"
        )
    return str(form)


def _check_special_tokens(config: Any, dataset: PairDataset, form: str) -> None:
    """Raise ScenarioError if a model's padding or end ids differ from the dataset's.

    `config` is the model's configuration. Only the batch layout (`form`) `labels` is checked: its
    decoder starts with a configured token, and the model does not train its padding's embedding.
    """
    if form != "labels" or dataset.tokenizer_path is None:
        return
    ids = {"pad_token_id": dataset.pad_token_id, "eos_token_id": dataset.end_token_id}
    own = {name: getattr(config, name, None) for name in ids}
    other = {name: value for name, value in own.items() if value is not None and value != ids[name]}
    if other:
        named = ", ".join(f"{name} {value}" for name, value in other.items())
        raise ScenarioError(
            f"the model has {named}, but these pairs have padding with the id "
            f"{dataset.pad_token_id} and end with the id {dataset.end_token_id}: set "
            f"model.overrides to {{pad_token_id: {PAD_ID}, bos_token_id: {END_ID}, eos_token_id: "
            f"{END_ID}, decoder_start_token_id: {END_ID}}}"
        )


def _with_labels(
    pairs: Sequence[tuple[Tokens, Tokens]], dataset: PairDataset, plan: BatchPlan, supervised: int
) -> Batch:
    """Return a batch of first texts as inputs, shape (pairs, length), and of second texts as
    labels.

    `supervised` is the number of labels in the whole optimizer step.
    """
    firsts, seconds = zip(*pairs, strict=True)
    ids, mask = _padded(firsts, dataset, plan, dataset.pad_token_id)
    labels, _ = _padded(seconds, dataset, plan, IGNORED_LABEL)
    targets = sum(map(len, seconds))
    counts = TokenCounts(
        processed=ids.size + labels.size, real=int(mask.sum()) + targets, supervised=targets
    )
    arrays = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return _batch(arrays, len(pairs), counts, supervised, plan)


def _stacked(
    pairs: Sequence[tuple[Tokens, Tokens]], dataset: PairDataset, plan: BatchPlan, supervised: int
) -> Batch:
    """Return a batch of all first sequences above all second ones, of shape (2 x pairs, length).

    `supervised` is the number of pairs in the whole optimizer step.
    """
    firsts, seconds = zip(*pairs, strict=True)
    ids, mask = _padded([*firsts, *seconds], dataset, plan, dataset.pad_token_id)
    counts = TokenCounts(processed=ids.size, real=int(mask.sum()), supervised=len(pairs))
    arrays = {"input_ids": ids, "attention_mask": mask}
    return _batch(arrays, len(pairs), counts, supervised, plan)


def _padded(
    rows: Sequence[Tokens], dataset: PairDataset, plan: BatchPlan, filler: int
) -> tuple[Integers, Integers]:
    """Return the rows padded with `filler`, and the mask of real tokens, both of shape (rows,
    length)."""
    longest = max(map(len, rows))
    width = dataset.sequence_length if plan.padding == "max_length" else longest
    ids = np.full((len(rows), width), filler, dtype=np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
    lengths = np.array([len(row) for row in rows])
    return ids, (np.arange(width) < lengths[:, None]).astype(np.int64)


def _batch(
    arrays: dict[str, Integers], pairs: int, counts: TokenCounts, supervised: int, plan: BatchPlan
) -> Batch:
    import torch

    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return Batch(pinned(tensors, plan), pairs, counts, supervised)


def tokenized(
    run: Run, kind: str, key: dict[str, Any], read: Callable[[], Texts], settings: BPESettings
) -> Path:
    """Return the cache folder with the tokens of text pairs, which is filled if new.

    `kind` is the name of its parent folder, `key` includes everything that determines the texts,
    and `read` returns them.
    """
    settings = replace(settings, ids=special_ids(model_config(run.scenario.model) or {}))
    whole = {
        "form": CACHE_FORM,
        "settings": asdict(settings),
        "tokenizers": tokenizers.__version__,
        **key,
    }
    return run.cache(kind, whole, lambda folder: _fill(folder, read(), settings))


@dataclass(frozen=True)
class BPESettings:
    """Settings of the byte-level BPE tokenizer that is trained on text pairs."""

    vocab_size: int
    """Maximum vocabulary size of the tokenizer."""

    before: tuple[str, str] = ("", "")
    """Token before each first and each second text, or an empty text for no token."""

    ids: tuple[int, int] = (PAD_ID, END_ID)
    """Token ids of padding and of the end of a text."""


def special_ids(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the ids of padding and end in a model's configuration, or 0 and 1 if they are missing,
    equal or too large."""
    pad, end = config.get("pad_token_id"), config.get("eos_token_id")
    if type(pad) is not int or type(end) is not int or pad == end:
        return PAD_ID, END_ID
    return (pad, end) if 0 <= min(pad, end) and max(pad, end) < MOST_SPECIAL else (PAD_ID, END_ID)


def _fill(folder: Path, texts: Texts, settings: BPESettings) -> None:
    """Train a tokenizer on the texts, and write it and all tokens into an empty folder. Raises
    ScenarioError without texts."""
    if not texts:
        raise ScenarioError("data: there is no pair of texts; name others")
    tokenizer = _train(texts, settings)
    encoded = [
        [*_special(tokenizer, settings.before[side]), *encoding.ids, *_special(tokenizer, END)]
        for side in (0, 1)
        for encoding in tokenizer.encode_batch_fast(
            [pair[side] for pair in texts], add_special_tokens=False
        )
    ]
    rows = [row for pair in zip(encoded[: len(texts)], encoded[len(texts) :], strict=True)
            for row in pair]  # fmt: skip
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    starts = np.concatenate((np.zeros(1, dtype=np.int64), ends[:-1]))
    bounds = np.stack((starts[::2], ends[::2], starts[1::2], ends[1::2]), axis=1)
    tokens = np.concatenate([np.array(row, dtype=np.uint32) for row in rows])
    np.save(folder / "tokens.npy", tokens, allow_pickle=False)
    np.save(folder / "bounds.npy", bounds, allow_pickle=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    pad, end = settings.ids
    facts = {
        "vocab_size": max(tokenizer.get_vocab().values()) + 1,
        "pad_token_id": pad,
        "end_token_id": end,
    }
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf8")


def _train(texts: Texts, settings: BPESettings) -> Tokenizer:
    placed = dict(zip(settings.ids, (PAD, END), strict=True))
    numbered = [placed.get(number, UNUSED.format(number)) for number in range(max(placed) + 1)]
    special = dict.fromkeys((*numbered, *filter(None, settings.before)))
    chosen = texts[:: max(1, len(texts) // TRAINING_TEXTS)]
    tokenizer = train_bpe((text for pair in chosen for text in pair), settings.vocab_size, special)
    # The name of a special token inside a text is text like any other.
    tokenizer.encode_special_tokens = True
    return tokenizer


def _special(tokenizer: Tokenizer, token: str) -> list[int]:
    number = tokenizer.token_to_id(token) if token else None
    return [] if number is None else [int(number)]


def load(folder: Path, sequence_length: int, more_samples: str) -> PairDataset:
    """Return cached tokens, memory-mapped, as pairs of at most `sequence_length` tokens each.

    `folder` is as `tokenized` returns it, and `more_samples` advice for error messages.
    """
    facts = json.loads((folder / "facts.json").read_text(encoding="utf8"))
    return PairDataset(
        tokens=np.load(folder / "tokens.npy", mmap_mode="r", allow_pickle=False),
        bounds=np.load(folder / "bounds.npy", allow_pickle=False),
        sequence_length=sequence_length,
        vocab_size=facts["vocab_size"],
        pad_token_id=facts["pad_token_id"],
        end_token_id=facts["end_token_id"],
        fingerprint=folder.name,
        more_samples=more_samples,
        tokenizer_path=folder / "tokenizer.json",
    )


def evidence(dataset: PairDataset, padding: str) -> dict[str, Any]:
    """Return JSON evidence with counts of the pairs and their tokens. `padding` is the value of the
    option `padding`."""
    longer = (dataset.bounds[:, 1::2] - dataset.bounds[:, ::2]).max(axis=1)
    return {
        "pairs": len(dataset),
        "samples_cut": int((longer > dataset.sequence_length).sum()),
        "first_tokens": int(dataset.lengths.sum()),
        "second_tokens": int(dataset.second_lengths.sum()),
        "vocab_size": dataset.vocab_size,
        "sequences_per_sample": 2,
        "constant_length": padding == "max_length",
        "fingerprint": dataset.fingerprint,
    }
