"""Dynamic masking: the tokens to predict in a sample, drawn from the seed of the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from accel_bench import Run
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data.tokenizing import load_tokenizer
from accel_bench.modeling.losses import IGNORED_LABEL

if TYPE_CHECKING:
    from accel_bench_text_tasks.tasks.masked_lm import MaskedLMOptions

MASKS = ("[MASK]", "<mask>")
"""Names of the mask token in tokenizers."""

MASKING_STREAM = 2
"""Offset of the seed for masks, which keeps the data's random numbers independent."""

Integers = npt.NDArray[np.int64]


class Masking:
    """Masking of samples, which depends only on the seed and the sample's index in training.

    All ranks thus know the labels of a whole step, and all stacks get the same labels.
    """

    def __init__(self, run: Run, options: MaskedLMOptions) -> None:
        dataset = run.dataset
        self._options = options
        self._seed = run.scenario.data.seed
        self._vocabulary: int = dataset.vocab_size
        path = getattr(dataset, "tokenizer_path", None)
        tokenizer = None if path is None else load_tokenizer(path)
        self._mask = _mask_id(run, options, tokenizer)
        self._special = _special_ids(tokenizer)
        self._words = np.setdiff1d(np.arange(self._vocabulary, dtype=np.int64), self._special)
        self.samples = self.masked = self.tokens = 0

    def __call__(self, tokens: Integers, place: int) -> tuple[Integers, Integers]:
        """Return the inputs and labels of a sample, each of the shape of its tokens.

        Special tokens are not predicted unless a sample holds nothing else. They are not used as
        random replacements. `place` is the sample's index since the first step.
        """
        options = self._options
        generator = np.random.default_rng((self._seed, MASKING_STREAM, place))
        special = np.isin(tokens, self._special)
        chosen = (generator.random(len(tokens)) < options.masked) & ~special
        if not chosen.any():
            (open_places,) = np.nonzero(special.all() | ~special)
            chosen[open_places[generator.integers(len(open_places))]] = True
        how = generator.random(len(tokens))
        random = self._words[generator.integers(len(self._words), size=len(tokens))]
        inputs = tokens.astype(np.int64)
        labels = np.where(chosen, inputs, IGNORED_LABEL)
        inputs[chosen & (how < options.replaced)] = self._mask
        drawn = chosen & (how >= options.replaced) & (how < options.replaced + options.random)
        inputs[drawn] = random[drawn]
        self.samples += 1
        self.masked += int(chosen.sum())
        self.tokens += len(tokens)
        return inputs, labels

    def evidence(self) -> dict[str, Any]:
        """Return JSON evidence with the fraction of masked tokens, and the mask token's id."""
        share = self.masked / self.tokens if self.tokens else 0.0
        return {"samples": self.samples, "masked_share": share, "mask_token_id": self._mask}


def _mask_id(run: Run, options: MaskedLMOptions, tokenizer: Any) -> int:
    """Return the mask token's id: the option's, the tokenizer's, or the first unused id.

    Raises ScenarioError if the model has no embedding for it.
    """
    mask = options.mask_token_id
    if mask is None and tokenizer is not None:
        ids = map(tokenizer.token_to_id, MASKS)
        mask = next((token for token in ids if token is not None), None)
    if mask is None:
        mask = run.dataset.vocab_size
    config = getattr(run.unwrapped_model, "config", None)
    known = getattr(config, "vocab_size", None)
    if isinstance(known, int) and mask >= known:
        raise ScenarioError(
            f"task masked-lm: the mask has the id {mask}, and the model {run.scenario.model.id!r} "
            f"a vocabulary of {known}; set task.mask_token_id, or a smaller data.vocab_size"
        )
    return mask


def _special_ids(tokenizer: Any) -> Integers:
    """Return the ids of the tokenizer's special tokens, as an array; it is empty if `tokenizer` is
    None."""
    added = {} if tokenizer is None else tokenizer.get_added_tokens_decoder()
    return np.array([number for number, token in added.items() if token.special], dtype=np.int64)
