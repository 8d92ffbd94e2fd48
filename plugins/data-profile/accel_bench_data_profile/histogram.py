"""The histogram of sample lengths: counts alone, in a file of about 2 kB that can be shared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from accel_bench import Options
from accel_bench.errors import ScenarioError

EXACT = 16
"""Length below which each length has a bin of its own."""

PARTS = 8
"""Bins of each factor of two above that."""

SCHEMA = 1
"""Version of the file."""

MAXIMUM_BYTES = 64 * 2**10
"""Largest file that is read; one with every bin has 6 kB."""

LONGEST = 16_777_216
"""Largest length of a sample in tokens, as of `data.sequence_length`."""

MOST_SAMPLES = 10_000_000_000
"""Largest number of samples of a file."""


class LengthBin(Options):
    """Samples whose lengths are near one another."""

    shortest: int = Field(ge=1, le=LONGEST)
    """Least length of the bin in tokens."""

    samples: int = Field(ge=1, le=MOST_SAMPLES)
    """Number of samples."""

    tokens: int = Field(ge=1, le=MOST_SAMPLES * LONGEST)
    """Sum of their lengths."""


class LengthHistogram(Options):
    """Lengths of the samples of a data set, by bins: a mean is exact, a length within an eighth."""

    bins: tuple[LengthBin, ...] = Field(min_length=1)
    """Bins that hold samples, from the shortest."""

    @property
    def samples(self) -> int:
        """Number of samples."""
        return sum(one.samples for one in self.bins)

    @property
    def tokens(self) -> int:
        """Sum of all lengths in tokens."""
        return sum(one.tokens for one in self.bins)


def shortest_of_bin(length: int) -> int:
    """Return the least length of the bin that a length is in."""
    if length < EXACT:
        return length
    step = 1 << (length.bit_length() - 1)
    width = step // PARTS
    return step + (length - step) // width * width


def longest_of_bin(shortest: int) -> int:
    """Return the greatest length of the bin that begins with a length."""
    return (
        shortest if shortest < EXACT else shortest + (1 << shortest.bit_length() - 1) // PARTS - 1
    )


def histogram_of(lengths: Iterable[int]) -> LengthHistogram:
    """Return the histogram of lengths in tokens. Raises ScenarioError without samples."""
    samples, tokens = Counter[int](), Counter[int]()
    for length, count in Counter(lengths).items():
        if length < 1:
            continue
        place = shortest_of_bin(length)
        samples[place] += count
        tokens[place] += count * length
    if not samples:
        raise ScenarioError("the data hold no sample")
    return LengthHistogram(
        bins=tuple(
            LengthBin(shortest=place, samples=samples[place], tokens=tokens[place])
            for place in sorted(samples)
        )
    )


def text_of(histogram: LengthHistogram) -> str:
    """Return the text of the file: numbers alone."""
    rows = [[one.shortest, one.samples, one.tokens] for one in histogram.bins]
    document = {
        "schema_version": SCHEMA,
        "unit": "tokens",
        "samples": histogram.samples,
        "tokens": histogram.tokens,
        "bins": rows,
    }
    return json.dumps(document, separators=(",", ":")) + "\n"


def read_histogram(path: Path) -> LengthHistogram:
    """Return the histogram of a file. Raises ScenarioError for another file."""
    try:
        with path.open("rb") as file:
            content = file.read(MAXIMUM_BYTES + 1)
        if len(content) > MAXIMUM_BYTES:
            raise ValueError("it is too large")
        document = json.loads(content)
        if document["schema_version"] != SCHEMA or document["unit"] != "tokens":
            raise ValueError("it is of another version")
        bins = [
            dict(zip(("shortest", "samples", "tokens"), row, strict=True))
            for row in document["bins"]
        ]
        found = LengthHistogram.model_validate_json(json.dumps({"bins": bins}))
        _check(found, document)
    except OSError as error:
        raise ScenarioError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, RecursionError, ValidationError) as error:
        problem = str(error).splitlines()[0]
        raise ScenarioError(
            f"{path} is no profile of `accel-bench data profile`: {problem}"
        ) from None
    return found


def _check(found: LengthHistogram, document: dict[str, Any]) -> None:
    """Raise ValueError for counts that contradict one another."""
    starts = [one.shortest for one in found.bins]
    if starts != sorted({shortest_of_bin(one) for one in starts}):
        raise ValueError("its bins are others")
    for one in found.bins:
        if not one.shortest <= one.tokens / one.samples <= longest_of_bin(one.shortest):
            raise ValueError("a bin has other tokens than its samples can have")
    if (document["samples"], document["tokens"]) != (found.samples, found.tokens):
        raise ValueError("its totals are others than those of its bins")
