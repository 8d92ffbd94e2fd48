"""Runs and machines for tests that call hooks directly, and calls of callbacks from hooks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accel_bench.machine.info import GPU, Device, Machine
from accel_bench.plugins.manager import load_class
from accel_bench.run_context import Run
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.models import Scenario, Stack
from accel_bench_testing.tiny import merged


def make_experiment(scenario: Mapping[str, Any] | None = None) -> Experiment:
    """Return an experiment of the stack `baseline` on a CPU. `scenario` has keys of a scenario
    file, merged over the defaults."""
    written = merged({"resources": {"device": "cpu"}}, scenario or {})
    return Experiment(
        id="0" * 12,
        scenario=Scenario.model_validate_json(json.dumps(written)),
        stack=Stack(name="baseline"),
        identity={},
    )


def make_run(folder: Path, scenario: Mapping[str, Any] | None = None, **attributes: Any) -> Run:
    """Return the run object of one rank on a CPU, with its files in `folder`.

    `scenario` has keys of a scenario file, merged over the defaults. `attributes` are attributes of
    `Run`, such as `rank` or `model`; the model is also the unwrapped model.
    """
    attributes.setdefault("unwrapped_model", attributes.get("model"))
    attributes.setdefault("device", Device("cpu"))
    experiment, cache = make_experiment(scenario), folder / "cache"
    if "task" not in attributes:
        attributes["task"] = _task_of(experiment.scenario)
    return Run(experiment, folder=folder, cache_folder=cache, **attributes)


def _task_of(scenario: Scenario) -> Any:
    """Return a new task plugin of the kind and options that a scenario names."""
    kind = load_class(scenario.task.use, allow_torch=True)
    return kind(kind.Options.model_validate(scenario.task.options), scenario.task.use)


def make_machine(*capabilities: tuple[int, int], **facts: Any) -> Machine:
    """Return a machine with a GPU for each given compute capability, and without a compiler.

    `facts` are further fields of `Machine`.
    """
    usual = {"host": "h", "system": "s", "processor": "p", "python": "3", "versions": {}}
    gpus = tuple(
        GPU(
            index=n,
            name=f"GPU {n}",
            uuid=f"GPU-{n}",
            memory_bytes=2**34,
            compute_capability=version,
        )
        for n, version in enumerate(capabilities)
    )
    return Machine.model_validate({**usual, "cores": 2, "memory_bytes": 1, "gpus": gpus, **facts})


def evidence_of(run: Run) -> dict[str, Any]:
    """Return the evidence from all functions registered by `run.on_evidence`, merged into one
    dict."""
    return {key: value for _, report in run.evidence_callbacks for key, value in report().items()}


def close_run(run: Run) -> None:
    """Call all functions registered by `run.on_close`, the last one first, and forget them."""
    while run.undo_callbacks:
        run.undo_callbacks.pop()[1]()
