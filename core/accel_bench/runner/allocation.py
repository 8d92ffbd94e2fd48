"""Allocations: processes that a launcher keeps for a whole session, started before planning."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from accel_bench.documents.canonical import canonical_json
from accel_bench.errors import ScenarioError
from accel_bench.launcher import Allocation
from accel_bench.machine.info import Machine
from accel_bench.machine.placement import read_placement
from accel_bench.planning.request import PlanRequest
from accel_bench.planning.resolve import ResolvedFile, chosen_points, resolve_request
from accel_bench.plugins.active import ActivePlugins
from accel_bench.plugins.manager import activate_slot
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.models import Scenario
from accel_bench.scenario.sweep import Point

HOOK = "allocate_ranks"


@contextmanager
def allocated(
    drafts: Sequence[Draft],
    machine: Machine,
    request: PlanRequest,
    command: Sequence[str],
    dry_run: bool = False,
) -> Iterator[Allocation | None]:
    """Yield the launcher's allocation, processes for a whole session; release it after the block.

    `command` holds the program's arguments; the launcher also gets `dry_run`. Yields None if the
    launcher starts processes for each run. Raises ScenarioError if the drafts' launchers differ and
    one of them allocates, or if another launcher has started several processes of this program.
    """
    files = [resolve_request(draft, request) for draft in drafts]
    launcher = _allocating_launcher(files)
    if launcher is None:
        refuse_several_programs()
        yield None
        return
    scenarios = [
        with_written_device(point, file)
        for file in files
        for point in chosen_points(file, request, machine.device)
    ]
    allocation: Allocation | None = launcher.call_plugin(
        launcher.plugins[0], HOOK, scenarios=scenarios, command=command, dry_run=dry_run
    )
    try:
        yield allocation
    finally:
        if allocation is not None:
            allocation.close()


def _allocating_launcher(files: Sequence[ResolvedFile]) -> ActivePlugins | None:
    """Return the files' launcher if it allocates processes for a session, else None."""
    by_options = {canonical_json(file.scenario.launcher.model_dump()): file for file in files}
    launchers = [
        ActivePlugins([activate_slot(file.scenario, "launcher", file.where)])
        for file in by_options.values()
    ]
    allocating = [launcher for launcher in launchers if launcher.implements(HOOK)]
    if allocating and len(launchers) > 1:
        names = ", ".join(sorted({file.scenario.launcher.use for file in files}))
        raise ScenarioError(
            f"the scenarios have different launchers or options of them ({names}), and one of them "
            "keeps its processes for the whole session; run them one after the other"
        )
    return allocating[0] if allocating else None


def with_written_device(point: Point, file: ResolvedFile) -> Scenario:
    """Return the scenario of `point`, with its device set back to `auto` if the file says `auto`.

    The nodes of an allocation may have other devices than this machine.
    """
    scenario = point.scenario
    chosen = "resources.device" in {**point.sweep, **point.stack.settings}
    if chosen or file.scenario.resources.device != "auto":
        return scenario
    resources = scenario.resources.model_copy(update={"device": "auto"})
    return scenario.model_copy(update={"resources": resources})


def machine_of(allocation: Allocation | None, machine: Machine) -> Machine:
    """Return `machine` with the cores of a node that the allocation may use, if it states them."""
    if allocation is None or allocation.cores is None:
        return machine
    return machine.model_copy(update={"cores": allocation.cores})


def refuse_several_programs() -> None:
    """Raise ScenarioError if a launcher has started several processes of this program.

    Each process would measure everything, concurrently with the others.
    """
    place = read_placement(os.environ)
    if place is not None and place.size > 1 and not place.per_node:
        raise ScenarioError(
            f"a launcher ({place.launcher}) started accel-bench {place.size} times, and each would "
            "measure beside the others; let it take these processes over, with --set "
            "launcher.use=env, or start it once, without a launcher: it starts the ranks itself, "
            f"with --set resources.devices={place.size}"
        )
