"""Batches: who sees which sample, when, and how many tokens that is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fault_plugins.distribution import install
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig

from accel_bench import Batch, Device, Run
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data.batch_plan import BatchPlan, Padding, sample_order
from accel_bench.modeling.data.token_batches import TokenDataset, batches, batches_of
from accel_bench.plugins.registry import installed
from accel_bench.testing import run_scenario


def ragged(lengths: list[int], sequence_length: int = 16) -> TokenDataset:
    """Samples of the given lengths; every token of sample i is i + 1, and the padding is 0."""
    ends = np.cumsum(lengths, dtype=np.int64)
    return TokenDataset(
        tokens=np.repeat(np.arange(1, len(lengths) + 1, dtype=np.uint32), lengths),
        starts=ends - np.array(lengths),
        lengths=np.array(lengths, dtype=np.int64),
        sequence_length=sequence_length,
        vocab_size=len(lengths) + 1,
        pad_token_id=0,
        fingerprint="ragged",
    )


def constant(samples: int, length: int = 4) -> TokenDataset:
    """Samples of one length; every token of sample i is i + 1."""
    return ragged([length] * samples, sequence_length=length)


def take(dataset: TokenDataset, steps: int, plan: BatchPlan) -> list[Batch]:
    """The micro-batches of some optimizer steps."""
    return list(islice(batches(dataset, plan), steps * plan.gradient_accumulation))


def samples_of(found: list[Batch]) -> list[int]:
    """Which samples the batches hold, told by their first token."""
    return [int(row[0]) for batch in found for row in batch.inputs["input_ids"]]


def supervised(batch: Batch) -> int:
    """Count labels as a causal model does, after its shift."""
    return int((batch.inputs["labels"][:, 1:] != -100).sum())


@settings(max_examples=30, deadline=None)
@given(
    micro=st.integers(1, 3),
    accumulation=st.integers(1, 3),
    ranks=st.integers(1, 4),
    steps=st.integers(1, 6),
)
def test_ranks_together_see_what_one_process_sees_in_every_step(
    micro: int, accumulation: int, ranks: int, steps: int
) -> None:
    dataset = constant(40)
    whole = BatchPlan(micro_batch_size=micro * accumulation * ranks)
    alone = samples_of(take(dataset, steps, whole))
    shared = [
        samples_of(take(dataset, steps, BatchPlan(micro, accumulation, rank, ranks)))
        for rank in range(ranks)
    ]
    for step in range(steps):
        mine = slice(step * micro * accumulation, (step + 1) * micro * accumulation)
        total = slice(
            step * micro * accumulation * ranks, (step + 1) * micro * accumulation * ranks
        )
        for rank in range(ranks):
            assert shared[rank][mine] == alone[total][rank::ranks]


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 16), min_size=12, max_size=20).filter(lambda x: max(x) > 1),
    padding=st.sampled_from(["max_length", "longest"]),
    ranks=st.integers(1, 2),
)
def test_tokens_are_those_that_the_labels_and_the_mask_show(
    lengths: list[int], padding: Padding, ranks: int
) -> None:
    dataset = ragged(lengths)
    found = [
        take(dataset, 3, BatchPlan(2, 2, rank, ranks, padding=padding)) for rank in range(ranks)
    ]
    for batch in (batch for rank in found for batch in rank):
        mask = batch.inputs.get("attention_mask", torch.ones_like(batch.inputs["input_ids"]))
        assert batch.tokens.processed == batch.inputs["input_ids"].numel()
        assert batch.tokens.real == int(mask.sum())
        assert batch.tokens.supervised == supervised(batch)
        assert torch.equal(batch.inputs["labels"] != -100, mask.bool())
    for step in range(3):
        micros = [batch for rank in found for batch in rank[2 * step : 2 * step + 2]]
        expected = sum(supervised(batch) for batch in micros)
        assert {batch.supervised_in_step for batch in micros} == {expected}


def test_constant_lengths_need_no_mask_and_every_batch_has_the_same_shape() -> None:
    for batch in take(constant(8), 4, BatchPlan(micro_batch_size=2)):
        assert set(batch.inputs) == {"input_ids", "labels"}
        assert batch.inputs["input_ids"].shape == (2, 4)
        assert batch.inputs["input_ids"].dtype == torch.int64
        assert (batch.tokens.processed, batch.tokens.real, batch.tokens.supervised) == (8, 8, 6)


def test_longest_pads_to_the_longest_of_the_micro_batch_and_max_length_to_the_sequence_length() -> (
    None
):
    dataset = ragged([3, 7, 2, 5])
    longest = take(dataset, 2, BatchPlan(2, padding="longest"))
    for batch in longest:
        real = batch.inputs["attention_mask"].sum(dim=1)
        assert batch.inputs["input_ids"].shape == (2, int(real.max()))
    fixed = take(dataset, 2, BatchPlan(2, padding="max_length"))
    assert {batch.inputs["input_ids"].shape for batch in fixed} == {(2, 16)}
    assert [batch.tokens.real for batch in longest] == [batch.tokens.real for batch in fixed]


def test_the_mask_is_there_in_all_steps_or_in_none() -> None:
    mixed = take(ragged([4, 4, 4, 4, 4, 2]), 6, BatchPlan(2, padding="longest"))
    assert all("attention_mask" in batch.inputs for batch in mixed)
    single = take(ragged([4, 3, 2]), 3, BatchPlan(1, padding="longest"))
    assert not any("attention_mask" in batch.inputs for batch in single)


def test_a_pad_token_that_occurs_in_the_text_is_supervised_there() -> None:
    dataset = TokenDataset(
        tokens=np.array([5, 0, 5, 7, 0], dtype=np.uint32),
        starts=np.array([0, 3]),
        lengths=np.array([3, 2]),
        sequence_length=4,
        vocab_size=8,
        pad_token_id=0,
        fingerprint="",
    )
    (batch,) = take(dataset, 1, BatchPlan(2, padding="max_length"))
    labels = sorted(batch.inputs["labels"].tolist())
    assert labels == [[5, 0, 5, -100], [7, 0, -100, -100]]


def test_an_epoch_shows_every_sample_once_and_the_next_one_in_another_order() -> None:
    seen = samples_of(take(constant(12), 6, BatchPlan(micro_batch_size=4)))
    assert sorted(seen[:12]) == sorted(seen[12:]) == list(range(1, 13))
    assert seen[:12] != seen[12:]


def test_what_does_not_fill_a_step_is_left_out_of_the_epoch() -> None:
    """Seven samples make two steps of three; the third step begins the next epoch's order."""
    seen = samples_of(take(constant(7), 4, BatchPlan(micro_batch_size=3)))
    assert len(seen) == 12
    assert seen[:6] == [1 + sample for sample in sample_order(7, 0, 0)[:6]]
    assert seen[6:] == [1 + sample for sample in sample_order(7, 0, 1)[:6]]


def test_the_seed_decides_the_order() -> None:
    def order(seed: int) -> list[int]:
        return samples_of(take(constant(30), 10, BatchPlan(3, seed=seed)))

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert sample_order(30, 1, 0).tolist() != sample_order(30, 1, 1).tolist()


def test_too_few_samples_are_refused_with_the_numbers_and_the_way_out() -> None:
    with pytest.raises(ScenarioError, match=r"5 samples of 4 tokens.* takes 8 .*bring more data"):
        batches(constant(5), BatchPlan(2, 2, 0, 2))


def test_samples_of_a_single_token_are_refused() -> None:
    with pytest.raises(ScenarioError, match="sequence_length to 2 or more"):
        batches(constant(4, length=1), BatchPlan(1))


def test_the_plan_of_a_run_is_that_of_its_scenario(make_run: Callable[..., Run]) -> None:
    run = make_run(
        data={"use": "synthetic", "sequence_length": 4, "seed": 3},
        train={"micro_batch_size": 2, "gradient_accumulation": 2},
        resources={"devices": 2},
    )
    run.rank, run.world_size, run.dataset = 1, 2, constant(16)
    found = list(islice(batches_of(run, "none"), 4))
    assert samples_of(found) == samples_of(take(constant(16), 2, BatchPlan(2, 2, 1, 2, seed=3)))
    assert not any(tensor.is_pinned() for tensor in found[0].inputs.values())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinned memory needs a CUDA device")
def test_batches_for_a_gpu_are_pinned(make_run: Callable[..., Run]) -> None:
    run = make_run(data={"use": "synthetic"})
    run.device, run.dataset = Device("cuda"), constant(16)
    assert all(tensor.is_pinned() for tensor in next(batches_of(run, "none")).inputs.values())


@pytest.mark.parametrize("config", [LlamaConfig, SimpleNamespace], ids=["published", "foreign"])
def test_a_vocabulary_that_the_model_lacks_is_refused(
    config: Any, make_run: Callable[..., Run]
) -> None:
    run = make_run(data={"use": "synthetic"})
    run.dataset = constant(16)
    run.unwrapped_model = SimpleNamespace(config=config(vocab_size=16))
    with pytest.raises(ScenarioError, match=r"vocabulary of 17 tokens.*only one of 16"):
        batches_of(run, "none")
    run.unwrapped_model.config.vocab_size = 17
    assert next(batches_of(run, "none")).sequences == 1


def test_a_dataset_says_which_samples_each_step_of_a_run_holds(
    make_run: Callable[..., Run],
) -> None:
    run = make_run(train={"micro_batch_size": 2, "gradient_accumulation": 3})
    run.dataset = constant(13)
    steps = list(islice(run.dataset.steps_of(run), 4))
    padded = samples_of(list(islice(batches_of(run, "none"), 12)))
    assert [1 + int(sample) for step in steps for sample in step] == padded


def test_pairs_are_squares_of_lengths_and_with_padding_of_widths() -> None:
    batch = next(batches(ragged([3, 5]), BatchPlan(2, padding="longest")))
    assert (batch.tokens.real_pairs, batch.tokens.processed_pairs) == (9 + 25, 2 * 25)
    batch = next(batches(ragged([3, 5]), BatchPlan(2, padding="max_length")))
    assert (batch.tokens.real_pairs, batch.tokens.processed_pairs) == (9 + 25, 2 * 256)


PAGE = Path(__file__).parents[3] / "docs" / "data.md"


def test_the_data_plugin_of_the_page_trains_and_holds_samples_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    install(tmp_path, "acme-countdown", {"countdown": "Countdown"}, source)
    small = {"num_hidden_layers": 1, "hidden_size": 64, "vocab_size": 32}
    written = {
        "name": "countdown",
        "model": {"id": "tiny-llama-cpu", "overrides": small},
        "data": {"use": "countdown", "sequence_length": 16, "held_out": 8},
        "train": {"micro_batch_size": 2, "learning_rate": 1e-2},
        "stacks": {"baseline": []},
        "resources": {"device": "cpu", "threads": 1},
        "measure": {"warmup": 1, "steps": 8, "rounds": 1, "phase_steps": 0},
    }
    file = tmp_path / "countdown.yaml"
    file.write_text(json.dumps(written))
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        installed.cache_clear()
        result = run_scenario(file)["baseline"]
    installed.cache_clear()
    window = result.ranks[0].window
    assert window is not None, result.reasons
    first, *_, last = [one.loss or 0 for one in (*window.warmup, *window.samples)]
    assert last < first / 2
    assert {one.real_tokens for one in window.samples} == {32}
    learning = result.ranks[0].learning
    assert learning is not None
    before, after = learning.evaluations
    assert before.sequences == 8
    assert after.loss < before.loss / 2
