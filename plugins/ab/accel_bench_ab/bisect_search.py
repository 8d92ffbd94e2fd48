"""Search algorithm of `bisect`: the next versions to measure, and the answer.

The ends are compared first. Each probe is then measured in the same rounds as both ends: it lies
behind the change if significantly worse than the good end, and before it if significantly better
than the bad end. Since a probe differs from one of the ends by the whole effect, this takes a third
of the runs of a comparison with half of the effect. The two neighbours of the change are measured
beside the ends in fresh rounds, which alone confirm the change, and show whether another change
contributes to the difference of the ends.

The next step depends on the previous rounds alone, so that a search can be resumed. Results are
judged after 5, 10, 20, ... rounds, at levels that hold over all looks (`statistics.sequential`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal, NamedTuple, TypeAlias

from accel_bench.analysis.statistics.sequential import judge_comparison
from accel_bench.analysis.statistics.verdict import (
    MINIMUM_ROUNDS,
    ONE_SIDED_ALPHA,
    Comparison,
    Policy,
    compare_logs,
)

ERROR = 0.05
"""Maximum probability of a wrong answer, over all probes, looks and the confirmation."""

OTHER_TESTS = 3
"""Number of tests beside the probes: of the ends, and of both sides of the confirmation."""

Costs: TypeAlias = Mapping[int, float]
"""Compared costs of one round by index of the version; less is better."""

AnswerKind: TypeAlias = Literal["culprit", "candidates", "several", "none", "inconclusive"]
"""Kind of answer; `candidates` are a version and unmeasurable ones before it."""


Side: TypeAlias = Literal["good", "bad"]
"""End of a history."""


class Comparing(NamedTuple):
    """Set of versions measured in the same rounds, the good end first."""

    kind: Literal["ends", "probe", "neighbours"]
    versions: tuple[int, ...]


class MoreRounds(NamedTuple):
    """Number of rounds to measure next, with their versions."""

    comparing: Comparing
    rounds: int


class BisectAnswer(NamedTuple):
    """Answer of a search, possibly preliminary."""

    kind: AnswerKind
    last_good: int | None = None
    first_bad: int | None = None

    step: Comparison | None = None
    """Comparison of the first bad version with the last good one, in fresh rounds."""

    before: Comparison | None = None
    """Comparison of the last good version with the good end; None if they are the same."""

    after: Comparison | None = None
    """Comparison of the bad end with the first bad version; None if they are the same."""

    ends: Comparison | None = None
    """Comparison of both ends, in the rounds that showed their difference."""

    hidden: float | None = None
    """Maximum relative effect that another change may have; None if excluded."""

    reason: str = ""
    """Reason for an inconclusive answer; empty otherwise."""


@dataclass
class Bisection:
    """State of a search over a history whose first version is good and whose last is bad."""

    versions: int
    """Number of versions, at least two."""

    floor: float
    """Minimum relative effect of a change to search for; 0.01 is 1 %."""

    most_rounds: int
    """Maximum number of rounds of one comparison."""

    rounds: dict[Comparing, list[Costs]] = field(default_factory=dict)
    """Measured rounds by set of compared versions."""

    skipped: dict[int, str] = field(default_factory=dict)
    """Reasons for skipping versions that cannot be measured, by index."""

    sides: dict[int, Side] = field(default_factory=dict)
    """Sides of the change (good or bad) of measured probes by index, in order of measurement."""

    @property
    def probes(self) -> int:
        """Number of probes that were measured."""
        return sum(one.kind == "probe" and bool(own) for one, own in self.rounds.items())

    @property
    def runs(self) -> int:
        """Number of runs so far."""
        return sum(len(costs) for own in self.rounds.values() for costs in own)

    @property
    def known(self) -> tuple[int, int]:
        """Indices of the last version known to be good and the first known to be bad."""
        by_side = {
            side: [one for one, own in self.sides.items() if own == side]
            for side in ("good", "bad")
        }
        return max([0, *by_side["good"]]), min([self.versions - 1, *by_side["bad"]])

    def pairs(self, version: int) -> list[tuple[float, float]]:
        """Return the costs of the good end and of a version in the rounds that measured both."""
        rounds = (costs for own in self.rounds.values() for costs in own)
        return [(costs[0], costs[version]) for costs in rounds if version in costs]

    def ratio(self, version: int) -> float | None:
        """Return the ratio of a version to the good end, above 1 is better, if measured."""
        logs = [math.log(good / own) for good, own in self.pairs(version)]
        return math.exp(fmean(logs)) if logs else None

    def add(self, comparing: Comparing, costs: Costs) -> None:
        """Add the costs of a round."""
        self.rounds.setdefault(comparing, []).append(costs)

    def next(self) -> MoreRounds | BisectAnswer:
        """Return the rounds to measure next, or the answer."""
        try:
            return self._answer()
        except _Lacking as lacking:
            return lacking.more

    def _answer(self) -> BisectAnswer:
        good, bad = 0, self.versions - 1
        comparing = Comparing("ends", (good, bad))
        for look in self._looks():
            ends = self._compare(comparing, look, {"ends": (good, bad)})["ends"]
            outcome = judge_comparison(ends, self.floor).outcome
            if outcome == "passed":
                return BisectAnswer("none", ends=ends)
            if outcome == "regression":
                return self._search(ends)
        return BisectAnswer("inconclusive", ends=ends, reason=self._open("the ends"))

    def _search(self, ends: Comparison) -> BisectAnswer:
        """Halve the history until two neighbours are left that can be measured."""
        good, bad = 0, self.versions - 1
        while (probe := self._middle(good, bad)) is not None:
            side = self._side(probe)
            if side is None:
                reason = self._open(f"version {probe}")
                return BisectAnswer("inconclusive", good, bad, ends=ends, reason=reason)
            self.sides[probe] = side
            good, bad = (probe, bad) if side == "good" else (good, probe)
        return self._confirm(good, bad, ends)

    def _middle(self, good: int, bad: int) -> int | None:
        """Return the version between two others to measure next; None if none can be measured.

        Versions that cannot be built are often adjacent: after the middle, versions at 1/4, 3/4,
        1/8, ... are tried.
        """
        between = range(good + 1, bad)
        left = [one for one in between if one not in self.skipped]
        if not left:
            return None
        place = good + (bad - good) * _fraction(1 + len(between) - len(left))
        return min(left, key=lambda one: abs(one - place))

    def _side(self, probe: int) -> Side | None:
        """Return the side of the change on which a probe lies; None if inconclusive."""
        good, bad = 0, self.versions - 1
        comparing = Comparing("probe", (good, probe, bad))
        pairs = {"good": (good, probe), "bad": (bad, probe)}
        for look in self._looks():
            found = {
                name: self._compare(comparing, look, {name: pair}, floor=0.0)[name]
                for name, pair in pairs.items()
            }
            worse, better = found["good"].verdict == "worse", found["bad"].verdict == "better"
            if worse and better:  # Between the ends: the larger part of the difference is searched.
                return "bad" if _distance(found["good"]) > _distance(found["bad"]) else "good"
            if worse or better:
                return "bad" if worse else "good"
        return None

    def _confirm(self, last: int, first: int, ends: Comparison) -> BisectAnswer:
        """Compare the neighbours of the change with each other and with the ends, in fresh rounds.

        The change explains the difference of the ends if no other change can be half as large.
        """
        good, bad = 0, self.versions - 1
        comparing = Comparing("neighbours", tuple(dict.fromkeys((good, last, first, bad))))
        pairs = {"before": (good, last), "after": (first, bad)}
        rest = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        answer = BisectAnswer("inconclusive", last, first, ends=ends)
        for look in self._looks():
            step = self._compare(comparing, look, {"step": (last, first)})["step"]
            sides = self._compare(comparing, look, rest)
            hidden = max(map(_at_most, sides.values()), default=0.0)
            answer = answer._replace(
                step=step,
                hidden=hidden or None,
                before=sides.get("before"),
                after=sides.get("after"),
            )
            if any(one.verdict in ("better", "worse") for one in sides.values()):
                return answer._replace(kind="several")
            confirmed = judge_comparison(step, self.floor).outcome == "regression"
            if confirmed and math.log1p(hidden) < _distance(step):
                kind: AnswerKind = "culprit" if first - last == 1 else "candidates"
                answer = answer._replace(kind=kind)
                if math.log1p(hidden) < max(math.log1p(self.floor), _distance(step) / 2):
                    return answer
        reason = "" if answer.kind != "inconclusive" else self._open("fresh rounds of neighbours")
        return answer._replace(reason=reason)

    def _looks(self) -> Iterator[int]:
        """Yield the numbers of the looks at a comparison: after 5, 10, 20, ... rounds."""
        look = 1
        while _size(look) <= self.most_rounds:
            yield look
            look += 1

    def _compare(
        self,
        comparing: Comparing,
        look: int,
        pairs: Mapping[str, tuple[int, int]],
        floor: float | None = None,
    ) -> dict[str, Comparison]:
        """Compare the second of each pair with the first, in the rounds of a look."""
        size, known = _size(look), self.rounds.get(comparing, [])
        if len(known) < size:
            raise _Lacking(MoreRounds(comparing, size - len(known)))
        logs = {
            name: [math.log(one[a] / one[b]) for one in known[:size]]
            for name, (a, b) in pairs.items()
        }
        policy = Policy(floor=self.floor if floor is None else floor, points=self._points)
        return compare_logs(logs, dict.fromkeys(logs, look), policy)

    @property
    def _points(self) -> int:
        """Number of tests among which the usual error rate is divided."""
        tests = math.ceil(math.log2(max(self.versions - 1, 1))) + OTHER_TESTS
        return math.ceil(round(tests * ONE_SIDED_ALPHA / ERROR, 9))

    def _open(self, what: str) -> str:
        return f"{what}: {self.most_rounds} rounds leave it open; --rounds allows more"


class _Lacking(Exception):
    """Exception that carries the rounds that a comparison lacks."""

    def __init__(self, more: MoreRounds) -> None:
        self.more = more


def _size(look: int) -> int:
    """Return the number of rounds at a look."""
    return MINIMUM_ROUNDS << (look - 1)


def _fraction(number: int) -> float:
    """Return the fraction 1/2, 1/4, 3/4, 1/8, 5/8, ... of a number: its reversed binary digits."""
    found, part = 0.0, 0.5
    while number:
        found, number, part = found + part * (number % 2), number // 2, part / 2
    return found


def _distance(found: Comparison) -> float:
    """Return the size of an effect as a log-ratio."""
    return abs(math.log(found.ratio.median)) if found.ratio else 0.0


def _at_most(found: Comparison) -> float:
    """Return the largest effect, in either direction, that a comparison cannot exclude."""
    assert found.ratio is not None
    turned = found.model_copy(update={"ratio": found.ratio.mapped(lambda end: 1 / end)})
    bounds = (judge_comparison(one, 0.0).at_most for one in (found, turned))
    return max(bound if bound is not None else math.inf for bound in bounds)
