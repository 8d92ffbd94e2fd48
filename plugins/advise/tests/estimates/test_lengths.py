"""A file of sample lengths gives the context length: the 95th percentile of the data."""

from __future__ import annotations

from pathlib import Path

import pytest
from accel_bench_advise.estimates.lengths import read_lengths, summarize_lengths

from accel_bench.errors import ScenarioError


@pytest.mark.parametrize("text", ["[3, 1, 2]", "3\n1\n2\n", "3, 1, 2", "\ufeff3 1;2"])
def test_a_list_and_plain_numbers_are_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "lengths"
    path.write_text(text, encoding="utf8")
    assert read_lengths(path) == [3, 1, 2]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "holds no lengths; write one number of tokens a line"),
        ("12 many", "'many' is no length of a sample"),
        ("12 0", "'0' is no length of a sample"),
        ("[1, true]", "True is no length of a sample"),
        ("[1,", "is no JSON list of lengths"),
        ("[" * 100_000, "is no JSON list of lengths"),
    ],
)
def test_what_is_no_length_is_an_error_that_names_it(
    text: str, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "lengths"
    path.write_text(text, encoding="utf8")
    with pytest.raises(ScenarioError, match="lengths") as caught:
        read_lengths(path)
    assert problem in str(caught.value)


def test_the_context_holds_95_percent_of_the_samples_by_hand() -> None:
    found = summarize_lengths([*range(1, 101)])
    assert (found.percentile_95, found.sequence_length, found.longest) == (95, 96, 100)
    assert found.truncated_fraction == 0.04  # 97, 98, 99 and 100
    assert found.tokens == sum(range(1, 101))
    kept = sum(range(1, 97)) + 4 * 96
    assert found.padding_fraction == pytest.approx(1 - kept / 9600)


def test_one_sample_is_its_own_percentile() -> None:
    assert summarize_lengths([17]).percentile_95 == 17
