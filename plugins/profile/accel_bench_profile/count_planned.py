"""Count a step of one planned experiment: start its ranks and merge their ledgers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from accel_bench.documents.base import JsonValue
from accel_bench.machine.info import Machine
from accel_bench.planning.plan import Planned
from accel_bench.runner.purpose import ask_ranks
from accel_bench_profile.ledger.schema import Entry, Ledger, RankLedger, merge

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
    found = ask_ranks("count", planned, machine, trust_remote_code=trust_remote_code)
    ranks = [RankLedger.model_validate_json(one) for one in found]
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


def _dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
