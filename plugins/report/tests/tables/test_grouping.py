"""Experiments by one setting after another: compared where all else is equal, counted once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from accel_bench_report.summary import groups_by_key_report
from accel_bench_report.tables.grouping import Group, GroupedSummary, summarize_by
from accel_bench_report.tables.pivot import MAIN_KEYS
from analysis_factory import STEADY, make_rank, make_result, scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_bench.analysis.aggregate import collect_experiments
from accel_bench.report.formats import render_report
from accel_bench.result import Result, Status

from ..pivot_factory import BATCH, campaigns, point, rounds

RATE = "train.learning_rate"


def summarized(results: Sequence[Result], keys: Sequence[str] = ()) -> GroupedSummary:
    """The summary of stored runs, which are read without their samples."""
    return summarize_by([row.for_tables() for row in collect_experiments(results)], keys)


def groups(results: Sequence[Result], key: str) -> dict[Any, Group]:
    """The groups of one key by their values."""
    (one,) = summarized(results, [key]).by
    return {group.value: group for group in one.groups}


def test_values_are_compared_where_all_else_is_equal() -> None:
    # A batch of 4 is twice as fast with either stack, but only the slow stack ran much of it.
    runs = [
        *rounds(point("lora", batch=1), STEADY),
        *rounds(point("lora", batch=4), scaled(2.0)),
        *rounds(point("nf4", batch=1), scaled(0.1)),
        *rounds(point("nf4", batch=4), scaled(0.2)),
        *rounds(point("slow", batch=4), scaled(40)),
    ]
    found = groups(runs, "batch_size")
    four = found[4]
    assert (four.experiments, four.pairs) == (3, 2)
    assert four.times_as_fast is not None
    assert four.times_as_fast.median == pytest.approx(2.0, rel=1e-3)
    assert found[1].times_as_fast is None
    # Nothing differs in the optimizer alone where batch sizes do too.
    other = point("lora", batch=2, optimizer={"use": "sgd"})
    by_optimizer = groups([*runs, *rounds(other, STEADY)], "optimizer")
    assert [group.pairs for group in by_optimizer.values()] == [0, 0]


def test_losses_are_compared_of_one_task_alone() -> None:
    runs = [*rates({1e-4: (3.0,), 1e-3: (2.5,)}), *rates({1e-4: (1.0,)}, length=220)]
    found = groups(runs, RATE)
    assert [(group.lowest_loss, group.of_losses) for group in found.values()] == [(0, 1), (1, 1)]
    lengths = groups(runs, "data.sequence_length")
    assert [group.of_losses for group in lengths.values()] == [0, 0]


def test_what_was_not_measured_is_counted_by_its_word() -> None:
    oom = point(batch=4)
    runs = [*rounds(point(), STEADY), make_result(oom, status=Status.OOM)]
    found = groups(runs, BATCH)
    assert (found[4].counts, found[4].fastest) == ({"OOM": 1}, None)
    text = render_report(groups_by_key_report(summarized(runs)), "table")
    assert "1 OOM" in text and "by train.micro_batch_size" in text


def rates(losses: dict[float, Sequence[float]], **work: Any) -> list[Result]:
    """A run for each rate and seed that ends at that loss."""
    found = []
    for rate, ends in losses.items():
        for seed, end in enumerate(ends):
            one = point(train={"learning_rate": rate, "seed": seed}, **work)
            tokens = (one.scenario.data.sequence_length or 0) * 10 // 11
            curve = [4.0] * 5 + [end] * 5
            rank = make_rank(step_seconds=(0.1,) * 9, losses=curve, tokens=tokens)
            found.append(make_result(one, ranks=[rank]))
    return found


@given(campaigns(), st.randoms())
@settings(max_examples=25, deadline=None)
def test_each_experiment_is_in_one_group_of_each_key_in_any_order(
    runs: list[Result], random: Any
) -> None:
    made = summarized(runs, MAIN_KEYS)
    total = len({(run.experiment.id, run.experiment.stack.name) for run in runs})
    assert made.experiments == total
    for one in made.by:
        assert sum(group.experiments for group in one.groups) == total
        assert sum(sum(group.counts.values()) for group in one.groups) == total
        assert len({repr(group.value) for group in one.groups}) == len(one.groups)
        assert sum(group.lowest_loss for group in one.groups) <= max(
            (group.of_losses for group in one.groups), default=0
        ) * len(one.groups)
    shuffled = list(runs)
    random.shuffle(shuffled)
    assert summarized(shuffled, MAIN_KEYS) == made


def in_environment(
    runs: Sequence[Result], name: str, session: str = "monday", **facts: Any
) -> list[Result]:
    """The same runs as those of an experiment in another environment."""
    found = []
    for run in runs:
        one = run.experiment
        identity = {**one.identity, "environment": facts}
        experiment = one.model_copy(update={"id": f"{one.id}{name}", "identity": identity})
        change = {"experiment": experiment, "run_id": f"{run.run_id}{name}{session}"}
        found.append(run.model_copy(update={**change, "session": session}))
    return found


OLD, NEW = ({"fingerprints": {"text": {"sha": one}}} for one in ("old", "new"))


def test_experiments_of_other_versions_are_no_pair_and_none_is_lost() -> None:
    # In either environment nf4 is twice as fast; the newer one runs everything at half the speed.
    lora, nf4 = point("lora"), point("nf4")
    both = [
        *in_environment([*rounds(lora, scaled(2)), *rounds(nf4, STEADY)], "old", **OLD),
        *in_environment([*rounds(lora, scaled(4)), *rounds(nf4, scaled(2))], "new", **NEW),
    ]
    found = groups(both, "stack")["nf4"]
    assert (found.pairs, found.ambiguous) == (2, 0)
    assert found.times_as_fast is not None
    assert found.times_as_fast.median == pytest.approx(2.0, rel=1e-2)
    plugins = [{"plugins": [{"name": "lora", "version": one}]} for one in ("1", "2")]
    apart = [
        *in_environment(rounds(lora, scaled(2)), "old", **plugins[0]),
        *in_environment(rounds(nf4, STEADY), "new", **plugins[1]),
    ]
    assert groups(apart, "stack")["nf4"].pairs == 0


def test_several_that_fit_are_paired_within_their_session_or_not_at_all() -> None:
    lora, nf4 = rounds(point("lora"), scaled(2)), rounds(point("nf4"), STEADY)
    # What differs is no key: the seed of the order of rounds, as an example.
    again = [*in_environment(lora, "b", "tuesday"), *in_environment(nf4, "b", "tuesday")]
    found = groups([*lora, *nf4, *again], "stack")["nf4"]
    assert (found.pairs, found.ambiguous) == (2, 0)
    third = in_environment(nf4, "c", "wednesday")
    made = summarized([*lora, *nf4, *again, *third], ["stack"])
    (_, open_one) = made.by[0].groups
    assert (open_one.pairs, open_one.ambiguous) == (2, 1)
    text = " ".join(render_report(groups_by_key_report(made), "markdown").split())
    assert "stack=nf4: 1 experiment in no pair: several others would fit" in text
