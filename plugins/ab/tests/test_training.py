"""What `accel-bench ab` says of trainings that differ, and of one with other threads."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.program import call

LOOP = Path(__file__).parent / "trainers" / "plain_loop.py"
STEPS = 150
"""So many that one step more or less is less than 1 % of all tokens."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return the rows of a session of the loop and its forms, by what differs."""
    folder = tmp_path_factory.mktemp("session")
    words = [
        "--by",
        "tokens",
        "--rounds",
        "1",
        "--format",
        "json",
        "--vary",
        "v=none,skipped,halved,threads",
    ]
    loop = [sys.executable, str(LOOP), str(STEPS), "4", "{v}"]
    done = call("ab", *words, "--", *loop, folder=folder, OMP_NUM_THREADS="1")
    assert done.code == 0, done.err
    return {one["stack"]: one for one in json.loads(done.out)["experiments"]}


def test_a_skipped_optimizer_step_is_a_different_training(
    found: dict[str, dict[str, Any]],
) -> None:
    row = found["v.skipped"]
    assert row["training"] == "different"
    assert row["training_reasons"][0] == (
        "a step holds 2 times the baseline's real tokens (128 against 64)"
    )


def test_a_halved_batch_is_a_different_training(found: dict[str, dict[str, Any]]) -> None:
    row = found["v.halved"]
    assert row["training"] == "different"
    assert row["update_verdict"] == "different"


def test_a_command_under_autocast_has_the_limits_of_16_bits(tmp_path: Path) -> None:
    loop = [sys.executable, str(LOOP), "60", "4", "{v}"]
    words = ["--rounds", "1", "--format", "json", "--vary", "v=none,autocast"]
    done = call("ab", *words, "--", *loop, folder=tmp_path, OMP_NUM_THREADS="1")
    plain, autocast = json.loads(done.out)["experiments"]
    assert (autocast["loss_tolerance"], autocast["update_tolerance"]) == (0.02, 0.2), done.err
    assert autocast["update_verdict"] == "equivalent"
    assert plain["stack"] == "v.none"


def test_other_threads_are_compared_and_train_the_same(found: dict[str, dict[str, Any]]) -> None:
    row = found["v.threads"]
    assert row["verdict_reason"] == "1 of the 5 rounds that a verdict needs; 4 missing"
    assert row["update_verdict"] == "equivalent"
    assert row["evidence"]["observed-command"]["threads"] == 2
