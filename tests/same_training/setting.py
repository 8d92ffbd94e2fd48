"""The settings in which stacks train beside a baseline, and what the program says of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from kit import run_or_skip, this_machine
from same_training.distribution import CHEATS, HONEST
from same_training.honest import SETTINGS as HONEST_SETTINGS
from same_training.honest import SHIPPED

from accel_bench import Result
from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.analysis.schema import ExperimentSummary
from accel_bench.analysis.summary import summarize
from accel_bench.planning.plan import Planned, PlanRequest, make_plan
from accel_bench.plugins.registry import installed
from accel_bench.runner.update_files import PendingUpdates
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.settings import Measure

RATES = {"full": 2e-5, "lora": 2e-4}
"""Learning rates at which such models are usually fine-tuned, by what trains."""

SIZES = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "vocab_size": 128}

WORK: dict[str, Any] = {
    "name": "same-training",
    "data": {
        "sequence_length": 32,
        "vocab_size": 128,
        "samples": 256,
        "lengths": {"median": 16, "sigma": 0.5, "minimum": 6},
    },
    "resources": {"device": "cpu", "threads": 1},
}
"""What all settings share: sequences of several lengths, padded."""

FINE_TUNING: dict[str, Any] = {
    "train": {"micro_batch_size": 2, "gradient_accumulation": 2},
    "measure": {"warmup": 2, "steps": 10, "rounds": 1, "phase_steps": 0},
}

PRETRAINING: dict[str, Any] = {
    "train": {"micro_batch_size": 16, "learning_rate": 3e-3},
    "measure": {"warmup": 1, "steps": 300, "rounds": 1, "phase_steps": 0},
}


class Setting:
    """One model, trained in full or by an adapter, with all stacks that apply to it."""

    def __init__(self, trains: str, model: dict[str, Any], folder: Path) -> None:
        self.trains, self._model, self._folder = trains, model, folder
        self._changes = PendingUpdates("baseline", Measure().exact_update_bytes)

    def close(self) -> None:
        """Let the baseline's change go."""
        self._changes.close()

    @cached_property
    def planned(self) -> dict[str, Planned]:
        """All stacks, planned at once."""
        stacks: dict[str, Any] = {"baseline": [], **stacks_of(self.trains)}
        return plan({**work(self.trains, self._model), "stacks": stacks})

    @cached_property
    def baseline(self) -> Result:
        """The run with which all others are compared."""
        return run_or_skip(self.planned["baseline"], self._folder, changes=self._changes).result

    def row(self, stack: str) -> ExperimentSummary:
        """Run a stack, and return its row beside the baseline's."""
        beside = self.baseline
        result = run_or_skip(self.planned[stack], self._folder, changes=self._changes).result
        chosen = [self.planned[name] for name in ("baseline", stack)]
        rows = [PlannedSummary(experiment=p.experiment, skipped=p.skipped) for p in chosen]
        summary = summarize("same-training", "baseline", rows, [beside, result], rounds=1)
        return summary.experiments[1]


def stacks_of(trains: str) -> dict[str, Any]:
    """Return the stacks that apply where the model trains in full or by `lora`."""
    stacks: dict[str, Any] = {name: [name] for name in (*CHEATS, *HONEST)}
    stacks |= {name: {"set": settings} for name, settings in HONEST_SETTINGS.items()}
    return {
        name: use
        for name, use in {**stacks, **SHIPPED}.items()
        if applies(name, trains) and is_installed(name)
    }


def is_installed(name: str) -> bool:
    """Return whether all plugins of a stack of ours are here: core has none of them."""
    named = [use if isinstance(use, str) else use["use"] for use in SHIPPED.get(name, [])]
    engine = HONEST_SETTINGS.get(name, {}).get("engine.use", "torch")
    return {engine, *named} <= {plugin.name for plugin in installed()}


def applies(name: str, trains: str) -> bool:
    """Return whether a stack changes anything there."""
    return getattr({**CHEATS, **HONEST}.get(name), "_trains", trains) == trains


def caught(name: str) -> str:
    """Return the pattern of the words by which a cheat is to be refused."""
    usual = "its update is|its weights did not move"
    return str(getattr(CHEATS[name], "_caught", usual))


def work(trains: str, model: dict[str, Any]) -> dict[str, Any]:
    """Return a scenario's work at an ordinary rate of fine-tuning."""
    train = {**FINE_TUNING["train"], "learning_rate": RATES[trains]}
    adapter = {"use": "lora", "r": 4, "alpha": 16, "target_modules": "all-linear"}
    adapted = {"adapter": adapter} if trains == "lora" else {}
    return {**WORK, **FINE_TUNING, **adapted, "model": model, "train": train}


def random_model() -> dict[str, Any]:
    """Return a small llama with random weights."""
    return {"id": "tiny-llama-cpu", "overrides": SIZES}


def pretrained_model(folder: Path) -> dict[str, Any]:
    """Return that model, trained in `folder` until its loss is near the least that there is."""
    saved = folder / "pretrained"
    stacks = {"saved": [{"use": "saves-weights", "folder": str(saved)}]}
    trained = {**WORK, **PRETRAINING, "model": random_model(), "stacks": stacks}
    result = run_or_skip(plan(trained)["saved"], folder).result
    assert result.status.completed, result.reasons
    return {"id": str(saved), "weights": "pretrained"}


MODELS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "random": lambda folder: random_model(),
    "pretrained": pretrained_model,
}


def plan(scenario: dict[str, Any]) -> dict[str, Planned]:
    """Plan a scenario, and return its experiments by stack."""
    request = PlanRequest(oversubscribe=True)
    planned = make_plan(Draft("same-training", scenario), this_machine(), request).planned
    return {one.experiment.stack.name: one for one in planned}


def refusal(row: ExperimentSummary) -> str:
    """Return why the program gives a row no verdict, or another one; empty where it is `faster`
    when its steps are shorter."""
    if not row.status.completed:
        return f"{row.status.value}: {row.reasons[0]}"
    if row.failed_audit:
        return f"failed its audit: {row.failed_audit[0]}"
    return f"different training: {row.training_difference}" if row.training_difference else ""
