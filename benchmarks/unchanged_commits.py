"""Simulate commits on a machine that drifts, remembers and has outliers: whom does the gate blame?

The seconds of each run are made up, from a fixed seed; what judges them is the product's own code.
A commit is gated as `accel-bench gate --rounds 5 --max-rounds 160` does it: two stacks side by
side, looks at 5, 10, 20, ... rounds, and as many new ones that must confirm an alarm. Beside that,
a series of nightly sessions is looked at after each commit as `history --confirm` does it.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Sequence
from statistics import fmean, median
from typing import TypeAlias

from accel_bench_ci.looks import settle_gate, with_new_points
from accel_bench_ci.step_confirmation import judge_new_runs
from accel_bench_ci.steps import find_steps
from accel_bench_ci.verdict import GatePoint, GateReport

from accel_bench.analysis.statistics.sequential import (
    GATE_CODES,
    PASS_ALPHA,
    judge_comparison,
    look_sizes,
)
from accel_bench.analysis.statistics.verdict import Policy, compare_logs
from accel_bench.documents.base import JsonValue
from accel_bench.result import Status
from benchmarks.entry import Counts, Entry, this_machine

COMMITS = 1000
"""Commits that change nothing, of each kind of gate."""

SLOWER_COMMITS = 400
"""Commits of each slow-down."""

FIRST, MOST = 5, 160
"""Rounds at the first look and in all."""

FLOOR = 0.01
"""Slow-down that is allowed, as by default."""

PROMISES = {0.05: 0.95, 0.1: 0.99}
"""Fraction of commits that are slower by so much, beside that floor, that the gate stops."""

PROCESS = 0.01
"""Standard deviation of a run's seconds around what the machine does, as a log-ratio."""

STATE, MEMORY = 0.02, 0.8
"""Standard deviation of the machine's state, and its correlation with that at the run before."""

WALK = 0.002
"""Standard deviation of what a run adds to a drift for good."""

SWING, PERIOD = 0.03, 300
"""Size of a swing, as over a day, and runs of one."""

OUTLIERS, OUTLIER_SIZE = 0.03, 0.3
"""Fraction of runs that are far too slow, and their mean excess as a log-ratio."""

NIGHT_ROUNDS = 5
"""Rounds of a nightly session and of its confirmation."""

WINDOW, NEWEST = 100, 10
"""Sessions that are looked at, and how old a step may be that raises an alarm."""

QUIET = 40
"""Nights without a change before one that is slower."""

STEPS = (0.05, 0.1, 0.2)
"""Slow-downs for which a series of nights is watched."""

SERIES = 50
"""Series of nights of each of them."""

SEED = 15
Facts: TypeAlias = dict[str, JsonValue]


class Noise:
    """The log-seconds of runs on one machine, one after another."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._state = self._drift = 0.0
        self._runs = 0

    def run(self) -> float:
        """Return log-seconds of the next run of work that takes one second."""
        draw = self._draw
        innovation = STATE * math.sqrt(1 - MEMORY**2)
        self._state = MEMORY * self._state + draw.gauss(0, innovation)
        self._drift += draw.gauss(0, WALK)
        self._runs += 1
        swing = SWING * math.sin(2 * math.pi * self._runs / PERIOD)
        far = draw.expovariate(1 / OUTLIER_SIZE) if draw.random() < OUTLIERS else 0.0
        return self._state + self._drift + swing + far + draw.gauss(0, PROCESS)

    def rounds(self, count: int, slower: float = 0.0) -> list[tuple[float, float]]:
        """Return log-seconds of baseline and stack in rounds of two runs, in the order ABBA."""
        found = []
        for number in range(count):
            pair = [self.run(), self.run()]
            baseline, stack = pair if number % 2 == 0 else pair[::-1]
            found.append((baseline, stack + math.log1p(slower)))
        return found


def measure_unchanged_commits(counts: Counts) -> list[Entry]:
    """Count false alarms of unchanged commits, and stopped ones of slower commits."""
    quick = counts != Counts()
    commits, slower = (40, 20) if quick else (COMMITS, SLOWER_COMMITS)
    machine = this_machine()
    entries = [
        *_gated(commits, machine),
        *(_power(slow, goal, slower, machine) for slow, goal in PROMISES.items()),
        _let_pass(slower, machine),
        *_nights(commits, machine),
        *(_found(slow, 5 if quick else SERIES, machine) for slow in STEPS),
    ]
    return entries


def gate_commits(commits: int, slower: float, seed: int) -> Counter[str]:
    """Gate commits one after another; count outcomes, and alarms before they were confirmed."""
    noise, found = Noise(seed), Counter[str]()
    for _ in range(commits):
        outcome, alarm = gate_commit(noise, slower)
        found[outcome] += 1
        found["alarms"] += alarm
    return found


def gate_commit(noise: Noise, slower: float) -> tuple[str, bool]:
    """Return the outcome of one commit, and whether its first rounds raised an alarm."""
    sizes = look_sizes(FIRST, MOST)
    report = settle_gate(SimulatedRounds(noise, slower, sizes), len(sizes))
    return report.outcome, report.points[0].confirmed is not None


class SimulatedRounds:
    """Rounds of a commit that is so much slower, for the loop of the gate."""

    def __init__(self, noise: Noise, slower: float, sizes: Sequence[int]) -> None:
        self._noise, self._slower, self._sizes = noise, slower, sizes
        self._logs: list[float] = []
        self._fresh: list[float] = []

    def measure(self, look: int, settled: Collection[str]) -> GateReport:
        """Add rounds to those of the looks before."""
        self._add(self._logs, look)
        return _report(_point(self._logs, look + 1))

    def confirm(self, look: int, alarm: GateReport, unsettled: Collection[str]) -> GateReport:
        """Add new rounds; those of the alarm count for nothing."""
        self._add(self._fresh, look)
        return with_new_points(alarm, [_point(self._fresh, look + 1, alarm.points[0].looks)])

    def _add(self, logs: list[float], look: int) -> None:
        logs += _ratios(self._noise.rounds(self._sizes[look] - len(logs), self._slower))


def _point(logs: Sequence[float], looks: int, looks_before: int = 0) -> GatePoint:
    """Return what the gate makes of rounds whose runs all completed, with an equal loss."""
    first, later = (
        judge_comparison(compare_logs({"": logs}, {"": look}, Policy(floor=FLOOR))[""], FLOOR)
        for look in (looks, looks_before + looks)
    )
    outcome = (later if first.outcome == "passed" else first).outcome
    return GatePoint(
        sweep={},
        outcome=outcome,
        reason="",
        stack_id="commit",
        against_id="before",
        rounds=len(logs),
        looks=looks,
        loss_verdict="equivalent",
        status=Status.OK,
        against_status=Status.OK,
    )


def _report(point: GatePoint) -> GateReport:
    return GateReport(
        scenario="simulated",
        stack="commit",
        against="before",
        floor=FLOOR,
        outcome=point.outcome,
        exit_code=GATE_CODES[point.outcome],
        points=(point,),
    )


def watch_nights(commits: int, seed: int) -> tuple[int, int]:
    """Return alarms in a series of unchanged commits, and how many of them were confirmed."""
    watch = Nights(seed)
    found = [watch.next() for _ in range(commits)]
    return sum(one is not None for one in found), sum(one is True for one in found)


def nights_until_found(slower: float, seed: int) -> int | None:
    """Return after how many nights a commit that is so much slower is a confirmed alarm.

    None where it is none of the first `NEWEST` nights: then the step is no news any more.
    """
    watch = Nights(seed)
    for _ in range(QUIET):
        watch.next()
    nights = range(1, NEWEST + 1)
    return next((night for night in nights if watch.next(slower)), None)


class Nights:
    """Nightly sessions on one machine, each looked at as `history --confirm` does it."""

    def __init__(self, seed: int) -> None:
        self._noise = Noise(seed)
        self._speeds: list[float] = []
        self._ratios: list[float] = []

    def next(self, slower: float = 0.0) -> bool | None:
        """Return whether an alarm of the next night is confirmed; None without an alarm."""
        night = self._noise.rounds(NIGHT_ROUNDS, slower)
        self._speeds.append(-fmean(stack for _, stack in night))
        self._ratios.append(fmean(_ratios(night)))
        window = self._speeds[-WINDOW:]
        steps = find_steps(window)
        if not steps or steps[-1].size > 0 or len(window) - steps[-1].place > NEWEST:
            return None
        start = steps[-2].place if len(steps) > 1 else 0
        before = self._ratios[-WINDOW:][start : steps[-1].place]
        fresh = _ratios(self._noise.rounds(NIGHT_ROUNDS, slower))
        change, bound = judge_new_runs(before, fresh)
        return change is not None and bound is not None and change < -bound


def _ratios(rounds: list[tuple[float, float]]) -> list[float]:
    """Return log(baseline / stack) of each round."""
    return [baseline - stack for baseline, stack in rounds]


def _gated(commits: int, machine: Facts) -> list[Entry]:
    found, unit = gate_commits(commits, 0.0, SEED), f"in {commits} unchanged commits"
    samples = {"outcomes": _counts(found)}
    alarms = _entry("gate-unconfirmed-alarms", found["alarms"], f"alarms {unit}", None)
    stopped = _entry("gate-false-alarms", found["regression"], f"confirmed alarms {unit}", 0)
    left = _entry("gate-left-open", found["inconclusive"], f"inconclusive {unit}", None)
    return [
        one.model_copy(update={"samples": samples, "machine": machine})
        for one in (stopped, alarms, left)
    ]


def _power(slower: float, goal: float, commits: int, machine: Facts) -> Entry:
    found = gate_commits(commits, slower, SEED + round(1000 * slower))
    return Entry(
        name=f"gate-power-{round(100 * slower)}",
        value=found["regression"] / commits,
        unit=f"of {commits} commits that are slower by {slower:.0%} are stopped",
        goal=goal,
        goal_is="at least",
        samples={"outcomes": _counts(found)},
        machine=machine,
    )


def _let_pass(commits: int, machine: Facts) -> Entry:
    found = gate_commits(commits, FLOOR, SEED + 1)
    unit = f"of {commits} commits that are slower by the floor pass"
    entry = _entry("gate-let-pass", found["passed"] / commits, unit, PASS_ALPHA)
    return entry.model_copy(update={"samples": {"outcomes": _counts(found)}, "machine": machine})


def _nights(commits: int, machine: Facts) -> list[Entry]:
    alarms, confirmed = watch_nights(commits, SEED)
    unit = f"in {commits} nights without a change"
    entries = (
        _entry("history-false-alarms", confirmed, f"confirmed alarms {unit}", 0),
        _entry("history-unconfirmed-alarms", alarms, f"nights that show a new step {unit}", None),
    )
    return [one.model_copy(update={"machine": machine}) for one in entries]


def _found(slower: float, series: int, machine: Facts) -> Entry:
    """Return how often a slower commit is found, and after how many nights."""
    nights = [nights_until_found(slower, SEED + number) for number in range(series)]
    known = [night for night in nights if night is not None]
    unit = f"of {series} commits slower by {slower:.0%} are found within {NEWEST} nights"
    entry = _entry(f"history-power-{round(100 * slower)}", len(known) / series, unit, None)
    notes = (f"after {median(known):g} nights in the median",) if known else ()
    samples = {"nights": tuple(float(night or 0) for night in nights)}
    return entry.model_copy(update={"notes": notes, "samples": samples, "machine": machine})


def _entry(name: str, value: float, unit: str, goal: float | None) -> Entry:
    return Entry(
        name=name, value=value, unit=unit, goal=goal, goal_is="at most", samples={}, machine={}
    )


def _counts(found: Counter[str]) -> tuple[float, ...]:
    """Return how many passed, were stopped, and stayed open."""
    return tuple(float(found[name]) for name in ("passed", "regression", "inconclusive"))
