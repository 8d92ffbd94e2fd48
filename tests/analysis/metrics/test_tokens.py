"""Tokens in three ways, global and per device, per step and in total."""

from __future__ import annotations

import pytest
from analysis_factory import make_rank, make_result

from accel_bench.analysis.metrics.tokens import token_summary


def test_two_ranks_of_three_steps_of_ten_tokens_with_one_of_padding() -> None:
    ranks = tuple(make_rank(rank, step_seconds=(0.1,) * 3, tokens=10) for rank in (0, 1))
    counted = token_summary(make_result(ranks=ranks))
    assert counted is not None
    assert counted.per_step_global.model_dump() == pytest.approx(
        {"processed": 22, "real": 20, "supervised": 18}
    )
    assert counted.per_step_per_device.model_dump() == pytest.approx(
        {"processed": 11, "real": 10, "supervised": 9}
    )
    assert counted.total_global.processed == 66
    assert counted.total_per_device.processed == 33


def test_the_warmup_is_not_counted() -> None:
    with_warmup = make_result(ranks=(make_rank(warmup=7),))
    without = make_result(ranks=(make_rank(warmup=1),))
    assert token_summary(with_warmup) == token_summary(without)


def test_a_rank_without_a_window_leaves_nothing_to_count() -> None:
    rank = make_rank().model_copy(update={"window": None})
    assert token_summary(make_result(ranks=(make_rank(), rank))) is None
