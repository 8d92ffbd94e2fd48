"""New runs after a step: the error rate of confirmations by unchanged code."""

from __future__ import annotations

import random

import pytest
from accel_bench_ci.step_confirmation import judge_new_runs

DRAWS = 2000


@pytest.mark.parametrize("sessions", [5, 8, 12, 20, 40])
def test_an_unchanged_session_is_taken_for_worse_as_rarely_as_stated(sessions):
    draw = random.Random(sessions)
    wrong = 0
    for _ in range(DRAWS):
        *before, newest = (draw.gauss(0, 0.05) for _ in range(sessions + 1))
        change, bound = judge_new_runs(before, [newest + draw.gauss(0, 1e-6) for _ in range(40)])
        wrong += change < -bound
    # 0.5 %, and two standard errors of so many draws.
    assert wrong / DRAWS <= 0.0082
