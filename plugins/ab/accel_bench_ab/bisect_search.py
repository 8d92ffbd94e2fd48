"""Search algorithm of `bisect`: the next versions to measure, and the answer.

The ends are compared first. A probe is a version between the ends, measured in the same rounds as
both ends. A probe has the change if it is significantly worse than the good end, and lacks the
change if it is significantly better than the bad end. Since a probe differs from one of the ends by
the whole effect of the change, this test takes a third of the runs that a test for half of the
effect would take. Last, the two neighbours of the change are measured with the ends in fresh
rounds. These rounds alone confirm the change. They also show whether another change contributes to
the difference of the ends.

The next step depends on the previous rounds alone, so that a search can be resumed. A look is an
interim analysis of a comparison after 5, 10, 20, ... rounds. The significance levels of all looks
together keep the error rate (`statistics.sequential`).
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
"""Maximum probability of a wrong answer, over all comparisons and their interim analyses."""

OTHER_TESTS = 3
"""Number of tests of other versions than probes: one of the ends, and two of the confirmation."""

Costs: TypeAlias = Mapping[int, float]
"""Compared costs of one round by index of the version; less is better."""

AnswerKind: TypeAlias = Literal["culprit", "candidates", "several", "none", "inconclusive"]
"""Kind of answer; `candidates` are one version and the unmeasurable versions before it."""


Side: TypeAlias = Literal["good", "bad"]
"""Side of the change on which a version lies."""


class Comparing(NamedTuple):
    """Indices of versions that are measured in the same rounds, and the purpose of these rounds.

    The good end comes first.
    """

    kind: Literal["ends", "probe", "neighbours"]
    versions: tuple[int, ...]


class MoreRounds(NamedTuple):
    """Request for a number of further rounds of some versions."""

    comparing: Comparing
    rounds: int


class BisectAnswer(NamedTuple):
    """Answer of a search; `inconclusive` if more runs are needed."""

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
        """Number of measured versions between the ends."""
        return sum(compared.kind == "probe" and bool(own) for compared, own in self.rounds.items())

    @property
    def runs(self) -> int:
        """Number of runs in all rounds so far."""
        return sum(len(costs) for own in self.rounds.values() for costs in own)

    @property
    def known(self) -> tuple[int, int]:
        """Indices of the last version known to be good, and the first version known to be bad."""
        by_side = {
            side: [version for version, own in self.sides.items() if own == side]
            for side in ("good", "bad")
        }
        return max([0, *by_side["good"]]), min([self.versions - 1, *by_side["bad"]])

    def pairs(self, version: int) -> list[tuple[float, float]]:
        """Return (cost of the good end, cost of the version) for each round that measured both."""
        rounds = (costs for own in self.rounds.values() for costs in own)
        return [(costs[0], costs[version]) for costs in rounds if version in costs]

    def ratio(self, version: int) -> float | None:
        """Return the mean of good end's cost / version's cost over rounds; None if unmeasured."""
        logs = [math.log(good / own) for good, own in self.pairs(version)]
        return math.exp(fmean(logs)) if logs else None

    def add(self, comparing: Comparing, costs: Costs) -> None:
        """Add the costs of a round that measured the versions of `comparing`."""
        self.rounds.setdefault(comparing, []).append(costs)

    def next(self) -> MoreRounds | BisectAnswer:
        """Return the rounds to measure next, or the answer if no more rounds are needed."""
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
        """Return the answer of a binary search for the change, confirmed by fresh rounds.

        `ends` is the comparison of the ends, which differ.
        """
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
        """Return the index of the next version to measure between the versions `good` and `bad`.

        The middle is tried first, then versions at 1/4, 3/4, 1/8, ..., since versions that cannot
        be built are often adjacent. Returns None if every version between is skipped.
        """
        between = range(good + 1, bad)
        left = [version for version in between if version not in self.skipped]
        if not left:
            return None
        place = good + (bad - good) * _fraction(1 + len(between) - len(left))
        return min(left, key=lambda version: abs(version - place))

    def _side(self, probe: int) -> Side | None:
        """Return the side of the change on which a version lies, or None if undecided."""
        good, bad = 0, self.versions - 1
        comparing = Comparing("probe", (good, probe, bad))
        pairs = {"good": (good, probe), "bad": (bad, probe)}
        for look in self._looks():
            results = {
                name: self._compare(comparing, look, {name: pair}, floor=0.0)[name]
                for name, pair in pairs.items()
            }
            worse, better = results["good"].verdict == "worse", results["bad"].verdict == "better"
            if worse and better:  # Between the ends: the larger part of the difference is searched.
                return "bad" if _distance(results["good"]) > _distance(results["bad"]) else "good"
            if worse or better:
                return "bad" if worse else "good"
        return None

    def _confirm(self, last: int, first: int, ends: Comparison) -> BisectAnswer:
        """Return the answer, given by fresh rounds of both neighbours of the change and both ends.

        `last` is the last good version, `first` the first bad one, and `ends` the comparison of the
        ends. The answer is final once any other change must be smaller than the floor or than half
        of this change. Raises _Lacking while rounds are missing.
        """
        good, bad = 0, self.versions - 1
        comparing = Comparing("neighbours", tuple(dict.fromkeys((good, last, first, bad))))
        pairs = {"before": (good, last), "after": (first, bad)}
        rest = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        result = BisectAnswer("inconclusive", last, first, ends=ends)
        for look in self._looks():
            step = self._compare(comparing, look, {"step": (last, first)})["step"]
            sides = self._compare(comparing, look, rest)
            hidden = max(map(_at_most, sides.values()), default=0.0)
            result = result._replace(
                step=step,
                hidden=hidden or None,
                before=sides.get("before"),
                after=sides.get("after"),
            )
            confirmed = judge_comparison(step, self.floor).outcome == "regression"
            elsewhere = [n for n, side in sides.items() if side.verdict in ("better", "worse")]
            if len(elsewhere) + confirmed > 1:
                return result._replace(kind="several")
            if confirmed and math.log1p(hidden) < _distance(step):
                kind: AnswerKind = "culprit" if first - last == 1 else "candidates"
                result = result._replace(kind=kind)
                if math.log1p(hidden) < max(math.log1p(self.floor), _distance(step) / 2):
                    return result
        if result.kind == "inconclusive":
            reason = self._open("fresh rounds of neighbours")
            if elsewhere:  # A probe was judged wrongly.
                low, high = pairs[elsewhere[0]]
                reason = f"fresh rounds show it between versions {low} and {high}: bisect these"
            result = result._replace(reason=reason)
        return result

    def _looks(self) -> Iterator[int]:
        """Yield the numbers 1, 2, 3, ... of the interim analyses after 5, 10, 20, ... rounds."""
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
        """Return, for each name in `pairs`, the comparison of the second version with the first.

        `pairs` are indices of two versions. The rounds of `comparing` before interim analysis
        number `look` are used. `floor` replaces the search's own floor. Raises _Lacking if too few
        rounds are measured.
        """
        size, known = _size(look), self.rounds.get(comparing, [])
        if len(known) < size:
            raise _Lacking(MoreRounds(comparing, size - len(known)))
        logs = {
            name: [math.log(costs[a] / costs[b]) for costs in known[:size]]
            for name, (a, b) in pairs.items()
        }
        policy = Policy(floor=self.floor if floor is None else floor, points=self._points)
        return compare_logs(logs, dict.fromkeys(logs, look), policy)

    @property
    def _points(self) -> int:
        """Number that divides each test's error rate, so that all tests together keep `ERROR`."""
        tests = math.ceil(math.log2(max(self.versions - 1, 1))) + OTHER_TESTS
        return math.ceil(round(tests * ONE_SIDED_ALPHA / ERROR, 9))

    def _open(self, what: str) -> str:
        return f"{what}: {self.most_rounds} rounds leave it open; --rounds allows more"


class _Lacking(Exception):
    """Exception that holds the rounds to measure before a comparison is possible."""

    def __init__(self, more: MoreRounds) -> None:
        self.more = more


def _size(look: int) -> int:
    """Return the number of rounds before interim analysis number `look` (1: 5, 2: 10, 3: 20)."""
    return MINIMUM_ROUNDS << (look - 1)


def _fraction(number: int) -> float:
    """Return the position from 0 to 1 of try `number`: 1/2, 1/4, 3/4, 1/8, ... (van der Corput)."""
    fraction, part = 0.0, 0.5
    while number:
        fraction, number, part = fraction + part * (number % 2), number // 2, part / 2
    return fraction


def _distance(found: Comparison) -> float:
    """Return the absolute logarithm of a comparison's median ratio, or 0 without a ratio."""
    return abs(math.log(found.ratio.median)) if found.ratio else 0.0


def _at_most(found: Comparison) -> float:
    """Return the largest relative effect, in either direction, that a comparison cannot exclude."""
    assert found.ratio is not None
    turned = found.model_copy(update={"ratio": found.ratio.mapped(lambda end: 1 / end)})
    bounds = (judge_comparison(turn, 0.0).at_most for turn in (found, turned))
    return max(bound if bound is not None else math.inf for bound in bounds)
