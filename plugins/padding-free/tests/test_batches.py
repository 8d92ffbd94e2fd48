"""Flattened batches: the right tokens, positions, labels and counts, and the baseline's samples."""

from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accel_bench_padding_free.batches import FlatBatches, flat_inputs

from accel_bench.errors import ScenarioError
from accel_bench.modeling.data.token_batches import batches_of

ROWS = [np.array([5, 6, 7]), np.array([8]), np.array([9, 10])]


def test_sequences_stand_one_after_the_other_and_positions_start_again():
    inputs = flat_inputs(ROWS, "mask")
    assert inputs["input_ids"].tolist() == [[5, 6, 7, 8, 9, 10]]
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 0, 0, 1]]
    assert inputs["labels"].tolist() == [[-100, 6, 7, -100, -100, 10]]
    assert sorted(inputs) == ["input_ids", "labels", "position_ids"]


@pytest.mark.parametrize("attention", ["varlen", "flash"])
def test_attention_by_sequences_is_told_where_they_begin_and_no_other_can_give_a_loss(attention):
    inputs = flat_inputs(ROWS, attention)
    assert inputs["cu_seq_lens_q"].tolist() == [0, 3, 4, 6]
    assert inputs["cu_seq_lens_q"].dtype == torch.int32
    assert inputs["attention_mask"].shape == (1, 1, 1, 1)
    assert torch.isnan(inputs["attention_mask"]).all()


def taken(run, sampler, steps=2):
    count = steps * run.scenario.train.gradient_accumulation
    batches = FlatBatches(run, sampler, "varlen")
    return list(islice(iter(batches), count)), batches


def sequences(batch):
    """Token ids of each sequence of a flattened batch."""
    cuts = batch.inputs["cu_seq_lens_q"][1:-1].tolist()
    return [tuple(part.tolist()) for part in batch.inputs["input_ids"][0].tensor_split(cuts)]


def unpadded(batch):
    """Token ids of each row of a padded batch, in which no token is 0."""
    return [tuple(row[row != 0].tolist()) for row in batch.inputs["input_ids"]]


@pytest.mark.parametrize("rank, ranks", [(0, 1), (0, 2), (1, 2)])
def test_with_the_same_sampler_each_micro_batch_holds_the_samples_of_the_padded_one(
    make_run, rank, ranks
):
    train = {"micro_batch_size": 2, "gradient_accumulation": 2}
    run = make_run(rank, ranks, train=train)
    flattened, _ = taken(run, "same")
    padded = list(islice(batches_of(run, "longest"), len(flattened)))
    for ours, theirs in zip(flattened, padded, strict=True):
        assert sequences(ours) == unpadded(theirs)
        assert ours.supervised_in_step == theirs.supervised_in_step
        assert ours.sequences == theirs.sequences
        assert ours.tokens.real == theirs.tokens.real == ours.tokens.processed
        assert ours.tokens.supervised == theirs.tokens.supervised
        assert ours.tokens.real_pairs == theirs.tokens.real_pairs == ours.tokens.processed_pairs


@pytest.mark.parametrize("ranks", [1, 2])
def test_with_multipack_each_step_holds_the_samples_of_the_padded_one_over_all_ranks(
    make_run, ranks
):
    train = {"micro_batch_size": 2, "gradient_accumulation": 4 // ranks}
    ours, theirs = [], []
    for rank in range(ranks):
        run = make_run(rank, ranks, train=train)
        flattened, _ = taken(run, "multipack", steps=1)
        padded = list(islice(batches_of(run, "longest"), len(flattened)))
        assert {b.supervised_in_step for b in flattened + padded} == {
            sum((8, 2, 13, 1, 6, 10, 4, 15))
        }
        ours += [s for batch in flattened for s in sequences(batch)]
        theirs += [s for batch in padded for s in unpadded(batch)]
    assert sorted(ours) == sorted(theirs)


def test_multipack_makes_micro_batches_of_nearly_equal_tokens(make_run):
    run = make_run(train={"micro_batch_size": 2, "gradient_accumulation": 4})
    held = {
        sampler: [batch.tokens.real for batch in taken(run, sampler, steps=1)[0]]
        for sampler in ("same", "multipack")
    }
    assert sum(held["same"]) == sum(held["multipack"]) == 67
    assert max(held["multipack"]) - min(held["multipack"]) <= 2
    assert max(held["multipack"]) < max(held["same"])


def test_it_counts_what_padding_would_have_been(make_run):
    run = make_run(train={"micro_batch_size": 4, "gradient_accumulation": 2})
    _, batches = taken(run, "same", steps=1)
    padded = islice(batches_of(run, "longest"), 2)
    counts = batches.counts
    assert counts.padded_tokens == sum(batch.tokens.processed for batch in padded)
    assert (counts.steps, counts.micro_batches, counts.sequences) == (1, 2, 8)
    assert counts.tokens == counts.step_tokens == 67


def test_a_mask_computes_the_pairs_of_the_whole_row(make_run):
    run = make_run(train={"micro_batch_size": 8})
    batch = next(iter(FlatBatches(run, "same", "mask")))
    assert batch.tokens.processed_pairs == 67 * 67
    assert batch.tokens.real_pairs == sum(n * n for n in (9, 3, 14, 2, 7, 11, 5, 16))


def test_a_dataset_without_samples_of_its_own_is_refused(make_run):
    run = make_run()
    run.dataset = SimpleNamespace(lengths=np.ones(1))
    with pytest.raises(ScenarioError, match="has no sample, steps_of; use `synthetic` or `text`"):
        FlatBatches(run, "same", "mask")


def test_samples_that_do_not_fill_a_step_are_refused(make_run):
    with pytest.raises(ScenarioError, match="holds 8 samples"):
        FlatBatches(make_run(train={"micro_batch_size": 9}), "same", "mask")
