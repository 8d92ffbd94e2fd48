"""Both engines do the same work: equal tokens and equal losses from one seed.

In one process; tests/test_distributed.py compares them with two ranks each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli.program import call

from accel_bench import Sample
from accel_bench.result import Window

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]

ENGINES = ("torch", "hf-trainer")

SCENARIO = """
name: engines
model: {id: tiny-llama-cpu, overrides: {num_hidden_layers: 1}}
data: {use: text, source: path, path: TEXT, sequence_length: 32}
train: {global_batch_size: 8, gradient_accumulation: 1, learning_rate: 1e-3}
resources: {device: cpu, threads: 1}
measure: {warmup: 1, steps: 4, rounds: 1}
stacks:
  torch: []
  hf-trainer: {set: {engine.use: hf-trainer}}
"""

LORA = {"adapter.use": "lora", "adapter.r": 4, "adapter.dropout": 0.1}
PADDED = {"data.packing": False, "data.padding": "longest", "data.sequence_length": 256}
TWICE = {"train.gradient_accumulation": 2}


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scenario of both engines on texts of unequal length."""
    folder = tmp_path_factory.mktemp("engines")
    text = folder / "text"
    text.mkdir()
    for number in range(40):
        words = " ".join(f"word{number * i % 97}" for i in range(30 + number))
        (text / f"{number}.txt").write_text(words)
    path = folder / "engines.yaml"
    path.write_text(SCENARIO.replace("TEXT", str(text)))
    return path


def figures(samples: tuple[Sample, ...]) -> list[tuple[int, int, int, int]]:
    """Counts of each step."""
    return [
        (step.sequences, step.processed_tokens, step.real_tokens, step.supervised_tokens)
        for step in samples
    ]


def assert_same(ours: tuple[Sample, ...], theirs: tuple[Sample, ...]) -> None:
    """Check that counts are equal, and that losses move and differ by rounding only."""
    assert len(theirs) == 5
    assert figures(ours) == figures(theirs)
    assert len({step.loss for step in theirs}) == 5
    assert [step.loss for step in ours] == pytest.approx([step.loss for step in theirs], rel=1e-5)


def first_steps(window: Window) -> tuple[Sample, ...]:
    """Return the steps that every window has; a disturbed window is measured again."""
    return (*window.warmup, *window.discarded, *window.samples)[:5]


def is_padded(steps: tuple[Sample, ...]) -> bool:
    """Return whether the model processed padding tokens."""
    return any(step.real_tokens < step.processed_tokens for step in steps)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        # Beside one another below.
        *(pytest.param(one, marks=pytest.mark.release) for one in (TWICE, PADDED, LORA)),
        LORA | PADDED | TWICE | {"train.gradient_checkpointing": True},
        {"train.max_grad_norm": 0.1, "optimizer.use": "sgd"},
        {"train.precision": "bf16-autocast"},
    ],
    ids=["full", "accumulation", "padded", "lora", "all", "clipped", "bf16"],
)
def test_both_engines_see_the_same_tokens_and_losses(
    scenario: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.built_run import build_run

    windows = []
    for engine in ENGINES:
        with build_run(scenario, {**changes, "engine.use": engine}) as built:
            windows.append(built.take_measured_steps(4).window())
    plain, trainer = map(first_steps, windows)
    assert_same(trainer, plain)
    assert is_padded(trainer) is ("data.padding" in changes)


def test_fp16_on_a_cpu_is_refused_before_trainer_could_train_in_float32(scenario: Path) -> None:
    words = ["--set", "train.precision=fp16-autocast", "--only", "hf-trainer", "--no-baseline"]
    words += ["--results", str(scenario.parent / "fp16")]
    done = call("run", str(scenario), "--quiet", *words)
    assert done.code == 2, done.out + done.err
    assert "fp16-autocast is not possible on a CPU" in done.err
