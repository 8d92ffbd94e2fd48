"""`source: synthetic`: instructions and preferences by seed, which models learn."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from accel_bench_text_tasks.data.instructions import Instructions, InstructionsOptions
from accel_bench_text_tasks.data.preferences import Preferences, PreferencesOptions
from accel_bench_text_tasks.data.synthetic_rows import ROWS, rows_digest, synthetic_rows
from tokenizers import Tokenizer

from accel_bench import Run
from accel_bench.errors import ScenarioError
from accel_bench.machine.info import read_machine
from accel_bench.modeling.data.token_batches import IGNORED_LABEL
from accel_bench.planning.plan import PlanRequest, make_plan
from accel_bench.scenario.find import read_draft
from accel_bench.testing import run_scenario

MakeRun = Callable[..., Run]

OPTIONS: dict[str, Any] = {"source": "synthetic", "vocab_size": 512, "maximum_samples": 200}

WORK: dict[str, Any] = {
    "model": {
        "id": "tiny-llama-cpu",
        "overrides": {"num_hidden_layers": 1, "hidden_size": 64, "vocab_size": 512},
    },
    "train": {"micro_batch_size": 8, "learning_rate": 0.003},
    "resources": {"device": "cpu"},
    "measure": {"warmup": 1, "steps": 19, "phase_steps": 0, "rounds": 1},
    "stacks": {"baseline": []},
}


def write(folder: Path, use: str, **data: Any) -> Path:
    """Write a scenario of synthetic rows."""
    task = "dpo" if use == "preferences" else "causal-lm"
    path = folder / f"{use}.yaml"
    chosen = {"use": use, "sequence_length": 64, "padding": "longest", **OPTIONS, **data}
    path.write_text(json.dumps({**WORK, "task": task, "data": chosen}))
    return path


def test_the_answer_is_the_prompt_s_words_in_order_and_the_rejected_one_is_not() -> None:
    rows = list(synthetic_rows(0, None))
    assert len(rows) == ROWS
    for row in rows:
        words = row.prompt.removeprefix("Sort:").removesuffix("\nSorted:").split()
        assert row.answer.split() == sorted(words)
        assert row.rejected.split() != sorted(words) == sorted(row.rejected.split())
    assert len({row.prompt for row in rows}) > 0.99 * ROWS


def test_the_seed_alone_decides_the_rows() -> None:
    assert list(synthetic_rows(3, 20)) == list(synthetic_rows(3, None))[:20]
    assert not {row.prompt for row in synthetic_rows(3, 20)} & {
        row.prompt for row in synthetic_rows(4, 20)
    }
    assert rows_digest(3) == rows_digest(3) != rows_digest(4)


def test_instructions_have_a_loss_on_the_sorted_words_alone(make_run: MakeRun) -> None:
    plugin = Instructions(InstructionsOptions.model_validate(OPTIONS))
    prints, answers = [], []
    for seed in (1, 1, 2):
        dataset = plugin.load_data(make_run(data={"sequence_length": 64, "seed": seed}))
        assert len(dataset) == 200
        decode = Tokenizer.from_file(str(dataset.tokenizer_path)).decode
        learned = [one for one in dataset.labels(7).tolist() if one != IGNORED_LABEL]
        assert decode(learned) == list(synthetic_rows(seed, 8))[7].answer
        prints.append(dataset.fingerprint)
        answers.append(decode(learned))
    assert prints[0] == prints[1] != prints[2]
    assert answers[0] == answers[1] != answers[2]


def test_preferences_are_batches_of_right_answers_before_wrong_ones(make_run: MakeRun) -> None:
    plugin = Preferences(PreferencesOptions.model_validate(OPTIONS))
    run = make_run(data={"sequence_length": 64}, train={"micro_batch_size": 4})
    run.dataset = plugin.load_data(run)
    decode = Tokenizer.from_file(str(run.dataset.tokenizer_path)).decode
    for batch in islice(plugin.build_batches(run), 3):
        texts = [decode(row) for row in batch.inputs["input_ids"].tolist()]
        for chosen, rejected in zip(texts[:4], texts[4:], strict=True):
            prompt, _, right = chosen.partition("\nSorted:")
            also, _, wrong = rejected.partition("\nSorted:")
            assert prompt == also
            assert right.split() == sorted(right.split()) == sorted(wrong.split()) != wrong.split()


@pytest.mark.parametrize("use", ["instructions", "preferences"])
def test_a_small_model_learns_them(use: str, tmp_path: Path) -> None:
    (result,) = run_scenario(write(tmp_path, use)).values()
    assert result.status.completed, result.reasons
    window = result.ranks[0].window
    assert window is not None
    losses = [float(one.loss or 0) for one in (*window.warmup, *window.samples)]
    least = {"instructions": 1.0, "preferences": 0.1}[use]
    assert sum(losses[-4:]) / 4 < losses[0] - least


def test_a_seed_is_another_experiment_with_another_fingerprint(tmp_path: Path) -> None:
    found = []
    for seed in (0, 0, 1):
        path = write(tmp_path, "preferences", seed=seed)
        (one,) = make_plan(read_draft(path), read_machine(), PlanRequest()).runnable
        plugin = Preferences(PreferencesOptions.model_validate(OPTIONS))
        found.append((one.experiment.id, plugin.fingerprint(one.experiment)))
    first, again, other = found
    assert first == again
    assert first[0] != other[0] and first[1] != other[1]


def test_a_limit_without_a_row_is_told_with_the_way_out(make_run: MakeRun) -> None:
    options = InstructionsOptions.model_validate({**OPTIONS, "limit_bytes": 5})
    with pytest.raises(ScenarioError, match=r"first 5 bytes of the synthetic rows: .*limit_bytes"):
        Instructions(options).load_data(make_run(data={"sequence_length": 64}))
