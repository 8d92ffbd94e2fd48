"""Histogram of sample lengths, stored in a file of about 2 kB that holds no text of the samples."""

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
"""Length in tokens below which each length has its own bin."""

PARTS = 8
"""Number of bins between a power of two and the next, for lengths of at least `EXACT`."""

SCHEMA = 1
"""Version of the file format."""

MAXIMUM_BYTES = 64 * 2**10
"""Maximum bytes of a file that is read; a file with every possible bin has 6 kB."""

LONGEST = 16_777_216
"""Maximum length of a sample in tokens, as for `data.sequence_length`."""

MOST_SAMPLES = 10_000_000_000
"""Maximum number of samples in a file."""


class LengthBin(Options):
    """Bin of the histogram: samples whose lengths are in a range, and their tokens."""

    shortest: int = Field(ge=1, le=LONGEST)
    """Shortest length in tokens that belongs to the bin."""

    samples: int = Field(ge=1, le=MOST_SAMPLES)
    """Number of samples in the bin."""

    tokens: int = Field(ge=1, le=MOST_SAMPLES * LONGEST)
    """Sum of the samples' lengths in tokens."""


class LengthHistogram(Options):
    """Histogram of a data set's sample lengths in tokens.

    The mean length in each bin is exact; a single length is known to within an eighth of it.
    """

    bins: tuple[LengthBin, ...] = Field(min_length=1)
    """Nonempty bins, from the shortest lengths to the longest."""

    @property
    def samples(self) -> int:
        """Total number of samples."""
        return sum(bucket.samples for bucket in self.bins)

    @property
    def tokens(self) -> int:
        """Sum of all samples' lengths in tokens."""
        return sum(bucket.tokens for bucket in self.bins)


def shortest_of_bin(length: int) -> int:
    """Return the shortest length of the bin that contains `length`, both in tokens."""
    if length < EXACT:
        return length
    step = 1 << (length.bit_length() - 1)
    width = step // PARTS
    return step + (length - step) // width * width


def longest_of_bin(shortest: int) -> int:
    """Return the longest length of the bin whose shortest length is `shortest`, both in tokens."""
    return (
        shortest if shortest < EXACT else shortest + (1 << shortest.bit_length() - 1) // PARTS - 1
    )


def histogram_of(lengths: Iterable[int]) -> LengthHistogram:
    """Return the histogram of sample lengths in tokens; lengths below 1 are left out.

    Raises ScenarioError if no length is left.
    """
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
    """Return the content of a profile's file: a histogram as JSON text."""
    rows = [[bucket.shortest, bucket.samples, bucket.tokens] for bucket in histogram.bins]
    document = {
        "schema_version": SCHEMA,
        "unit": "tokens",
        "samples": histogram.samples,
        "tokens": histogram.tokens,
        "bins": rows,
    }
    return json.dumps(document, separators=(",", ":")) + "\n"


def read_histogram(path: Path) -> LengthHistogram:
    """Return the histogram in a profile's file. Raises ScenarioError if the file holds none."""
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
        profile = LengthHistogram.model_validate_json(json.dumps({"bins": bins}))
        _check(profile, document)
    except OSError as error:
        raise ScenarioError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, RecursionError, ValidationError) as error:
        problem = str(error).splitlines()[0]
        raise ScenarioError(
            f"{path} is no profile of `accel-bench data profile`: {problem}"
        ) from None
    return profile


def _check(found: LengthHistogram, document: dict[str, Any]) -> None:
    """Raise ValueError if the bins of a file, its samples and its tokens contradict one another.

    `document` is the file's JSON content, which also has the totals of samples and tokens.
    """
    starts = [bucket.shortest for bucket in found.bins]
    if starts != sorted({shortest_of_bin(start) for start in starts}):
        raise ValueError("its bins are others")
    for bucket in found.bins:
        if not bucket.shortest <= bucket.tokens / bucket.samples <= longest_of_bin(bucket.shortest):
            raise ValueError("a bin has other tokens than its samples can have")
    if (document["samples"], document["tokens"]) != (found.samples, found.tokens):
        raise ValueError("its totals are others than those of its bins")
