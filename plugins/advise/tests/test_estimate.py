"""`accel-bench estimate` answers before anything is rented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from accel_bench_advise.estimates.estimator import NO_STEP
from cli.program import Done, call

SMALL = """\
name: small
model:
  id: llama-2-7b
  dtype: bfloat16
  overrides:
    {num_hidden_layers: 1, hidden_size: 512, num_attention_heads: 4, num_key_value_heads: 4}
data: {use: synthetic, sequence_length: 512}
train: {precision: bf16-autocast}
sweep: {train.micro_batch_size: [4, 1024]}
"""
SWEPT = "data.sequence_length: [64, 128]"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A scenario of one small layer, at a small and a large batch, with a store of its own."""
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
    options = ["--lengths", str(lengths), "--format", "json"]
    document = json.loads(estimate(file, "--fits", "h100-80gb", *options, code=1).out)
    assert document["lengths"]["percentile_95"] == 950
    assert (document["for_tokens"], document["lengths"]["tokens"]) == (None, 500_500)
    small, large = document["estimates"]
    assert (small["gpu"], small["shape"]["sequence_length"]) == ("h100-sxm", 952)
    check_memory(small)
    assert small["for_tokens"] == 1000 * 952, "each sample is padded to the context"
    check_speed_and_money(small, small["for_tokens"])
    check_limits(small, large)


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
    assert (row["kind"], row["memory"]["fit"]) == ("estimated", "holds")


def check_speed_and_money(row: dict[str, Any], tokens: float) -> None:
    """Hours and dollars follow from the speed and the price."""
    speed, cost = row["speed"]["tokens_per_second"], row["cost"]
    assert 0 < speed["low"] < speed["high"]
    assert row["hours"]["low"] == pytest.approx(tokens / speed["high"] / 3600)
    dollars = cost["usd_per_hour"] / (speed["high"] * 3600 / 1e6)
    assert cost["usd_per_million_tokens"]["low"] == pytest.approx(dollars)
    assert cost["usd"]["high"] == pytest.approx(cost["usd_per_hour"] * row["hours"]["high"])


def check_limits(small: dict[str, Any], large: dict[str, Any]) -> None:
    """The batch that does not fit is larger than the largest that does, which both rows share."""
    most = small["largest_micro_batch_size"]
    assert most == large["largest_micro_batch_size"]
    assert 4 < most["value"] < large["shape"]["micro_batch_size"] == 1024
    assert small["longest_sequence_length"]["value"] % 64 == 0
    assert small["answer"].startswith(
        "baseline (train.micro_batch_size=4) with 4 x 952 tokens fits on"
    )
    nearest = large["nearest"]["settings"]
    assert nearest["train.micro_batch_size"] <= most["value"]
    assert 1024 == nearest["train.micro_batch_size"] * nearest["train.gradient_accumulation"]
    assert "1024 x 952 tokens does not fit on h100-sxm: it needs" in large["answer"]
    assert "The nearest that does: train.micro_batch_size=" in large["answer"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--gpu", "t4", "--fits", "t4"], "--fits names the device already"),
        (["--gpu", "h1000"], "'h1000' fits no device of the table"),
        (["--tokens", "0"], "--tokens must be a positive number"),
        (["--lengths", "nowhere.txt"], "'nowhere.txt' cannot be read"),
        (
            ["--lengths", "some.txt", "--set", "data.sequence_length=64"],
            "--lengths chooses data.sequence_length, which --set gives too",
        ),
    ],
)
def test_bad_options_are_errors_before_anything_starts(
    file: str, arguments: list[str], problem: str
) -> None:
    assert problem in estimate(file, *arguments, code=2).err


def test_lengths_and_a_swept_length_are_one_too_many(file: str, tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("8")
    path = Path(file)
    path.write_text(SMALL.replace("train.micro_batch_size: [4, 1024]", SWEPT))
    done = estimate(file, "--lengths", str(tmp_path / "lengths.txt"), code=2)
    assert "data.sequence_length, which the scenario's sweep gives too" in done.err


@pytest.mark.box
@pytest.mark.usefixtures("file")
def test_inference_has_no_step_to_estimate() -> None:
    done = estimate("inference-cpu", "--gpu", "l4", "--no-limits", "--format", "json", code=3)
    assert {one["problem"] for one in json.loads(done.out)["estimates"]} == {NO_STEP}


@pytest.mark.release
def test_devices_that_share_a_step_get_memory_and_no_speed(file: str) -> None:
    split = ["--set", "resources.devices=2", "--set", "parallel={use: mesh, tensor: 2}"]
    done = estimate(file, "--gpu", "h100-80gb", "--no-limits", "--format", "json", *split)
    row = json.loads(done.out)["estimates"][0]
    assert row["memory"]["fit"] == "holds"
    assert row["speed"] is row["cost"] is None
    assert "no speed and no money: devices that compute one batch together" in str(row["notes"])


@pytest.mark.release
def test_stored_runs_of_this_machine_calibrate_the_speed(file: str, tmp_path: Path) -> None:
    tiny = tmp_path / "tiny.yaml"
    tiny.write_text("""\
name: tiny
data: {use: synthetic, sequence_length: 64}
train: {micro_batch_size: 2}
measure: {warmup: 2, steps: 5, rounds: 1}
""")
    before = row_of(tiny)
    assert before["speed"]["basis"] == "roofline from a guess of what a CPU's cores do"
    done = call("run", str(tiny), "-q", "--format", "json")
    assert done.code == 0, done.err
    (stack,) = json.loads(done.out)["experiments"]
    after = row_of(tiny)
    assert after["speed"]["calibrated_by"] == [stack["experiment_id"]]
    speed = after["speed"]["tokens_per_second"]
    assert speed["low"] < stack["tokens_per_second"]["median"] < speed["high"]
    assert speed["high"] / speed["low"] < 1.3
    words = estimate(str(tiny), "--no-limits").out
    assert "ESTIMATED" in words
    assert "roofline, calibrated by 1 stored experiment on this device" in " ".join(words.split())


def row_of(file: Path) -> dict[str, Any]:
    """Return the one estimate of a scenario on this machine."""
    done = estimate(str(file), "--no-limits", "--format", "json", "--set", "resources.device=cpu")
    (row,) = json.loads(done.out)["estimates"]
    return dict(row)
