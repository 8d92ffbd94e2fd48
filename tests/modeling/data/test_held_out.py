"""Held-out samples: never trained on, alike for all, and evaluated once each by all ranks."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_bench import Batch
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data.batch_plan import BatchPlan, split_samples
from accel_bench.modeling.data.token_batches import EvaluationBatches, TokenDataset, batches


def dataset(samples: int, length: int = 4) -> TokenDataset:
    """Every token of sample i is i + 1."""
    return TokenDataset(
        tokens=np.repeat(np.arange(1, samples + 1, dtype=np.uint32), length),
        starts=np.arange(samples, dtype=np.int64) * length,
        lengths=np.full(samples, length, dtype=np.int64),
        sequence_length=length,
        vocab_size=samples + 1,
        pad_token_id=0,
        fingerprint="constant",
    )


def samples_of(found: list[Batch]) -> list[int]:
    """Which samples count in the batches, told by their first label."""
    labels = [row for batch in found for row in batch.inputs["labels"] if row[0] != -100]
    return [int(row[0]) - 1 for row in labels]


def evaluated(data: TokenDataset, held_out: float, micro: int, ranks: int) -> list[list[Batch]]:
    _, chosen = split_samples(len(data), held_out, seed=0)
    plans = [BatchPlan(micro, 1, rank, ranks) for rank in range(ranks)]
    return [list(EvaluationBatches(data, chosen, plan)) for plan in plans]


@given(
    samples=st.integers(2, 60),
    held_out=st.integers(1, 20) | st.floats(0.01, 0.9),
    seed=st.integers(0, 9),
)
def test_every_sample_is_either_trained_on_or_held_out(
    samples: int, held_out: float, seed: int
) -> None:
    count = held_out if isinstance(held_out, int) else max(1, round(held_out * samples))
    if count >= samples:
        with pytest.raises(ScenarioError, match="leaves none to train on"):
            split_samples(samples, held_out, seed)
        return
    training, chosen = split_samples(samples, held_out, seed)
    assert len(chosen) == count
    assert sorted([*training, *chosen]) == list(range(samples))
    again = split_samples(samples, held_out, seed)
    assert np.array_equal(training, again[0])
    assert np.array_equal(chosen, again[1])


def test_another_seed_holds_others_out() -> None:
    assert set(split_samples(100, 10, 0)[1]) != set(split_samples(100, 10, 1)[1])


def test_no_epoch_trains_on_a_held_out_sample() -> None:
    data, plan = dataset(20), BatchPlan(3, held_out=0.25)
    seen = samples_of(list(islice(batches(data, plan), 30)))
    training, chosen = split_samples(20, 0.25, 0)
    assert set(seen) == set(training)
    assert not set(seen) & set(chosen)


def test_without_held_out_samples_the_order_is_what_it_was() -> None:
    data = dataset(12)
    order = np.random.default_rng((7, 0)).permutation(12)
    found = samples_of(list(islice(batches(data, BatchPlan(4, seed=7)), 3)))
    assert found == order.tolist()


def test_too_few_samples_are_left_to_train_on() -> None:
    with pytest.raises(ScenarioError, match="holds 3 samples of 4 tokens beside 7 that are held"):
        next(batches(dataset(10), BatchPlan(4, held_out=7)))


@settings(max_examples=30, deadline=None)
@given(held_out=st.integers(1, 15), micro=st.integers(1, 4), ranks=st.integers(1, 4))
def test_ranks_evaluate_every_held_out_sample_once_in_equally_many_batches(
    held_out: int, micro: int, ranks: int
) -> None:
    data = dataset(20)
    by_rank = evaluated(data, held_out, micro, ranks)
    assert len({len(found) for found in by_rank}) == 1
    every = [batch for found in by_rank for batch in found]
    assert sorted(samples_of(every)) == sorted(split_samples(20, held_out, 0)[1])
    assert sum(batch.sequences for batch in every) == held_out
    supervised = sum(batch.tokens.supervised for batch in every)
    assert {batch.supervised_in_step for batch in every} == {supervised} == {3 * held_out}


def test_a_rank_without_a_sample_calls_the_model_all_the_same_and_counts_nothing() -> None:
    first, second = evaluated(dataset(10), 1, micro=1, ranks=2)
    assert samples_of(first)
    (idle,) = second
    assert torch.all(idle.inputs["labels"] == -100)
    assert (idle.sequences, idle.tokens.real, idle.tokens.supervised) == (0, 0, 0)


def test_batches_can_be_iterated_over_again() -> None:
    _, chosen = split_samples(10, 4, 0)
    found = EvaluationBatches(dataset(10), chosen, BatchPlan(2))
    assert samples_of(list(found)) == samples_of(list(found))
    assert len(found) == 2
