"""Curves of a run by step."""

from __future__ import annotations

import pytest
from analysis_factory import make_rank, make_result
from learning_factory import evaluation, learned

from accel_bench.analysis.learning.curves import validation_curve
from accel_bench.result import LearningCurve


def test_a_curve_counts_the_seconds_and_tokens_of_all_training_steps() -> None:
    curve = validation_curve(learned([5.0, 4.0, 3.0, 2.0]))
    assert [(one.steps, one.tokens) for one in curve] == [(0, 0), (3, 300), (4, 400), (5, 500)]
    assert [one.seconds for one in curve] == pytest.approx([0.0, 0.7, 0.8, 0.9])
    assert [one.loss for one in curve] == [5.0, 4.0, 3.0, 2.0]


def test_the_loss_is_the_sum_over_ranks_and_their_seconds_those_of_the_slowest() -> None:
    ranks = []
    for number, seconds in enumerate((0.1, 0.3)):
        rank = make_rank(number, step_seconds=(seconds, seconds))
        parts = (evaluation(0, 2.0), evaluation(3, 1.0))
        ranks.append(rank.model_copy(update={"learning": LearningCurve(evaluations=parts)}))
    curve = validation_curve(make_result(ranks=ranks))
    assert [one.loss for one in curve] == [4.0, 2.0]
    assert curve[-1].seconds == pytest.approx(0.5 + 0.3 + 0.3)
