"""Count how often two identical stacks are said to train otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from accel_bench.analysis.checks.training import compare_training
from accel_bench.analysis.checks.training_verdict import TrainingComparison
from accel_bench.documents.base import JsonValue
from accel_bench.testing import run_scenario
from benchmarks.entry import Counts, Entry, this_machine
from benchmarks.identical import AGAIN

SCENARIO = Path(__file__).with_name("identical-training.yaml")
"""Scenario of a small model at an ordinary rate of fine-tuning."""

KINDS: dict[str, dict[str, JsonValue]] = {
    "full": {},
    "lora": {
        "adapter": {"use": "lora", "r": 4, "alpha": 16, "target_modules": "all-linear"},
        "train.learning_rate": 2e-4,
    },
    "bfloat16": {"model.dtype": "bfloat16"},
    "autocast": {"train.precision": "bf16-autocast"},
    "two_threads": {"resources.threads": 2},
}
"""Settings in which pairs are trained, by what is unlike the first."""


def measure_identical_training(counts: Counts) -> Entry:
    """Train pairs of identical stacks, each pair with a seed of its own, and judge each.

    In one process, one run after the other: how fast they are is no part of it. Whoever says of
    one of them that it trained otherwise, by its loss, its update or what trains, is wrong.
    """
    machine = this_machine()
    wrong = 0
    samples: dict[str, tuple[float, ...]] = {}
    for kind, settings in KINDS.items():
        found = [judge_pair(seed, settings) for seed in range(counts.identical_pairs)]
        wrong += sum(bool(one.not_the_same) for one in found)
        samples[f"{kind}_update_difference"] = tuple(map(distance_of, found))
    return Entry(
        name="identical-training",
        value=float(wrong),
        unit=f"false alarms in {sum(map(len, samples.values()))} pairs",
        goal=0,
        goal_is="at most",
        samples=samples,
        machine=machine,
    )


def judge_pair(seed: int, settings: Mapping[str, JsonValue]) -> TrainingComparison:
    """Train both stacks with this seed, and compare the training of the second with the first's.

    Raises RuntimeError where a run did not complete.
    """
    runs = run_scenario(SCENARIO, settings={**settings, "train.seed": seed})
    for name, run in runs.items():
        if not run.status.completed:
            raise RuntimeError(f"{name}, seed {seed}: {run.status.value}: {'; '.join(run.reasons)}")
    baseline, again = ({("pair", 0): runs[name]} for name in ("baseline", AGAIN))
    return compare_training(baseline, again)


def distance_of(compared: TrainingComparison) -> float:
    """Return how far two updates are apart. Raises RuntimeError where they were not compared."""
    if compared.update_difference is None:
        raise RuntimeError(f"no update was compared: {compared.update_reason}")
    return compared.update_difference
