"""Text pairs: reading, special tokens, and truncation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from accel_bench_text_tasks.data.pairs import (
    Docstrings,
    DocstringsOptions,
    PairOptions,
    SyntheticPairs,
)
from accel_bench_text_tasks.data.pairs_impl import PairDataset, evidence, special_ids
from accel_bench_text_tasks.data.text_pairs_impl import _pairs
from accel_bench_text_tasks.tasks.pair_tasks import Seq2SeqLM
from tokenizers import Tokenizer

from accel_bench import Run
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data import text_sources
from accel_bench.modeling.data.text_sources import TextFile

MakeRun = Callable[..., Run]

NLLB = {"id": "nllb-200-600m"}


def test_a_source_that_the_limit_has_cut_is_not_read() -> None:
    whole, *_ = (
        file for file in text_sources.stdlib_files(10**6) if file.name == "_collections_abc.py"
    )
    cut = TextFile(whole.path, whole.name, 8_000, cut=True)
    assert len(list(_pairs(whole))) > 5
    assert not list(_pairs(cut))


def test_a_sequence_that_is_cut_keeps_its_end_and_is_counted() -> None:
    dataset = PairDataset(
        tokens=np.array([5, 6, 7, 8, 1, 9, 1], dtype=np.uint32),
        bounds=np.array([[0, 5, 5, 7], [5, 7, 5, 7]]),
        sequence_length=3,
        vocab_size=10,
        pad_token_id=0,
        fingerprint="constant",
    )
    first, second = dataset.pair(0)
    assert (first.tolist(), second.tolist()) == ([5, 6, 1], [9, 1])
    assert evidence(dataset, "longest")["samples_cut"] == 1
    assert dataset.tokens.tolist() == [5, 6, 7, 8, 1, 9, 1]


def test_padding_and_end_have_the_ids_of_the_model(make_run: MakeRun) -> None:
    plugin = Docstrings(DocstringsOptions(samples=20, vocab_size=400))
    run = make_run(model=NLLB, data={"sequence_length": 32})
    dataset = plugin.load_data(run)
    tokenizer = Tokenizer.from_file(str(dataset.tokenizer_path))
    named = [tokenizer.token_to_id(name) for name in ("<|pad|>", "<|endoftext|>")]
    assert named == [dataset.pad_token_id, dataset.end_token_id] == [1, 2]
    assert {int(dataset.pair(n)[1][-1]) for n in range(len(dataset))} == {2}
    assert not (dataset.tokens < 2).any()


@pytest.mark.parametrize(
    "config", [{}, {"pad_token_id": 0}, {"pad_token_id": 3, "eos_token_id": 250_000}]
)
def test_a_model_without_small_ids_leaves_the_first_ones(config: dict[str, int]) -> None:
    assert special_ids(config) == (0, 1)


def test_a_model_that_takes_words_for_its_padding_is_refused(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run(data={"sequence_length": 8})
    run.task = Seq2SeqLM(Seq2SeqLM.Options(), "seq2seq-lm")
    run.dataset = PairDataset(
        tokens=np.ones(4, dtype=np.uint32),
        bounds=np.array([[0, 2, 2, 4]]),
        sequence_length=8,
        vocab_size=10,
        pad_token_id=0,
        fingerprint="constant",
        tokenizer_path=tmp_path,
    )
    config = SimpleNamespace(vocab_size=10, pad_token_id=1, eos_token_id=2)
    run.unwrapped_model = SimpleNamespace(config=config)
    with pytest.raises(ScenarioError, match="the model has pad_token_id 1, eos_token_id 2, but"):
        SyntheticPairs(PairOptions(padding="longest")).build_batches(run)
