"""The tests' launcher shows how its ranks ended, as the product's does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from analysis_factory import make_experiment
from kit import this_machine

from accel_bench import Options
from accel_bench.job import Job
from accel_bench.runner.attempt import make_attempt
from several_ranks import launcher


def ends_badly(job: Job, rank: int) -> None:
    """Raise in rank 0, end in the middle of rank 1, hang in rank 2."""
    if rank == 0:
        raise OSError("no room for the result")
    if rank == 1:
        os.abort()
    while True:
        pass


def test_a_rank_that_dies_or_hangs_has_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_work", ends_badly)
    resources = {"device": "cpu", "devices": 3}
    measure = {"timeout_seconds": 0.3}
    experiment = make_experiment(scenario={"resources": resources, "measure": measure})
    attempt = make_attempt(
        tmp_path, tmp_path, "s", this_machine(), cache_folder=str(tmp_path), experiment=experiment
    )
    ranks = launcher.Forked(Options()).launch_ranks(attempt.job)
    assert [rank.poll() for rank in ranks] == [1, -6, -9]
    assert "no room for the result" in attempt.job.log_path(0).read_text()
