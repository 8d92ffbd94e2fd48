"""`accel-bench estimate` answers before anything is rented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli.program import Done, call

SMALL = """\
name: small
model:
  id: llama-2-7b
  dtype: bfloat16
  overrides:
    {num_hidden_layers: 1, hidden_size: 512, num_attention_heads: 4, num_key_value_heads: 4}
data: {use: synthetic, sequence_length: 512}
train: {micro_batch_size: 4, precision: bf16-autocast}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A scenario of one small layer; the store, the prices and the folder are the test's own."""
    monkeypatch.setenv("ACCEL_BENCH_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return str(path)


def estimate(*arguments: str, code: int = 0) -> Done:
    """Call `estimate`, which must end with the code."""
    done = call("estimate", *arguments)
    assert done.code == code, done.err
    return done


def test_one_program_answers_fit_speed_limits_hours_and_money(file: str, tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("\n".join(map(str, range(1, 1001))))
    done = estimate(file, "--gpu", "h100-80gb", "--lengths", str(lengths), "--format", "json")
    document = json.loads(done.out)
    (row,) = document["estimates"]
    assert row["kind"] == "estimated"
    assert (row["gpu"], row["shape"]["sequence_length"]) == ("h100-sxm", 952)
    assert document["lengths"]["percentile_95"] == 950
    check_memory(row)
    assert 50 < row["largest_micro_batch_size"]["value"] < 65_536
    assert row["longest_sequence_length"]["value"] % 64 == 0
    speed, cost = row["speed"]["tokens_per_second"], row["cost"]
    assert document["for_tokens"] == document["lengths"]["tokens"]
    assert row["hours"]["low"] == pytest.approx(document["for_tokens"] / speed["high"] / 3600)
    dollars = cost["usd_per_hour"] / (speed["high"] * 3600 / 1e6)
    assert cost["usd_per_million_tokens"]["low"] == pytest.approx(dollars)
    assert row["answer"].startswith("baseline with 4 x 952 tokens fits on h100-sxm: it needs")


def check_memory(row: dict[str, Any]) -> None:
    """Parts by hand: bfloat16 weights, and AdamW's two values in their dtype."""
    matrices = 4 * 512 * 512 + 3 * 512 * 11008 + 2 * 32000 * 512
    parameters = matrices + 3 * 512
    parts = row["memory"]["parts"]
    assert row["parameters"] == row["trained_parameters"] == parameters
    assert parts["weights"] == pytest.approx(2 * parameters, rel=1e-3)
    assert parts["optimizer state"] == pytest.approx(4 * parameters, rel=1e-3)
    # Logits in bfloat16 and their copy in float32 at least.
    assert parts["logits and loss"] >= 4 * 951 * 32000 * 6
    assert sum(parts.values()) == row["memory"]["tensor_bytes"]
    assert row["memory"]["fit"] == "fits"


def test_fits_answers_in_words_with_the_nearest_that_does(file: str) -> None:
    done = estimate(file, "--fits", "t4", "--set", "train.micro_batch_size=256", code=1)
    sentence = " ".join(done.out.split())
    assert "baseline with 256 x 512 tokens does not fit on t4: it needs" in sentence
    assert "of 16.0 GiB. The nearest that does: train.micro_batch_size=" in sentence
    assert "train.gradient_accumulation=" in sentence


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--gpu", "t4", "--fits", "t4"], "--fits names the device already"),
        (["--gpu", "h1000"], "'h1000' fits no device of the table"),
        (["--for-tokens", "0"], "--for-tokens must be a positive number"),
        (["--lengths", "nowhere.txt"], "'nowhere.txt' cannot be read"),
    ],
)
def test_bad_options_are_errors_before_anything_starts(
    file: str, arguments: list[str], problem: str
) -> None:
    assert problem in estimate(file, *arguments, code=2).err
