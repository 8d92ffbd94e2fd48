"""Disturbances of a run by its devices' states, and by other load on the host's CPUs.

A disturbance of a device degrades a run if it exceeds an absolute limit. Host load is reported once
for a table, as a median and as outliers from it, since on a shared machine every run has some.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from accel_bench.analysis.statistics.verdict import Comparison, RoundKey
from accel_bench.analysis.wording import join_names, label_of, percent
from accel_bench.machine.state import (
    GPUState,
    MachineState,
    other_process_reason,
    throttled,
    used_by,
)
from accel_bench.result import RankResult, Result

THROTTLED_FRACTION = 0.01
"""Fraction of an attempt's time in which thermal throttling is tolerated."""

MINIMUM_RUNS = 3
"""Minimum number of a session's runs for a meaningful median."""

LOADS = {"stolen": ("the hypervisor took", 0.02), "others": ("other work took", 0.10)}
"""Words for each kind of host load, and its least excess over the median that is reported.

A median above the same fraction is reported too. Daemons of an idle machine stay far below it.
"""

LEVELS = {
    "stolen": "the hypervisor took {} of the CPUs during these runs: read ratios only",
    "others": "other programs used {} of the CPUs during these runs: close them, or read ratios "
    "only",
}
"""Message about the median load over all runs, by kind."""


NOT_OF_THE_WORK = re.compile(
    r"^((ecc|nvml|other_process|self-audit|throttled)[:,] |every window was disturbed"
    r"|plugin '.*' changed .* at its import, which was undone|rank \d+ ended by .* after its result"
    r"|the checkpoint was not written)|while steps were observed;"
)
"""Pattern of the reasons for `degraded` that do not concern the computed work."""


def concerns_work(reason: str) -> bool:
    """Return whether a reason for `degraded` concerns what was computed, not a disturbance."""
    return NOT_OF_THE_WORK.search(reason) is None


def device_reasons(
    before: MachineState | None, after: MachineState | None, ranks: Iterable[RankResult]
) -> tuple[str, ...]:
    """Return why the GPUs of `ranks` degrade a run, from GPU states before and after the run."""
    devices = [rank.device for rank in ranks if rank.device and rank.device.type == "cuda"]
    uuids = dict.fromkeys(device.uuid for device in devices)
    reasons = [reason for uuid in uuids for reason in _device_reasons(before, after, uuid)]
    return tuple(dict.fromkeys(reasons))


class Load(NamedTuple):
    """Fractions of CPU time that other programs or machines took during a run; None if unknown."""

    stolen: float | None
    """Time that the hypervisor gave to other machines (steal)."""

    others: float | None
    """Time in which other programs kept cores busy."""


def load_of(result: Result) -> Load | None:
    """Return the CPU load by other programs and machines during a run; None if it was not read."""
    if result.state_before is None or result.state_after is None:
        return None
    before, after = result.state_before.cpu, result.state_after.cpu
    if before.total_seconds is None or after.total_seconds is None:
        return None
    passed = after.total_seconds - before.total_seconds
    if passed <= 0:
        return None
    stolen = others = None
    if before.stolen_seconds is not None and after.stolen_seconds is not None:
        stolen = max(0.0, after.stolen_seconds - before.stolen_seconds) / passed
    # Ranks that an agent has started are no children of this program: they would count as others.
    if before.busy_seconds is not None and after.busy_seconds is not None and not result.nodes:
        own = after.own_seconds - before.own_seconds
        others = max(0.0, after.busy_seconds - before.busy_seconds - own) / passed
    return Load(stolen, others)


def of_same_load(
    speed: Comparison, baseline: Mapping[RoundKey, Result], stack: Mapping[RoundKey, Result]
) -> Comparison:
    """Return the comparison `speed`, with `inconclusive` in place of `better` if other programs
    used much more of the CPUs during the runs of one stack than of the other. Runs that answer
    requests are left out, since their server can be such a program."""
    pairs = [
        (load_of(baseline[key]), load_of(run))
        for key, run in stack.items()
        if key in baseline and not run.experiment.scenario.generates
    ]
    both = [
        (before.others, after.others)
        for before, after in pairs
        if before and after and before.others is not None and after.others is not None
    ]
    apart = median(after - before for before, after in both) if both else 0.0
    if not speed.wins or abs(apart) < LOADS["others"][1]:
        return speed
    sides = (percent(round(median(side), 2)) for side in zip(*both, strict=True))
    reason = (
        "other programs used {} of the CPUs beside the baseline and {} beside it: close them, and "
        "measure again"
    ).format(*sides)
    return speed.without_verdict(reason, "inconclusive")


def load_notes(results: Sequence[Result]) -> tuple[str, ...]:
    """Return messages about the host's load, and about the runs that it disturbed most.

    There is a sentence for each kind of load, and for each session with outliers. The load average
    is not judged, since half of it comes from the run before.
    """
    sessions: dict[str, list[tuple[str, Load]]] = {}
    for result in results:
        load = load_of(result)
        if load is not None and result.status.completed:
            experiment = result.experiment
            name = label_of(experiment)
            named = f"{name} (round {result.round + 1})", load
            sessions.setdefault(result.session, []).append(named)
    every = [load for runs in sessions.values() for _, load in runs]
    changes = (note for runs in sessions.values() for kind in LOADS for note in _notes(runs, kind))
    return (*(note for kind in LEVELS for note in _levels(every, kind)), *changes)


def _levels(loads: Sequence[Load], kind: str) -> Iterator[str]:
    """Yield a message if the median of the loads of one kind, a key of LOADS, exceeds its limit."""
    known = [load for entry in loads if (load := getattr(entry, kind)) is not None]
    if known and median(known) >= LOADS[kind][1]:
        yield LEVELS[kind].format(percent(round(median(known), 2)))


def _notes(runs: Sequence[tuple[str, Load]], kind: str) -> Iterator[str]:
    """Yield a message on a session's runs with an outlying load of one kind, a key of LOADS."""
    loads = [(name, getattr(load, kind)) for name, load in runs]
    known = [(name, load) for name, load in loads if load is not None]
    if len(known) < MINIMUM_RUNS:
        return
    words, margin = LOADS[kind]
    middle = median(load for _, load in known)
    high = {name: load for name, load in known if load > middle + margin}
    if high:
        most, usual = (percent(round(load, 3)) for load in (max(high.values()), middle))
        yield (
            f"{words} up to {most} of the CPUs during {join_names(list(high))}; "
            f"the session's median is {usual}"
        )


def _device_reasons(
    before: MachineState | None, after: MachineState | None, uuid: str
) -> Iterator[str]:
    pair: list[GPUState] = []
    for state in filter(None, (before, after)):
        seen = used_by(state, [uuid])
        pair += seen
        yield from (f"nvml: {problem}" for gpu in seen for problem in gpu.problems)
        if not seen:
            why = "; ".join(state.problems) or "NVML does not list it"
            yield f"nvml: the state of device {uuid or 'without uuid'} is not known: {why}"
    for gpu in pair:
        yield from (other_process_reason(p.pid, p.name, gpu.uuid) for p in gpu.other_processes)
        yield from (
            f"throttled: {limit} on {gpu.uuid}" for limit in throttled(gpu.clock_limits or ())
        )
        if gpu.remap_pending:
            yield f"ecc: bad rows of the memory of {gpu.uuid} are not replaced yet"
    if before and after and len(pair) == 2:
        yield from _increases(pair[0], pair[1], after.monotonic_seconds - before.monotonic_seconds)


def _increases(before: GPUState, after: GPUState, seconds: float) -> Iterator[str]:
    """Yield a reason for each of a device's error counters that increased between two readings."""
    if before.ecc_uncorrected is not None and after.ecc_uncorrected is not None:
        errors = after.ecc_uncorrected - before.ecc_uncorrected
        if errors > 0:
            yield f"ecc: {errors} memory errors of {after.uuid} could not be corrected"
    if before.thermal_limited_seconds is not None and after.thermal_limited_seconds is not None:
        hot = after.thermal_limited_seconds - before.thermal_limited_seconds
        if hot > THROTTLED_FRACTION * seconds:
            yield f"throttled: heat held the clocks of {after.uuid} down for {hot:.1f} s"
