"""Simulate sessions whose rounds are `auto`: whom do they call faster, and after how many rounds?

The seconds of each run are made up, on the machine of `unchanged_commits` and from a fixed seed;
what judges them is the product's own code. Three stacks run beside a baseline: looks after 5, 10
and 12 rounds, of those stacks alone whose verdict is open.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from statistics import fmean

from accel_bench.analysis.statistics.sequential import look_sizes
from accel_bench.analysis.statistics.verdict import (
    MINIMUM_ROUNDS,
    MOST_ROUNDS,
    Direction,
    compare_logs,
)
from accel_bench.documents.base import JsonValue
from benchmarks.entry import Counts, Entry, this_machine
from benchmarks.unchanged_commits import Noise

SESSIONS = 1000
"""Sessions of stacks that are all alike, and of each difference."""

FASTER = (0.02, 0.05, 0.1, 0.2, 0.5)
"""Speed-ups of one stack; another one is slower by as much, and the third is like the baseline."""

SEED = 29


def measure_auto_rounds(counts: Counts) -> list[Entry]:
    """Count false alarms of equal stacks, and rounds until a stack that differs is settled."""
    sessions = SESSIONS if counts == Counts() else 10
    machine = this_machine()
    alike = dict.fromkeys("abc", 0.0)
    found = [simulate(alike, SEED + number)[0] for number in range(sessions)]
    wrong = [float(bool({"better", "worse"} & {*one.values()})) for one in found]
    alarms = Entry(
        name="auto-rounds-alarms",
        value=fmean(wrong),
        unit="fraction of sessions of equal stacks that call one faster or slower",
        goal=0.01,
        goal_is="at most",
        samples={"alarms": tuple(wrong)},
        machine=machine,
    )
    return [alarms, *(_settled(faster, sessions, machine) for faster in FASTER)]


def simulate(
    speed_ups: Mapping[str, float], seed: int
) -> tuple[dict[str, Direction], dict[str, int]]:
    """Return the verdict on each stack of a session, and how many rounds it ran."""
    noise, order = Noise(seed), random.Random(seed)
    logs: dict[str, list[float]] = {name: [] for name in speed_ups}
    looks: dict[str, int] = {}
    left = set(speed_ups)
    for look, size in enumerate(look_sizes(MINIMUM_ROUNDS, MOST_ROUNDS), 1):
        for _ in range(size - min(len(logs[name]) for name in left)):
            names = order.sample([*sorted(left), ""], len(left) + 1)
            seconds = {name: noise.run() for name in names}
            for name in left:
                logs[name].append(seconds[""] - seconds[name] + math.log1p(speed_ups[name]))
        looks |= dict.fromkeys(left, look)
        verdicts = {name: one.verdict for name, one in compare_logs(logs, looks).items()}
        left = {name for name in left if verdicts[name] == "inconclusive"}
        if not left:
            break
    return verdicts, {name: len(own) for name, own in logs.items()}


def _settled(faster: float, sessions: int, machine: dict[str, JsonValue]) -> Entry:
    """Return the mean rounds of a stack that is faster by so much, and how often it is found."""
    speed_ups = {"a": faster, "b": -faster / (1 + faster), "c": 0.0}
    found = [simulate(speed_ups, SEED + number) for number in range(sessions)]
    right = fmean(verdicts["a"] == "better" for verdicts, _ in found)
    rounds = tuple(float(ran["a"]) for _, ran in found)
    return Entry(
        name=f"auto-rounds-{100 * faster:g}",
        value=fmean(rounds),
        unit="rounds, mean",
        goal=None,
        goal_is="at most",
        notes=(f"called faster in {100 * right:.1f} % of sessions",),
        samples={"rounds": rounds},
        machine=machine,
    )
