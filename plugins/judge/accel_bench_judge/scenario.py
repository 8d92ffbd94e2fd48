"""The scenario of `judge`: the reference as the baseline, and a stack for each candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accel_bench.errors import ScenarioError

TASK, ENGINE = "training-step", "judged-step"
REFERENCE_STACK = "reference"

WARMUP = 3
"""Steps of each run before the measured ones; the one whose FLOPs are counted is before them."""


def judge_scenario(
    reference: Path, candidates: Sequence[Path], steps: int, rounds: int, fewer_flops: bool
) -> dict[str, Any]:
    """Return the scenario. Raises ScenarioError for files that cannot be told apart."""
    for path in (reference, *candidates):
        if not path.is_file():
            raise ScenarioError(f"{path} is no file")
    names = [path.stem for path in candidates]
    if len({REFERENCE_STACK, *names}) <= len(names):
        names = [str(path) for path in candidates]
    if len({REFERENCE_STACK, *names}) <= len(names):
        raise ScenarioError("a candidate is given twice; name each file once")
    files: Mapping[str, Path] = {
        REFERENCE_STACK: reference,
        **dict(zip(names, candidates, strict=True)),
    }
    return {
        "name": f"judge.{reference.stem}",
        "description": f"Do {', '.join(names)} train as {reference.name} does, and faster?",
        "task": {"use": TASK},
        "model": {"use": "none", "id": reference.stem},
        "data": {"use": "none", "sequence_length": 1},
        "optimizer": {"use": "none"},
        "engine": {
            "use": ENGINE,
            "file": str(reference.resolve()),
            "reference": str(reference.resolve()),
            "fewer_flops": fewer_flops,
        },
        "train": {"micro_batch_size": 1},
        "measure": {"warmup": WARMUP, "steps": steps, "rounds": rounds, "phase_steps": 0},
        "resources": {"device": "cpu"},
        "stacks": {
            name: {"set": {} if name == REFERENCE_STACK else {"engine.file": str(path.resolve())}}
            for name, path in files.items()
        },
        "baseline": REFERENCE_STACK,
    }
