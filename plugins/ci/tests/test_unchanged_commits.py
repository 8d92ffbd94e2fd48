"""The gate on simulated commits: unchanged ones pass, slow ones fail."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_unchanged_commits_pass_the_gate_and_slow_ones_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))  # `benchmarks` is no part of the distribution
    from benchmarks.unchanged_commits import (
        SEED,
        gate_commits,
        nights_until_found,
        watch_nights,
    )

    unchanged = gate_commits(100, 0.0, SEED)
    assert unchanged["regression"] == 0
    assert unchanged["passed"] + unchanged["inconclusive"] == 100
    assert unchanged["passed"] > 20  # others stay open: it is a machine that disturbs
    slow = gate_commits(20, 0.1, SEED)
    assert slow["regression"] >= 19
    assert slow == gate_commits(20, 0.1, SEED)  # the same seeds give the same commits
    assert watch_nights(60, SEED)[1] == 0
    assert nights_until_found(0.2, SEED + 2) == 4
    assert nights_until_found(0.0, SEED + 2) is None
