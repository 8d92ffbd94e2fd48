"""Preferences: pairs of answers with one prompt become rows, the chosen before the rejected."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_bench_text_tasks.data.preferences import Preferences, PreferencesOptions
from accel_bench_text_tasks.data.preferences_impl import PreferenceDataset
from tokenizers import Tokenizer

from accel_bench import Batch, Run
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data.token_batches import IGNORED_LABEL
from accel_bench.testing import evidence_of

MakeRun = Callable[..., Run]

PAIRS: list[dict[str, Any]] = [
    {"prompt": f"{n} and {n}?", "chosen": f" It is {2 * n}.", "rejected": f" {n * 'No! '}"}
    for n in range(1, 9)
]


def plugin_of(folder: Path, rows: list[dict[str, Any]], **options: Any) -> Preferences:
    """The plugin on given rows."""
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    chosen = {"source": "path", "path": str(path), "vocab_size": 300, **options}
    return Preferences(PreferencesOptions.model_validate(chosen))


def text(dataset: PreferenceDataset, ids: list[int]) -> str:
    """Decoded text of tokens."""
    tokenizer = Tokenizer.from_file(str(dataset.tokenizer_path))
    return str(tokenizer.decode(ids, skip_special_tokens=False))


def said(dataset: PreferenceDataset, sequence: int) -> tuple[str, str]:
    """Text of a sequence, and of its answer."""
    ids = dataset.sequences.sample(sequence).tolist()
    labels = dataset.sequences.labels(sequence).tolist()
    return text(dataset, ids), text(dataset, [one for one in labels if one != IGNORED_LABEL])


def test_both_answers_of_a_pair_follow_their_prompt(make_run: MakeRun, tmp_path: Path) -> None:
    plugin = plugin_of(tmp_path, PAIRS)
    dataset = plugin.load_data(make_run(data={"sequence_length": 64}))
    assert len(dataset) == 8
    assert said(dataset, 4) == ("3 and 3? It is 6.<|endoftext|>", " It is 6.<|endoftext|>")
    assert said(dataset, 5) == ("3 and 3? No! No! No! <|endoftext|>", " No! No! No! <|endoftext|>")


def test_answers_that_the_prompt_holds_are_no_answers(make_run: MakeRun, tmp_path: Path) -> None:
    before = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "Bye"},
    ]
    row = {
        "prompt": before,
        "chosen": [{"role": "assistant", "content": "Farewell"}],
        "rejected": [{"role": "assistant", "content": "No"}],
    }
    dataset = plugin_of(tmp_path, [row]).load_data(make_run(data={"sequence_length": 128}))
    whole, learned = said(dataset, 0)
    assert whole.count("assistant") == 2
    assert learned == "Farewell<|endoftext|>"
    assert said(dataset, 1)[1] == "No<|endoftext|>"


def turn(role: str, content: str) -> dict[str, str]:
    """A message."""
    return {"role": role, "content": content}


@pytest.mark.parametrize("prompt", ["Q?", [turn("user", "Q?")]], ids=["text", "messages"])
def test_whole_conversations_do_not_repeat_their_prompt(
    prompt: Any, make_run: MakeRun, tmp_path: Path
) -> None:
    before = [turn("user", "Q?"), turn("assistant", "What?"), turn("user", "Go on.")]
    row = {
        "prompt": prompt,
        "chosen": [*before, turn("assistant", "Yes")],
        "rejected": [*before, turn("assistant", "No")],
    }
    dataset = plugin_of(tmp_path, [row]).load_data(make_run(data={"sequence_length": 128}))
    whole, learned = said(dataset, 0)
    assert (whole.count("Q?"), whole.count("Go on."), learned) == (1, 1, "Yes<|endoftext|>")
    assert said(dataset, 1)[1] == "No<|endoftext|>"


def test_answers_that_begin_with_another_prompt_are_refused(
    make_run: MakeRun, tmp_path: Path
) -> None:
    row = {
        "prompt": "Q?",
        "chosen": [turn("user", "Other?"), turn("assistant", "Yes")],
        "rejected": [turn("user", "Other?"), turn("assistant", "No")],
    }
    with pytest.raises(ScenarioError, match=r"pairs\.jsonl:1: the answers begin with a message"):
        plugin_of(tmp_path, [row]).load_data(make_run(data={"sequence_length": 128}))


def test_a_batch_holds_chosen_sequences_before_rejected_ones_and_counts_both(
    make_run: MakeRun, tmp_path: Path
) -> None:
    plugin = plugin_of(tmp_path, PAIRS, padding="longest")
    run = make_run(
        data={"sequence_length": 64}, train={"micro_batch_size": 2, "gradient_accumulation": 2}
    )
    run.dataset = plugin.load_data(run)
    first, second = islice(plugin.build_batches(run), 2)
    ids, labels = first.inputs["input_ids"], first.inputs["labels"]
    assert ids.shape[0] == 4
    for chosen, rejected in ((0, 2), (1, 3)):
        texts = [text(run.dataset, ids[row].tolist()) for row in (chosen, rejected)]
        prompts = {one.partition("?")[0] for one in texts}
        assert len(prompts) == 1
        assert " It is" in texts[0] and " No!" in texts[1]
    counted = int((labels[:, 1:] != IGNORED_LABEL).sum())
    assert first.sequences == 2
    assert first.tokens.supervised == counted
    assert first.tokens.real == int(first.inputs["attention_mask"].sum())
    assert first.tokens.processed == ids.numel()
    assert first.supervised_in_step == second.supervised_in_step == 4
    of_chosen = sum(
        int((batch.inputs["labels"][:2, 1:] != IGNORED_LABEL).sum()) for batch in (first, second)
    )
    for batch in (first, second):
        assert torch.equal(batch.inputs["chosen_tokens"], torch.tensor([of_chosen]))


def test_ranks_share_the_pairs_of_a_step(make_run: MakeRun, tmp_path: Path) -> None:
    plugin = plugin_of(tmp_path, PAIRS)
    seen = []
    for rank in range(2):
        run = make_run(
            data={"sequence_length": 64},
            train={"micro_batch_size": 2},
            resources={"devices": 2},
        )
        run.rank, run.world_size = rank, 2
        run.dataset = plugin.load_data(run)
        batch = next(plugin.build_batches(run))
        assert batch.supervised_in_step == 4
        seen += [
            text(run.dataset, row.tolist()).partition("?")[0] for row in batch.inputs["input_ids"]
        ]
    assert len(set(seen)) == 4


def test_held_out_pairs_are_evaluated_once_by_all_ranks(make_run: MakeRun, tmp_path: Path) -> None:
    plugin, found = plugin_of(tmp_path, PAIRS), []
    for rank in range(2):
        run = make_run(
            data={"sequence_length": 64, "held_out": 3},
            train={"micro_batch_size": 1},
            resources={"devices": 2},
        )
        run.rank, run.world_size = rank, 2
        run.dataset = plugin.load_data(run)
        found.append(list(plugin.build_evaluation_batches(run)))
        trained = {row_text(run, row) for row in batch_rows(islice(plugin.build_batches(run), 8))}
        held = {row_text(run, row) for row in batch_rows(found[-1])}
        assert not trained & held
    assert [[one.sequences for one in batches] for batches in found] == [[1, 1], [1, 0]]
    every = [one for batches in found for one in batches]
    assert {one.supervised_in_step for one in every} == {3}
    chosen = {int(one.inputs["chosen_tokens"]) for one in every}
    counted = [one.inputs["labels"][:1, 1:] != IGNORED_LABEL for one in every if one.sequences]
    assert chosen == {sum(int(labels.sum()) for labels in counted)}


def batch_rows(batches: Iterable[Batch]) -> list[torch.Tensor]:
    """The token ids of all rows."""
    return [row for batch in batches for row in batch.inputs["input_ids"]]


def row_text(run: Run, row: torch.Tensor) -> str:
    """Decoded text of a row."""
    return text(run.dataset, row.tolist()).partition("?")[0]


def test_a_pair_that_loses_an_answer_is_left_out_and_counted(
    make_run: MakeRun, tmp_path: Path
) -> None:
    rows = [*PAIRS, {"prompt": "word " * 90, "chosen": "a", "rejected": "b"}]
    run = make_run(data={"sequence_length": 32})
    dataset = plugin_of(
        tmp_path, [*rows, {"prompt": "?", "chosen": "a", "rejected": ""}]
    ).load_data(run)
    found = evidence_of(run)
    assert len(dataset) == found["samples"] == 8
    assert found["samples_without_answer"] == 1
    assert found["empty"] == 1
    with pytest.raises(ScenarioError, match="no pair of answers is left within"):
        plugin_of(tmp_path, PAIRS).load_data(make_run(data={"sequence_length": 2}))


def test_the_standard_library_rejects_the_body_of_another_function(make_run: MakeRun) -> None:
    plugin = Preferences(PreferencesOptions(limit_bytes=20_000, vocab_size=300))
    dataset = plugin.load_data(make_run(data={"sequence_length": 4096}))
    assert len(dataset) > 5
    (chosen, good), (rejected, bad) = said(dataset, 0), said(dataset, 1)
    assert chosen.removesuffix(good) == rejected.removesuffix(bad)
    assert good != bad
