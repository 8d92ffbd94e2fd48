"""Scenario of `accel-bench judge`, with the reference as baseline and a stack per candidate."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accel_bench.errors import ScenarioError
from accel_bench_judge.step_files import CANDIDATE, REFERENCE, check_file

TASK, ENGINE = "training-step", "judged-step"
REFERENCE_STACK = "reference"

WARMUP = 3
"""Number of steps of each run before the measured steps, after the step whose FLOPs are counted."""


def stack_names(candidates: Sequence[Path]) -> list[str]:
    """Return a stack name for each file: the file's name after as many folders as make it unique.

    Raises ScenarioError if a file is given twice.
    """
    paths = [path.resolve() for path in candidates]
    for parts in range(1, max(len(path.parts) for path in paths) + 1):
        names = [name_of(path, parts) for path in paths]
        if len({REFERENCE_STACK, *names}) > len(names):
            return names
    raise ScenarioError("a candidate is given twice; name each file once")


def name_of(path: Path, parts: int) -> str:
    """Return the last `parts` names in a path, without suffix, as a valid name of a stack."""
    text = re.sub(r"[^A-Za-z0-9._+-]", "-", "-".join(path.with_suffix("").parts[-parts:]))
    return re.sub(r"^[^A-Za-z0-9]+", "", text[-64:]) or "step"


def judge_scenario(
    reference: Path, candidates: Sequence[Path], steps: int, rounds: int, fewer_flops: bool
) -> dict[str, Any]:
    """Return the scenario that times the files' steps, as a mapping.

    `fewer_flops` allows candidates fewer FLOPs than the reference. Raises ScenarioError if a file
    lacks a function, or is given twice.
    """
    check_file(reference, REFERENCE)
    for path in candidates:
        check_file(path, CANDIDATE)
    names = stack_names(candidates)
    files: Mapping[str, Path] = {
        REFERENCE_STACK: reference,
        **dict(zip(names, candidates, strict=True)),
    }
    return {
        "name": f"judge.{name_of(reference, 1)}",
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
