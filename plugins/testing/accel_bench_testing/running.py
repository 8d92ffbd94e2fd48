"""Functions that run a plugin on a tiny model or a scenario in process, or the whole program."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from accel_bench.documents.presets import preset_path
from accel_bench.errors import PluginError, ScenarioError
from accel_bench.planning.plan import Planned, PlanRequest
from accel_bench.planning.sizes import plan_with_sizes
from accel_bench.result import Result, Status
from accel_bench.runner.update_files import PendingUpdates
from accel_bench.scenario.find import read_draft
from accel_bench_testing.in_process import SESSION, Execution, run_in_process
from accel_bench_testing.process_state import preserved
from accel_bench_testing.tiny import plan_trial, this_machine

STARTS_PROCESSES = ("launcher", "parallel")
"""Kinds of plugins that start several processes."""


def run_plugin(
    name: str,
    *,
    scenario: Mapping[str, Any] | None = None,
    device: str = "cpu",
    **options: Any,
) -> Result:
    """Prepare and measure an installed plugin on a tiny model, in this process, and return the
    result.

    `options` are the plugin's. `scenario` holds keys of a scenario file, such as `{"model": {"id":
    "gpt2"}, "train": {"gradient_checkpointing": True}}`, which are merged over the tiny scenario
    (`accel_bench_testing.tiny`). An adapter or a dtype that the plugin needs is added. The result
    is the row that `accel-bench run` would store: `status`, `reasons`, and for the one rank
    `ranks[0].window.samples`, `.evidence[name]`, `.effective`, `.metrics`. A failed run has a
    result with its status. A run excluded by a constraint is `skipped` with its reasons.

    Raises PluginError and ScenarioError for input that `accel-bench run` refuses before it starts:
    unknown names, wrong options, broken plugins; and for a plugin that starts processes.
    """
    importlib.import_module("torch")
    with preserved():
        trial = plan_trial(name, options, scenario, device)
    if reason := needs_processes(name, trial.slots):
        raise PluginError(reason)
    with tempfile.TemporaryDirectory(prefix="accel-bench-") as folder:
        return run_or_skip(trial.plugin, Path(folder)).result


def run_scenario(
    scenario: str | Path,
    *,
    plugins: Sequence[str] = (),
    only: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Result]:
    """Run each stack of a scenario once, in this process, and return the results by stack.

    `scenario` is a file or the name of a shipped scenario. `plugins`, `only` and `settings` (values
    by dotted key) are as `--plugin`, `--only` and `--set` of `accel-bench run`. The program would
    store equal results, but with a process for each run. Use this function to test a plugin's
    training, and `run_program` once to test the program's output.

    Raises PluginError and ScenarioError for input that `accel-bench run` refuses, and ScenarioError
    for a scenario with several sweep points or ranks.
    """
    importlib.import_module("torch")
    path = scenario if isinstance(scenario, Path) else preset_path("scenarios", scenario)
    overrides = tuple((settings or {}).items())
    request = PlanRequest(
        plugins=tuple(plugins), only=tuple(only), overrides=overrides, oversubscribe=True
    )
    with preserved():
        plan = plan_with_sizes(read_draft(path), this_machine(), request)
    planned = plan.planned
    if any(run.experiment.scenario.resources.devices > 1 for run in planned):
        raise ScenarioError(f"{path}: the kit starts no ranks; use `run_program`")
    if len({run.experiment.stack.name for run in planned}) < len(planned):
        raise ScenarioError(f"{path}: `settings` must choose one point of its sweep")
    changes = PendingUpdates(plan.baseline, plan.file.measure.exact_update_bytes)
    with tempfile.TemporaryDirectory(prefix="accel-bench-") as folder, closing(changes):
        results = [run_or_skip(run, Path(folder), changes=changes).result for run in planned]
    return {result.experiment.stack.name: result for result in results}


def run_program(
    *arguments: str,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the program `accel-bench` with these arguments in a folder, and return its exit code and
    output as text.

    It is run by this interpreter for at most `seconds`, with `environment` added to this process's
    variables. Git is disabled for it, since a change in the checkout during the run would change
    the ids of experiments.

    Raises subprocess.TimeoutExpired after `seconds`.
    """
    return subprocess.run(
        [sys.executable, "-m", "accel_bench", *arguments],
        env={**os.environ, "GIT_DIR": os.devnull, **(environment or {})},
        cwd=folder,
        timeout=seconds,
        capture_output=True,
        text=True,
        check=False,
    )


def run_or_skip(
    planned: Planned, root: Path, watched: bool = False, changes: PendingUpdates | None = None
) -> Execution:
    """Run a planned experiment and return the execution, with a skipped result if a constraint
    excludes the experiment.

    `root` is the folder for files. Changes of the process are only recorded if `watched`. `changes`
    compares the run's weight update with other runs' updates.
    """
    if planned.skipped:
        return Execution(_skipped(planned))
    return run_in_process(planned, root, watched, changes)


def needs_processes(name: str, slots: tuple[str, ...]) -> str:
    """Return the reason why a plugin that fills `slots` cannot run in a single process, or an empty
    string."""
    for slot in slots:
        if slot in STARTS_PROCESSES:
            return (
                f"plugin {name!r} fills the slot {slot!r}, which needs processes of its own; "
                "try it with `accel-bench run`"
            )
    return ""


def _skipped(planned: Planned) -> Result:
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
        loss_tolerances=planned.active.loss_tolerances,
        update_tolerances=planned.active.update_tolerances,
        other_optimizers=planned.active.other_optimizers,
        output_tolerances=planned.active.output_tolerances,
    )
