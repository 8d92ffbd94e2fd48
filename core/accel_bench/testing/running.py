"""Run one plugin on a tiny model, in process."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from accel_bench.errors import PluginError
from accel_bench.planning.plan import Planned
from accel_bench.result import Result, Status
from accel_bench.testing.in_process import SESSION, Execution, run_in_process
from accel_bench.testing.tiny import plan_trial
from accel_bench.testing.traces import preserved

STARTS_PROCESSES = ("launcher", "parallel")
"""Slots whose work is several processes."""


def run_plugin(
    name: str,
    *,
    scenario: Mapping[str, Any] | None = None,
    device: str = "cpu",
    **options: Any,
) -> Result:
    """Prepare and measure an installed plugin on a tiny model, in this process.

    `options` are the plugin's; `scenario` holds keys of a scenario file, such as
    `{"model": {"id": "gpt2"}, "train": {"gradient_checkpointing": True}}`, which are merged over
    the tiny scenario (`accel_bench.testing.tiny`). An adapter or a dtype that the plugin needs is
    added. The result is what `accel-bench run` would store: `status`, `reasons`, and for the one
    rank `ranks[0].window.samples`, `.evidence[name]`, `.effective`, `.metrics`. A run that fails
    ends in a result that says so; one that a constraint excludes is `skipped` with its reasons.

    Raises PluginError and ScenarioError for what `accel-bench run` refuses before it starts:
    unknown names, wrong options, broken plugins, and for a plugin that starts processes.
    """
    importlib.import_module("torch")
    with preserved():
        trial = plan_trial(name, options, scenario, device)
    refuse_processes(name, trial.slots)
    with tempfile.TemporaryDirectory(prefix="accel-bench-") as folder:
        return run_or_skip(trial.plugin, Path(folder)).result


def run_or_skip(planned: Planned, root: Path) -> Execution:
    """Carry a planned experiment out unless a constraint excludes it."""
    return Execution(_skipped(planned)) if planned.skipped else run_in_process(planned, root)


def refuse_processes(name: str, slots: tuple[str, ...]) -> None:
    """Raise PluginError for a plugin that means nothing in one process."""
    several = [slot for slot in slots if slot in STARTS_PROCESSES]
    if several:
        raise PluginError(
            f"plugin {name!r} fills the slot {several[0]!r}, which needs processes of its own; "
            "try it with `accel-bench run`"
        )


def _skipped(planned: Planned) -> Result:
    """The result of an experiment that was not run."""
    return Result(
        run_id=f"{SESSION}-skipped",
        session=SESSION,
        experiment=planned.experiment,
        round=0,
        position=0,
        status=Status.SKIPPED,
        reasons=planned.skipped,
        started_at=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        seconds=0.0,
        plugins=planned.active.versions(),
        loss_tolerance=planned.active.loss_tolerance(),
    )
