"""Measure the torch engine's overhead: its tokens per second over those of the bare loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.built_run import BuiltRun, build_run
from benchmarks.entry import Counts, Entry, interleave, median_ratio, this_machine

FOLDER = Path(__file__).parent

TINY = FOLDER / "tiny-llama.yaml"
"""Scenario of a model that a CPU trains."""

LARGE = FOLDER / "llama-2-7b-lora.yaml"
"""Scenario of a model for a GPU; four of its layers show the same as all of them."""


def measure_engine(counts: Counts, device: str = "cpu", name: str = "engine") -> Entry:
    """Measure both loops on the model of the quickstart. Only a GPU's figure has a goal."""
    overrides = {"resources.device": device}
    return _measure(name, TINY, overrides, counts, goal=None)


def measure_large_engine(counts: Counts, device: str = "cuda") -> Entry:
    """Measure both loops on four layers of Llama 2 7B with LoRA: the ratio that has a goal."""
    overrides = {"resources.device": device, "model.overrides": {"num_hidden_layers": 4}}
    return _measure("engine-large", LARGE, overrides, counts, goal=0.995)


def _measure(
    name: str, scenario: Path, overrides: dict[str, Any], counts: Counts, goal: float | None
) -> Entry:
    """Train one model by both loops in turns, in one process.

    The bare loop is measured twice in every round: how far its two speeds lie apart is the noise.
    """
    machine = this_machine()
    with build_run(scenario, overrides) as built:
        built.take_bare_steps(3)
        samples = interleave(
            {
                "engine_tokens_per_second": lambda: engine_speed(built, counts.steps),
                "bare_tokens_per_second": lambda: bare_speed(built, counts.steps),
                "bare_again_tokens_per_second": lambda: bare_speed(built, counts.steps),
            },
            counts.windows,
        )
    return Entry(
        name=name,
        value=median_ratio(samples, "engine_tokens_per_second", "bare_tokens_per_second"),
        unit="ratio",
        goal=goal,
        goal_is="at least",
        samples=samples,
        machine=machine,
    )


def engine_speed(built: BuiltRun, steps: int) -> float:
    """Return real tokens per second of one window of the engine."""
    window = built.take_measured_steps(steps).window()
    tokens = sum(sample.real_tokens for sample in window.samples)
    return tokens / (window.ended - window.started)


def bare_speed(built: BuiltRun, steps: int) -> float:
    """Return real tokens per second of as many bare steps, after one that is not timed."""
    built.take_bare_steps(1)
    seconds, tokens = built.take_bare_steps(steps)
    return tokens / seconds
