"""Running of functions other than the measurement on an experiment's ranks; no result is stored."""

from __future__ import annotations

import secrets
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from accel_bench.errors import PluginError, WorkerError
from accel_bench.job import OWN_PURPOSES, PREPARE, PURPOSES, Job
from accel_bench.machine.info import Machine
from accel_bench.planning.plan import Planned, PlanRequest, make_plan
from accel_bench.planning.resolve import resolve_request
from accel_bench.plugins.doors import DoorEntry, find_entry
from accel_bench.runner.artifacts import log_end
from accel_bench.runner.attempt import make_attempt, run_attempt
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.uses import slot_defaults


def plan_stack(draft: Draft, machine: Machine, request: PlanRequest, stack: str | None) -> Planned:
    """Plan and return the only experiment of a stack, by default of the baseline.

    Its ranks will run on this machine. Raises ScenarioError for several sweep points.
    """
    launcher = ("launcher", slot_defaults().slots["launcher"])
    request = replace(request, overrides=(launcher, *request.overrides))
    if stack is None:
        stack = resolve_request(draft, request).scenario.baseline_name()
    request = replace(request, only=(stack,), no_baseline=True)
    return make_plan(draft, machine, request).single


def ask_ranks(
    purpose: str,
    planned: Planned,
    machine: Machine,
    *,
    trust_remote_code: bool = False,
    one_process: bool = False,
) -> list[bytes]:
    """Run a purpose's function on each rank of an experiment, in new processes; return their JSON.

    With `one_process` there is a single process, without a model and without filling caches before.
    Raises PluginError for an unknown purpose, and WorkerError for a failed rank.
    """
    if purpose in OWN_PURPOSES:
        raise PluginError(f"{purpose!r} is a purpose of the core; a further one has another name")
    entry = find_entry(PURPOSES, "purpose", purpose)
    fields = {
        "machine": planned.machine(machine),
        "experiment": planned.experiment,
        "interpreter": planned.command,
        "trust_remote_code": trust_remote_code,
        "one_process": one_process,
    }
    with tempfile.TemporaryDirectory(prefix="accel-bench-purpose-") as folder:
        if planned.active.implements("prepare_experiment") and not one_process:
            _attempt(entry, planned, Path(folder), PREPARE, fields)
        job = _attempt(entry, planned, Path(folder), purpose, fields)
        return [job.answer_path(rank).read_bytes() for rank in range(job.world_size)]


def _attempt(
    entry: DoorEntry, planned: Planned, root: Path, purpose: str, fields: dict[str, Any]
) -> Job:
    """Run the ranks of an experiment and return their job; `fields` are arguments of
    `make_attempt`. Raises WorkerError with the reasons of a failed rank, and its log's end if
    reasons need it."""
    session = f"purpose-{secrets.token_hex(4)}"
    folder = root / session
    folder.mkdir()
    attempt = make_attempt(root, folder, session, purpose=purpose, **fields)
    result = run_attempt(attempt, planned.active, lambda progress: None, lambda result: result)
    if not result.status.completed:
        log = "\n".join(log_end(result))
        reason = f"{'; '.join(result.reasons)}\n{log}".rstrip()
        what = f"the purpose {entry.name!r} of {entry.brought_by}"
        stack = planned.experiment.stack.name
        raise WorkerError(f"{what} has failed with stack {stack!r}: {reason}", reason)
    return attempt.job
