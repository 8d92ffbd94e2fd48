"""Runs at several lengths and batch sizes, as tables of stored experiments need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis_factory import make_experiment, make_rank, make_result
from hypothesis import strategies as st

from accel_bench.result import Result, Status
from accel_bench.scenario.experiment import Experiment

LENGTH, BATCH = "data.sequence_length", "train.micro_batch_size"

STATUSES = [Status.OK, Status.OOM, Status.FAILED, Status.INVALID]


def point(stack: str = "lora", length: int = 110, batch: int = 1, **work: Any) -> Experiment:
    """A stack at one length and batch size."""
    train = {"micro_batch_size": batch, **work.pop("train", {})}
    scenario = {"data": {"sequence_length": length}, "train": train, **work}
    return make_experiment(stack, sweep={LENGTH: length, BATCH: batch}, scenario=scenario)


def rounds(
    experiment: Experiment, seconds: Sequence[float], status: Status = Status.OK
) -> list[Result]:
    """A run for each number of step seconds; samples are as long as the experiment says."""
    batch = experiment.scenario.train.micro_batch_size
    tokens = batch * (experiment.scenario.data.sequence_length or 0) * 10 // 11
    found = []
    for number, value in enumerate(seconds):
        rank = make_rank(step_seconds=(value, value), tokens=tokens)
        assert rank.window is not None
        parts = {
            part: tuple(
                one.model_copy(update={"sequences": batch}) for one in getattr(rank.window, part)
            )
            for part in ("warmup", "samples")
        }
        window = rank.window.model_copy(update=parts)
        ranks = [rank.model_copy(update={"window": window})] if status.completed else []
        found.append(make_result(experiment, round=number, status=status, ranks=ranks))
    return found


@st.composite
def campaigns(draw: st.DrawFn) -> list[Result]:
    """Experiments at random points, with one to three runs each that ended alike."""
    coordinates = st.tuples(
        st.sampled_from(["lora", "nf4"]),
        st.sampled_from([110, 220]),
        st.sampled_from([1, 2, 3]),
        st.sampled_from([1e-4, 1e-3]),
    )
    found: list[Result] = []
    for stack, length, batch, rate in draw(st.sets(coordinates, min_size=1, max_size=8)):
        one = point(stack, length, batch, train={"learning_rate": rate})
        status = draw(st.sampled_from(STATUSES))
        seconds = draw(st.lists(st.floats(0.01, 1), min_size=1, max_size=3))
        found += rounds(one, seconds, status=status)
    return found
