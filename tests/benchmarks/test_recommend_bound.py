"""Reference rules: what all stacks share at a layout is drift, or may be none."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from benchmarks.recommend import TrueTable, Truth, make_table
from benchmarks.recommend_bound import Observed, observed, posterior, regret_of_rule

STACKS = range(5)


def ratio_of_layouts(may_share: bool, layouts: tuple[int, int] = (0, 1)) -> float:
    """How much longer the second layout is thought to take, which looked 8 % longer in all stacks.

    Drift moves the mean of five rounds by 4 %.
    """
    rows = [Truth(f"stack-{one}", size, "same", 5.0, 1e-4) for size in (1, 2) for one in STACKS]
    looks = [np.log(1e-4) + (0.08 if row.micro_batch_size == 2 else 0.0) for row in rows]
    found = [
        Observed(row, float(seen), layouts[row.micro_batch_size - 1])
        for row, seen in zip(rows, looks, strict=True)
    ]
    table = TrueTable(tuple(rows), None, noise=0.03, interleaved=layouts == (0, 0))
    draws, weights = posterior(found, table, np.random.default_rng(1), may_share)
    half = len(STACKS)
    ratio: Any = np.log(draws[:, half:] / draws[:, :half]).mean(axis=1) @ weights
    return float(ratio)


def test_what_all_stacks_show_of_a_layout_that_ran_alone_is_mostly_drift() -> None:
    """Layouts change each stack on its own by 8 %: the mean of five by 3.7 %, drift by 5.7 %."""
    expected = 0.08 * 0.037**2 / (0.037**2 + 0.057**2)
    assert ratio_of_layouts(may_share=False) == pytest.approx(expected, abs=0.01)


def test_it_may_be_the_layouts_own_where_all_stacks_may_share_it() -> None:
    assert ratio_of_layouts(may_share=True) == pytest.approx(0.08, abs=0.01)
    in_the_same_rounds = [ratio_of_layouts(may, (0, 0)) for may in (False, True)]
    assert in_the_same_rounds == pytest.approx([0.08, 0.08], abs=0.01)


def test_what_runs_can_tell_apart_has_no_regret() -> None:
    seeds = [seed for seed in range(8) if make_table(seed, 0.002).interleaved]
    assert [regret_of_rule(seed, 0.002) for seed in seeds] == pytest.approx(
        [0.0] * len(seeds), abs=0.002
    )


def test_all_that_ran_is_seen_and_nothing_that_was_out_of_memory() -> None:
    tables = [make_table(seed, 0.03) for seed in range(12)]
    assert any(row.kind == "oom" for table in tables for row in table.rows)
    for table in tables:
        seen = [one.row for one in observed(table, random.Random(1))]
        assert seen == [row for row in table.rows if row.kind != "oom"]
