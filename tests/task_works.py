"""Scenarios of all tasks at a tiny size, and how a stack trained them beside the baseline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit import shrunk
from media_works import WORKS

from accel_bench import Result
from accel_bench.analysis.checks.training import compare_training
from accel_bench.analysis.checks.training_verdict import training_obstacle
from accel_bench.testing import run_scenario

DPO: dict[str, Any] = {
    "task": {"use": "dpo", "beta": 0.5, "nll_scale": 0.1},
    "model": {
        "id": "tiny-llama-cpu",
        "overrides": {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 128},
    },
    "data": {
        "use": "preferences",
        "sequence_length": 64,
        "vocab_size": 400,
        "limit_bytes": 20_000,
        "padding": "longest",
    },
}
"""Preference tuning; a batch is as wide as its longest sequence."""


def text_work(task: str, model: str, **data: Any) -> dict[str, Any]:
    """Return a scenario of a text task with a small model."""
    sizes = {"sequence_length": 12, "vocab_size": 1024, **data}
    small = {"id": model, "overrides": shrunk(model)}
    return {"task": {"use": task}, "model": small, "data": sizes}


ALL: dict[str, dict[str, Any]] = {
    "masked-lm": text_work(
        "masked-lm",
        "bert-base-uncased",
        use="synthetic",
        sequence_length=32,
        lengths={"median": 24},
    ),
    "seq2seq-lm": text_work("seq2seq-lm", "t5-small", use="synthetic-pairs", samples=64),
    "embedding": text_work("embedding", "e5-small-v2", use="synthetic-pairs", samples=64),
    "dpo": DPO,
    **{work["task"]["use"]: work for name, work in WORKS.items() if name != "resnet"},
}
"""One scenario of each task that trains, but for `causal-lm`."""

# Its model normalizes over time, padding included, which else depends on the micro-batch.
ALL["ctc"] = {**ALL["ctc"], "data": {**ALL["ctc"]["data"], "padding": "max_length"}}

BY_MICRO_BATCH = frozenset({"embedding", "image-text", "speech-pretraining"})
"""Tasks whose loss depends on which samples share a micro-batch: ranks have micro-batches that one
process has not."""

MEASURED: dict[str, Any] = {
    "train": {"micro_batch_size": 4, "learning_rate": 1e-3},
    "resources": {"device": "cpu", "threads": 1},
    "measure": {"warmup": 1, "steps": 4, "phase_steps": 0, "rounds": 1},
}


def train_beside(
    folder: Path, name: str, stacks: Mapping[str, Any], /, **changes: Any
) -> dict[str, Result]:
    """Train a task's scenario by the baseline and by stacks, in this process."""
    path = folder / f"{name}.yaml"
    work = {**MEASURED, **ALL[name], "stacks": {"baseline": [], **stacks}, **changes}
    path.write_text(json.dumps(work))
    return run_scenario(path)


def assert_trains_as_said(results: Mapping[str, Result]) -> None:
    """All that trains gets a gradient, and each stack trains as the baseline or as it declares."""
    for name, result in results.items():
        assert result.status.completed, (name, result.reasons)
        flow = result.ranks[0].effective.gradient_flow
        assert flow is not None
        assert flow.tensors_with_gradient > 0
        compared = compare_training({("", 0): results["baseline"]}, {("", 0): result})
        assert not compared.training_difference, (name, compared.training_difference)
        obstacle = training_obstacle(compared)
        assert not obstacle or compared.differs_by_design, (name, obstacle)
