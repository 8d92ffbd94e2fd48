"""Synthetic prompts that ask to sort words, with the sorted and an unsorted answer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import NamedTuple

ROWS = 2048
"""Default number of synthetic rows."""

SHORTEST, LONGEST = 3, 12
"""Minimum and maximum number of words in a prompt."""

DIGESTED_ROWS = 64
"""Number of rows in a digest; further rows follow from the same seed."""

WORDS = """
apple bear bird boat book bread bridge cake camp cat chair city cloud coat corn cup dance desk dog
door drum duck farm fire fish flag forest garden glass goat gold hand harbor hat hill honey horse
house ice island jacket key king lake lamp leaf lemon lion map milk moon mouse night ocean onion
paper pear piano plum queen rain river road rope rose salt sand school sea ship silver snow song
spoon star stone storm street sugar sun table tea tower train tree valley village voice wall water
wheel wind window winter wolf wood
""".split()


class SyntheticRow(NamedTuple):
    """Synthetic prompt with a chosen and a rejected answer."""

    where: str
    """Text `row N`, with the number of the row from 1."""

    prompt: str

    answer: str
    """Words of the prompt in alphabetical order, each after a space, as in the prompt."""

    rejected: str
    """Words of the prompt in another order."""


def synthetic_rows(seed: int, rows: int | None) -> Iterator[SyntheticRow]:
    """Yield synthetic rows determined by the seed: `rows` of them, or `ROWS` if that is None."""
    generator = Random(seed)
    for number in range(1, (rows or ROWS) + 1):
        words = generator.sample(WORDS, generator.randint(SHORTEST, LONGEST))
        right, wrong = sorted(words), sorted(words)
        while wrong == right:
            generator.shuffle(wrong)
        prompt = f"Sort:{_joined(words)}\nSorted:"
        yield SyntheticRow(f"row {number}", prompt, _joined(right), _joined(wrong))


def rows_digest(seed: int) -> str:
    """Return the SHA-256 of the first `DIGESTED_ROWS` synthetic rows of a seed, in hexadecimal."""
    first = islice(synthetic_rows(seed, None), DIGESTED_ROWS)
    return hashlib.sha256("\n".join(str(row) for row in first).encode()).hexdigest()


def _joined(words: list[str]) -> str:
    return "".join(f" {word}" for word in words)
