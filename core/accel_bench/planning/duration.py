"""Estimate how long a plan takes: from stored runs, else from FLOPs and a rate."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from accel_bench.analysis.metrics.utilization import utilization
from accel_bench.analysis.wording import duration, flops, grouped_by_reason, label_of
from accel_bench.catalog.estimate import Outline, outline_of
from accel_bench.catalog.hardware import peak_flops
from accel_bench.errors import StoreError
from accel_bench.flops.formulas import model_flops
from accel_bench.machine.devices import device_type
from accel_bench.machine.info import Machine
from accel_bench.planning.plan import Plan, Planned
from accel_bench.result import Result
from accel_bench.scenario.models import Scenario
from accel_bench.scenario.settings import PACE_STEPS
from accel_bench.scenario.uses import NO_PLUGIN
from accel_bench.store.database import Store

START_SECONDS = 10.0
"""What a process needs at least before its first step, nearly all of it imports."""

AUTO_WARMUP = 20
"""Steps taken for `measure.warmup: auto`, which takes from 10 to 30."""

RECENT_SESSIONS = 3
"""Newest sessions of a results folder in which a rate is looked up: the machine as it is now."""

LIKE_SIZE = 4.0
"""Largest ratio of the FLOPs of two steps of which one tells how fast the other is."""

FLOPS_OF_A_CORE = 10e9
"""FLOP/s taken for a CPU core of which nothing is stored: cautious, since training in float32
reaches 10 to 40 GFLOP/s on the cores of common servers."""

FRACTION_OF_PEAK = 0.3
"""Fraction of a GPU's dense peak taken where nothing is stored: cautious for large models."""

FLOPS_OF_A_GPU = 10e12
"""FLOP/s taken for a GPU that is not in the table of hardware."""

WEIGHTS_PER_SECOND = 5e7
"""Random weights that a CPU core draws in a second, at least."""


@dataclass(frozen=True)
class Rate:
    """FLOP/s of one device, and where they come from."""

    flops: float
    measured: bool


class Reached(NamedTuple):
    """What a stored run reached on each device."""

    scenario: Scenario
    flops: float
    """Model FLOP/s."""

    step_flops: float | None
    """FLOPs of a step, as far as the model is known."""


@dataclass(frozen=True)
class TimeEstimate:
    """How long all rounds of a plan take, preparation included."""

    seconds: float
    basis: str
    notices: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return `about 3 min 20 s (from earlier runs here)`, or that nothing runs."""
        if not self.basis:
            return "nothing of it runs here"
        return f"about {duration(self.seconds)} ({self.basis})"


def estimate_time(plan: Plan, machine: Machine, store: Store | None) -> TimeEstimate:
    """Return the time of all rounds; of runs that are stored, it is the median of theirs."""
    earlier = _earlier_seconds(plan, store)
    recent = _reached(store, machine) if len(earlier) < len(plan.runnable) else []
    seconds, bases, notices = 0.0, set(), []
    for planned in plan.runnable:
        experiment = planned.experiment
        rate = _rate(experiment.scenario, machine, recent)
        start, steps = _predict(planned, rate)
        run = earlier.get(experiment.id, start + (steps or 0.0))
        seconds += run * plan.file.measure.rounds
        seconds += start if planned.active.implements("prepare_experiment") else 0.0
        bases.add(_basis(experiment.id in earlier, steps, rate))
        limit = experiment.scenario.measure.timeout_seconds
        if run > limit:
            notice = (
                f"a run may take {duration(run)}, and is ended after {duration(limit)}; "
                "--timeout sets another limit"
            )
            name = label_of(experiment)
            notices.append((name, notice))
    return TimeEstimate(seconds, "; ".join(sorted(bases)), tuple(grouped_by_reason(notices)))


def _earlier_seconds(plan: Plan, store: Store | None) -> dict[str, float]:
    """Return the median seconds of the stored runs of each experiment that has any."""
    found: dict[str, list[float]] = {}
    with suppress(StoreError):
        ids = [planned.experiment.id for planned in plan.runnable]
        for result in store.results(experiment_ids=ids) if store else ():
            if result.status.completed:
                found.setdefault(result.experiment.id, []).append(result.seconds)
    return {name: median(seconds) for name, seconds in found.items()}


def recent_results(store: Store | None) -> list[Result]:
    if store is None:
        return []
    with suppress(StoreError):
        sessions = [one for one in store.sessions() if not one.imported][-RECENT_SESSIONS:]
        found = (result for one in sessions for result in store.results(session=one.id))
        return [result for result in found if result.provenance.origin == "measured"]
    return []


def _reached(store: Store | None, machine: Machine) -> list[Reached]:
    """Return the rates of recent runs on this machine."""
    sizes: dict[str, float | None] = {}
    found = []
    for result in recent_results(store):
        here = result.machine is not None and result.machine.host == machine.host
        used = utilization(result, None) if here and result.status.completed else None
        if used is None:
            continue
        experiment = result.experiment
        if experiment.id not in sizes:
            sizes[experiment.id] = _step_flops(experiment.scenario)
        rate = used.model_flops_per_second.causal
        found.append(Reached(experiment.scenario, rate, sizes[experiment.id]))
    return found


def _rate(scenario: Scenario, machine: Machine, recent: Sequence[Reached]) -> Rate:
    """Return the FLOP/s that a device reached here in the same dtype and steps of like size; else
    a cautious one, or that of steps of other sizes if it is more."""
    used_so = scenario.resources, scenario.compute_dtype
    alike = [
        one for one in recent if (one.scenario.resources, one.scenario.compute_dtype) == used_so
    ]
    size = _step_flops(scenario) if alike else None
    if near := [one.flops for one in alike if _are_like(one.step_flops, size)]:
        return Rate(max(near), measured=True)
    guess = _cautious_rate(scenario, machine)
    most = max((one.flops for one in alike), default=0.0)
    return guess if most < guess.flops else Rate(most, measured=True)


def _cautious_rate(scenario: Scenario, machine: Machine) -> Rate:
    """Return FLOP/s that most devices of this kind reach."""
    resources = scenario.resources
    device = device_type(resources.device)
    if device.on_host:
        threads = resources.threads or max(1, machine.cores // resources.devices)
        return Rate(FLOPS_OF_A_CORE * min(threads, machine.cores), measured=False)
    name = next(iter(device.find(machine)), "")
    peak = peak_flops(name, scenario.compute_dtype, scenario.train.matmul_precision)
    return Rate(FRACTION_OF_PEAK * peak if peak else FLOPS_OF_A_GPU, measured=False)


def _are_like(one: float | None, other: float | None) -> bool:
    """Return whether two numbers of FLOPs differ by a small factor: small steps are mostly
    overhead."""
    if one is None or other is None:
        return False
    return max(one, other) <= LIKE_SIZE * min(one, other)


def _step_flops(scenario: Scenario) -> float | None:
    outline = _outline(scenario)
    return None if outline is None else _flops_of_a_step(scenario, outline)


def _outline(scenario: Scenario) -> Outline | None:
    return outline_of(scenario.model, trains=scenario.adapter.use == NO_PLUGIN)


def _predict(planned: Planned, rate: Rate) -> tuple[float, float | None]:
    """Return seconds before the first step, and of the steps; None where FLOPs are not known."""
    scenario = planned.experiment.scenario
    if planned.need is None:
        return START_SECONDS, None
    outline = _outline(scenario)
    if outline is None:
        return START_SECONDS, None
    start = START_SECONDS + outline.parameters / WEIGHTS_PER_SECOND
    measure = scenario.measure
    warmup = AUTO_WARMUP if measure.warmup == "auto" else measure.warmup
    after = PACE_STEPS + measure.phase_steps + scenario.evaluate.steps
    steps = warmup + measure.steps + after
    return start, steps * _flops_of_a_step(scenario, outline) / rate.flops


def _flops_of_a_step(scenario: Scenario, outline: Outline) -> float:
    """Return the FLOPs of a step on each device; checkpointing computes the forward again."""
    train, length = scenario.train, scenario.data.sequence_length
    tokens = train.micro_batch_size * train.gradient_accumulation * length
    again = 4 / 3 if train.gradient_checkpointing else 1.0
    sharing = scenario.world_size / scenario.data_parallel
    return model_flops(outline.workload, length).causal * tokens * again / sharing


def _basis(stored: bool, steps: float | None, rate: Rate) -> str:
    if stored:
        return "from earlier runs here"
    if steps is None:
        return "at least: the steps have not been timed here"
    speed = f"{flops(rate.flops)}/s a device"
    if rate.measured:
        return f"at {speed}, the most that recent runs here reached"
    return f"at {speed}, a cautious guess: the steps have not been timed here"
