"""How long a plan takes: as long as its experiments took before."""

from __future__ import annotations

from contextlib import suppress
from statistics import median

from accel_bench.errors import StoreError
from accel_bench.planning.plan import Plan
from accel_bench.store.database import Store


def plan_seconds(plan: Plan, store: Store | None) -> float | None:
    """Return the seconds of all rounds, each run as long as the median of those that are stored.

    None where an experiment has none, since nothing else says how fast this machine is.
    """
    found: dict[str, list[float]] = {planned.experiment.id: [] for planned in plan.runnable}
    with suppress(StoreError):
        for result in store.results(experiment_ids=[*found]) if store else ():
            if result.status.completed:
                found[result.experiment.id].append(result.seconds)
    if not all(found.values()):
        return None
    medians = {name: median(seconds) for name, seconds in found.items()}
    return sum(medians[one.experiment.id] for one in plan.runnable) * plan.rounds
