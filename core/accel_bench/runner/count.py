"""Count a step of one planned experiment: start its ranks and merge their ledgers."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from accel_bench.analysis.ledgers.schema import Entry, Ledger, RankLedger, merge
from accel_bench.documents.base import JsonValue
from accel_bench.errors import WorkerError
from accel_bench.job import Job
from accel_bench.machine.info import Machine
from accel_bench.planning.plan import Planned
from accel_bench.runner.attempt import make_attempt, run_attempt
from accel_bench.runner.log_end import log_end

NOT_WORK = {"name", "description", "environment", "launcher", "measure", "metrics"}
"""Keys of a scenario that change nothing that a step does, or may be secret."""

LEFT_OUT = (
    "segments of the allocator, workspaces of kernels and what other threads do are not counted: "
    "they are not the same in every run"
)


def count_planned(planned: Planned, machine: Machine, trust_remote_code: bool = False) -> Ledger:
    """Return the ledger of an experiment, counted in fresh processes; nothing is stored.

    Raises WorkerError where a rank has failed.
    """
    with tempfile.TemporaryDirectory(prefix="accel-bench-count-") as folder:
        fields = {
            "machine": planned.machine(machine),
            "experiment": planned.experiment,
            "interpreter": planned.command,
            "trust_remote_code": trust_remote_code,
        }
        if planned.active.implements("prepare_experiment"):
            _attempt(planned, Path(folder), "prepare", fields)
        job = _attempt(planned, Path(folder), "count", fields)
        ranks = [
            RankLedger.model_validate_json(job.ledger_path(rank).read_bytes())
            for rank in range(job.world_size)
        ]
    return make_ledger(planned, planned.machine(machine), ranks)


def make_ledger(planned: Planned, machine: Machine, ranks: list[RankLedger]) -> Ledger:
    """Return the ledger of all ranks together."""
    scenario = planned.experiment.scenario
    entries: list[Entry] = [entry for rank in ranks for entry in rank.entries]
    reasons = (reason for rank in ranks for reason in rank.left_out)
    plugins = {one.distribution: one.version for one in planned.active.versions()}
    work = scenario.model_dump(mode="json", exclude=NOT_WORK, exclude_none=True)
    return Ledger(
        scenario=scenario.name,
        stack=planned.experiment.stack.name,
        work=dict(_dotted(work)),
        device=scenario.resources.device,
        ranks=len(ranks),
        versions={"python": machine.python, **machine.versions, **plugins},
        entries=merge(entries),
        left_out=tuple(dict.fromkeys((LEFT_OUT, *reasons))),
    )


def _attempt(
    planned: Planned, root: Path, purpose: Literal["prepare", "count"], fields: dict[str, Any]
) -> Job:
    """Run one process group to its end. Raises WorkerError with the reasons of a rank that failed,
    and the end of its log where they do not say all."""
    folder = root / purpose
    folder.mkdir()
    session = f"count-{secrets.token_hex(4)}"
    attempt = make_attempt(root, folder, session, purpose=purpose, **fields)
    result = run_attempt(attempt, planned.active, lambda progress: None, lambda result: result)
    if not result.status.completed:
        log = "\n".join(log_end(result))
        reasons = "; ".join(result.reasons)
        name = planned.experiment.stack.name
        raise WorkerError(f"stack {name!r} was not counted: {reasons}\n{log}".rstrip())
    return attempt.job


def _dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
