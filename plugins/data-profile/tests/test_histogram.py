"""The histogram: exact where it must be, small, and read with care."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from accel_bench_data_profile.histogram import (
    EXACT,
    PARTS,
    histogram_of,
    longest_of_bin,
    read_histogram,
    shortest_of_bin,
    text_of,
)
from accel_bench_data_profile.plugin_impl import draw
from hypothesis import given
from hypothesis import strategies as st

from accel_bench.errors import ScenarioError

LENGTHS = st.lists(st.integers(1, 16_777_216), min_size=1, max_size=300)


@given(LENGTHS)
def test_samples_and_tokens_are_exact_and_a_length_is_within_its_bin(lengths: list[int]) -> None:
    found = histogram_of(lengths)
    assert (found.samples, found.tokens) == (len(lengths), sum(lengths))
    for length in lengths:
        shortest = shortest_of_bin(length)
        assert shortest <= length <= max(shortest, math.ceil(shortest * (1 + 1 / PARTS)))
        assert length >= EXACT or shortest == length
        assert shortest <= length <= longest_of_bin(shortest)
        assert shortest_of_bin(longest_of_bin(shortest) + 1) == longest_of_bin(shortest) + 1


@given(LENGTHS)
def test_all_samples_drawn_have_the_tokens_of_the_data_set(lengths: list[int]) -> None:
    drawn = draw(histogram_of(lengths), len(lengths), seed=0)
    assert len(drawn) == len(lengths) and int(drawn.sum()) == sum(lengths)


def test_a_part_of_the_samples_has_the_distribution_of_all() -> None:
    lengths = np.exp(np.random.default_rng(0).normal(5, 1, 100_000)).astype(int) + 1
    drawn = draw(histogram_of(lengths.tolist()), 2048, seed=1)
    assert abs(drawn.mean() / lengths.mean() - 1) < 0.02
    for quantile in (0.1, 0.5, 0.9, 0.95):
        wanted = np.quantile(lengths, quantile)
        assert abs(np.quantile(drawn, quantile) / wanted - 1) < 0.13


def test_a_file_of_a_million_samples_has_about_two_kilobytes(tmp_path: Path) -> None:
    lengths = np.exp(np.random.default_rng(0).normal(6, 1, 1_000_000)).astype(int) + 1
    text = text_of(histogram_of(lengths.tolist()))
    assert len(text) < 2_200
    path = tmp_path / "lengths.json"
    path.write_text(text)
    assert text_of(read_histogram(path)) == text


def with_totals(samples: int, tokens: int, *bins: list[int]) -> str:
    """The text of a file with these counts."""
    counts = {"samples": samples, "tokens": tokens, "bins": bins}
    return json.dumps({"schema_version": 1, "unit": "tokens", **counts})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 2]",
        '{"schema_version": 9, "unit": "tokens", "bins": [[1, 1, 1]]}',
        '{"schema_version": 1, "unit": "tokens", "bins": []}',
        '{"schema_version": 1, "unit": "tokens", "bins": [[10, 5, 3]]}',
        '{"schema_version": 1, "unit": "tokens", "bins": [[10, -5, 50]]}',
        with_totals(2, 20, [10, 1, 10]),
        with_totals(5, 5000, [10, 5, 5000]),
        with_totals(1, 17, [17, 1, 17]),
        with_totals(2, 13, [9, 1, 9], [4, 1, 4]),
        "[" * 60_000,
        '{"schema_version": 1, "unit": "tokens", "bins": [[10, 99999999999999, 9e99]]}',
        json.dumps({"bins": [[1, 1, 1]] * 20_000}),
    ],
)
def test_another_file_is_refused_by_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=r"lengths\.json is no profile of"):
        read_histogram(path)
