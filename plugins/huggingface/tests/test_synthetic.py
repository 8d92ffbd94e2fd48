"""Made-up data: seeded, learnable, and inside the vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from accel_bench_huggingface.synthetic import Lengths, Synthetic, SyntheticOptions
from accel_bench_huggingface.synthetic_impl import draw_lengths, make_up
from imported_modules import imported
from pydantic import ValidationError

from accel_bench import Run
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data.token_batches import TokenDataset, Tokens
from accel_bench.testing import evidence_of


def rows(seed: int = 0, sequence_length: int = 64, **options: Any) -> Tokens:
    """Made-up tokens of shape (samples, sequence_length)."""
    dataset = make_up(SyntheticOptions(**options), sequence_length, seed)
    return np.stack([dataset.sample(index) for index in range(len(dataset))])


def entropy(counts: Counter[Any]) -> float:
    """Entropy in nats of a distribution given by counts."""
    shares = np.array(list(counts.values())) / sum(counts.values())
    return float(-(shares * np.log(shares)).sum())


def next_token_entropy(found: Tokens) -> float:
    """Entropy in nats of a token when the one before it is known."""
    pairs = Counter(zip(found[:, :-1].ravel().tolist(), found[:, 1:].ravel().tolist(), strict=True))
    return entropy(pairs) - entropy(Counter(found[:, :-1].ravel().tolist()))


def test_a_markov_chain_can_be_learned_and_noise_cannot() -> None:
    size = {"vocab_size": 32, "samples": 200, "sequence_length": 100}
    chain, noise = rows(successors=4, **size), rows(pattern="uniform", **size)
    assert next_token_entropy(chain) <= np.log(4) + 0.01
    assert next_token_entropy(noise) > 0.95 * np.log(32)


def test_token_frequencies_alone_beat_chance() -> None:
    found = rows(vocab_size=256, samples=100)
    assert entropy(Counter(found.ravel().tolist())) < 0.9 * np.log(256)


def test_each_token_has_at_most_its_successors() -> None:
    found = rows(vocab_size=16, successors=2, samples=50)
    after: dict[int, set[int]] = {}
    for row in found.tolist():
        for first, second in pairwise(row):
            after.setdefault(first, set()).add(second)
    assert max(map(len, after.values())) == 2


@pytest.mark.parametrize("pattern", ["markov", "uniform"])
def test_tokens_stay_below_the_maximum(pattern: str) -> None:
    dataset = make_up(
        SyntheticOptions.model_validate({"pattern": pattern, "maximum_token": 100}), 64, 0
    )
    assert int(dataset.tokens.max()) < 100
    assert dataset.vocab_size == 2048


@pytest.mark.parametrize("pattern", ["markov", "uniform"])
def test_seed_and_options_decide_the_content(pattern: str) -> None:
    def fingerprint(seed: int) -> str:
        return make_up(
            SyntheticOptions.model_validate({"pattern": pattern, "samples": 8}), 16, seed
        ).fingerprint

    assert fingerprint(0) == fingerprint(0)
    assert fingerprint(0) != fingerprint(1)


def test_a_maximum_above_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValidationError, match="maximum_token 300 is larger than vocab_size 256"):
        SyntheticOptions(vocab_size=256, maximum_token=300)


def test_hooks_bring_samples_batches_and_evidence(make_run: Callable[..., Run]) -> None:
    run = make_run(
        data={"use": "synthetic", "sequence_length": 32, "samples": 12, "vocab_size": 64},
        train={"micro_batch_size": 3},
    )
    plugin = Synthetic(SyntheticOptions.model_validate(run.scenario.data.options))
    run.dataset = plugin.load_data(run)
    assert isinstance(run.dataset, TokenDataset)
    batch = next(plugin.build_batches(run))
    assert batch.inputs["input_ids"].shape == (3, 32)
    assert batch.tokens.supervised == batch.supervised_in_step == 3 * 31
    evidence = evidence_of(run)
    assert (evidence["samples"], evidence["tokens"]) == (12, 12 * 32)


def test_lengths_have_the_median_and_the_spread_that_were_asked_for() -> None:
    drawn = draw_lengths(Lengths(median=300, sigma=0.8, minimum=2), 20_000, 1_000_000, seed=0)
    assert np.median(drawn) == pytest.approx(300, rel=0.03)
    assert np.log(drawn).std() == pytest.approx(0.8, rel=0.03)
    assert drawn.mean() == pytest.approx(300 * np.exp(0.8**2 / 2), rel=0.03)


def test_lengths_stay_between_the_minimum_and_the_sequence_length() -> None:
    drawn = draw_lengths(Lengths(median=50, sigma=1.5, minimum=16), 2000, 128, seed=0)
    assert (drawn.min(), drawn.max()) == (16, 128)
    assert 0.1 < (drawn == 128).mean() < 0.4


def test_the_seed_decides_the_lengths() -> None:
    wanted = Lengths()
    first, again, other = (draw_lengths(wanted, 64, 4096, seed).tolist() for seed in (0, 0, 1))
    assert first == again != other


def test_without_spread_every_sample_has_the_median_s_length() -> None:
    assert set(draw_lengths(Lengths(median=33, sigma=0.0), 64, 4096, 0).tolist()) == {33}


def test_lengths_shorten_samples_and_leave_their_tokens_as_they_are() -> None:
    whole = make_up(SyntheticOptions(samples=32), 64, 0)
    cut = make_up(SyntheticOptions(samples=32, lengths=Lengths(median=20)), 64, 0)
    assert cut.fingerprint != whole.fingerprint
    assert len(set(cut.lengths.tolist())) > 5
    for index in range(32):
        beginning = whole.sample(index)[: cut.lengths[index]]
        assert cut.sample(index).tolist() == beginning.tolist()


def test_constant_lengths_keep_the_content_that_they_have_had() -> None:
    assert make_up(SyntheticOptions(samples=8), 16, 0).fingerprint == "1e8baca1742227e4b788fbce"


def test_a_minimum_above_the_sequence_length_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"lengths\.minimum is 16, but .* is 8: make"):
        make_up(SyntheticOptions(lengths=Lengths()), 8, 0)


@pytest.mark.parametrize("padding, constant", [("longest", False), ("max_length", True)])
def test_samples_of_unequal_lengths_are_padded_as_asked(
    make_run: Callable[..., Run], padding: str, constant: bool
) -> None:
    data = {
        "use": "synthetic",
        "sequence_length": 64,
        "lengths": {"median": 10, "minimum": 4},
        "padding": padding,
    }
    run = make_run(data=data, train={"micro_batch_size": 4})
    plugin = Synthetic(SyntheticOptions.model_validate(run.scenario.data.options))
    run.dataset = plugin.load_data(run)
    batches = plugin.build_batches(run)
    widths = {next(batches).inputs["input_ids"].shape[1] for _ in range(8)}
    assert (widths == {64}) is constant
    batch = next(batches)
    assert batch.inputs["attention_mask"].sum() == batch.tokens.real < batch.tokens.processed
    evidence = evidence_of(run)
    assert evidence["constant_length"] is False
    assert 4 <= evidence["shortest"] < evidence["mean_length"] < evidence["longest"] <= 64


@pytest.mark.parametrize(
    "lengths", [{"median": 0}, {"sigma": -1}, {"minimum": 1}, {"median": 300.5}, {"mean": 3}, 300]
)
def test_lengths_that_mean_nothing_are_refused(lengths: Any) -> None:
    with pytest.raises(ValidationError):
        SyntheticOptions.model_validate({"lengths": lengths})


def test_the_plugin_modules_import_nothing_heavy() -> None:
    program = (
        "from accel_bench_huggingface import loader, lora, synthetic\n"
        "from accel_bench_huggingface.text import Text, TextOptions\n"
        "from types import SimpleNamespace as Some\n"
        "experiment = Some(scenario=Some(model=Some(weights='random')))\n"
        "assert Text(TextOptions()).fingerprint(experiment)\n"
    )
    heavy = {"numpy", "peft", "pyarrow", "tokenizers", "torch", "transformers"}
    assert not imported(program, heavy)
