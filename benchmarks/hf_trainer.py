"""Measure Trainer's overhead: step time of the `hf-trainer` engine over the `torch` engine."""

from __future__ import annotations

from typing import Any

from benchmarks.built_run import BuiltRun, build_run
from benchmarks.engine import LARGE, TINY
from benchmarks.entry import Counts, Entry, interleave, ratio_of_pairs, this_machine


def measure_hf_trainer(counts: Counts, device: str = "cpu") -> Entry:
    """Measure both engines, each on an own model from one seed, in turns in one process.

    The torch engine is measured twice in every round: how far its two times lie apart is the noise.
    The interval is that of rounds in this process; another process may lie outside it.
    """
    overrides: dict[str, Any] = {"resources.device": device}
    if device == "cuda":
        overrides |= {"model.overrides": {"num_hidden_layers": 4}}
    scenario = LARGE if device == "cuda" else TINY
    machine = this_machine()
    with (
        build_run(scenario, overrides) as plain,
        build_run(scenario, {**overrides, "engine.use": "hf-trainer"}) as trainer,
    ):
        samples = interleave(
            {
                "hf_trainer_step_seconds": lambda: step_seconds(trainer, counts.steps),
                "torch_step_seconds": lambda: step_seconds(plain, counts.steps),
                "torch_again_step_seconds": lambda: step_seconds(plain, counts.steps),
            },
            counts.windows,
        )
    return Entry(
        name="hf-trainer",
        **ratio_of_pairs(samples["hf_trainer_step_seconds"], samples["torch_step_seconds"]),
        goal=None,
        goal_is="at most",
        samples=samples,
        machine=machine,
    )


def step_seconds(built: BuiltRun, steps: int) -> float:
    """Return mean seconds of a window's steps; the wall clock ends when the device has ended."""
    window = built.take_measured_steps(steps).window()
    return (window.ended - window.started) / len(window.samples)
