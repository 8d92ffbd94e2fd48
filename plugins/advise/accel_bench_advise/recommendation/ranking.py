"""Ranking of candidates: those that may be recommended, ordered by their time for the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from accel_bench.analysis.device_kinds import DeviceKind
from accel_bench.analysis.pairing import paired_rounds, shares_rounds
from accel_bench.analysis.statistics.estimators import Interval, geometric_interval
from accel_bench.analysis.statistics.verdict import (
    ESTIMATE,
    MINIMUM_ROUNDS,
    SAME_WITHIN,
    UNPAIRED,
    Comparison,
    RoundKey,
    compare,
)
from accel_bench_advise.recommendation.break_even import break_even, mean_ends
from accel_bench_advise.recommendation.candidates import (
    Candidate,
    same_training,
    within_limits,
)
from accel_bench_advise.recommendation.schema import BreakEven, Certainty


class Ranked(NamedTuple):
    """Ranked candidates of one training on one kind of device."""

    best: Candidate | None
    runner_up: Candidate | None
    eligible: tuple[Candidate, ...]
    """Candidates that may be recommended, the fastest first."""

    refused: tuple[Candidate, ...]

    sure: bool = False
    """True if surely no eligible candidate is over 2 % faster than the best."""

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All candidates, eligible ones first."""
        return (*self.eligible, *self.refused)

    @property
    def device(self) -> DeviceKind:
        """Device of the candidates."""
        return self.candidates[0].device

    @property
    def certainty(self) -> Certainty:
        """`not tested` without a best; `inconclusive` if another may be faster; else `measured`."""
        return "not tested" if self.best is None else "measured" if self.sure else "inconclusive"


def rank(
    candidates: Sequence[Candidate],
    tokens: float | None,
    at_most: Mapping[str, float] | None = None,
) -> Ranked:
    """Return the ranking of candidates on one device.

    Of those within 2 % of the fastest, the best is the one with the fewest changes. A candidate is
    refused if its requests pile up, if it exceeds a limit in `at_most`, or if it trains differently
    from the newest baseline. `tokens` is the size of the job; None ranks by seconds per token.
    """
    compared = with_reference(candidates)
    settled = _with_lone([within_limits(candidate, at_most or {}) for candidate in compared])
    eligible = sorted(
        (candidate for candidate in settled if not candidate.obstacle),
        key=lambda candidate: job_time(candidate, tokens).median,
    )
    refused = tuple(candidate for candidate in settled if candidate.obstacle)
    if not eligible:
        return Ranked(None, None, (), refused)
    soonest = _soonest(eligible, tokens)
    eligible.sort(key=lambda candidate: candidate is not soonest)
    best = min(
        (
            candidate
            for candidate in eligible
            if candidate is soonest or is_as_fast(candidate, soonest, tokens)
        ),
        key=lambda candidate: candidate.size,
    )
    others = [candidate for candidate in eligible if candidate is not best]
    sure = len(best.runs.speeds) >= MINIMUM_ROUNDS and not best.lone
    sure = sure and all(_not_faster(candidate, best, tokens) for candidate in others)
    return Ranked(best, others[0] if others else None, tuple(eligible), refused, sure)


def _soonest(eligible: Sequence[Candidate], tokens: float | None) -> Candidate:
    """Return the candidate that does the job of `tokens` tokens fastest.

    Candidates are compared by paired rounds if possible.
    """
    soonest = eligible[0]
    for candidate in eligible[1:]:
        ratio = as_fast(candidate, soonest, tokens)
        if ratio is not None and ratio.median > 1:
            soonest = candidate
    return soonest


def with_reference(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates, with an obstacle where the sweep point's baseline trains differently.

    Each point's baseline is compared with the newest usable baseline.
    """
    bases = [
        candidate for candidate in candidates if candidate.is_baseline and not candidate.obstacle
    ]
    if not bases:
        return list(candidates)
    reference = max(bases, key=last_start)
    obstacles = {
        point_of(base): same_training(reference, base)
        for base in bases
        if point_of(base) != point_of(reference)
    }

    def judged(one: Candidate) -> Candidate:
        if one.lone:  # Its own baseline cannot be compared with, that of another point can.
            return one.trained_apart(same_training(reference, one))
        why = "" if one.obstacle else obstacles.get(point_of(one), "")
        return one.trained_apart(why) if why else one

    return list(map(judged, candidates))


def _with_lone(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates; if none is eligible, allow those whose baseline ran out of memory."""
    if any(not candidate.obstacle for candidate in candidates):
        return list(candidates)
    return [
        candidate.trained_apart("") if candidate.lone else candidate for candidate in candidates
    ]


def point_of(candidate: Candidate) -> tuple[str, str, str]:
    """Return a key that is equal for candidates of one scenario, sweep point and training."""
    experiment = candidate.experiment
    return experiment.scenario.name, experiment.point, candidate.training


def last_start(candidate: Candidate) -> str:
    """Return the start time of a candidate's last run; empty without completed runs."""
    return max((run.started_at for run in candidate.runs.counted.values()), default="")


def job_time(candidate: Candidate, tokens: float | None) -> Interval:
    """Return the candidate's seconds for a job of `tokens` tokens, with the interval over its runs.

    Without `tokens` the seconds are per token.
    """
    interval = geometric_interval(list(candidate.job_seconds(tokens).values()))
    assert interval is not None
    return interval


def as_fast(one: Candidate, other: Candidate, tokens: float | None) -> Interval | None:
    """Return the speed of `one` relative to `other` for a job, by paired rounds if possible.

    `tokens` is the size of the job; None compares seconds per token.
    """
    seconds, others, paired = _seconds_of(one, other, tokens)
    return compare(others, seconds, ESTIMATE if paired else UNPAIRED).ratio


def verdict_between(best: Candidate, other: Candidate, tokens: float | None) -> Comparison | None:
    """Return the comparison of two candidates by their time for a job of `tokens` tokens.

    None if they did not run in the same rounds.
    """
    seconds, others, paired = _seconds_of(best, other, tokens)
    return compare(others, seconds) if paired else None


def _seconds_of(
    one: Candidate, other: Candidate, tokens: float | None
) -> tuple[dict[RoundKey, float], dict[RoundKey, float], bool]:
    """Return two candidates' seconds for the job by round, and whether the rounds are paired.

    Without the job's `tokens`, they are seconds per token.
    """
    keys = pairs_of(one, other)
    seconds, others = (
        {key: own[key] for key in keys or own if key in own}
        for own in (one.job_seconds(tokens), other.job_seconds(tokens))
    )
    return seconds, others, bool(keys)


def pairs_of(one: Candidate, other: Candidate) -> list[RoundKey]:
    """Return the rounds that both candidates ran; empty if their runs are to be compared unpaired.

    Pairs are used if there are enough, since drift between sessions would count as a difference.
    """
    rounds = paired_rounds(one.runs, other.runs)
    few = len(rounds) < MINIMUM_ROUNDS and not shares_rounds(one.runs, other.runs)
    return [] if few else sorted(rounds)


def break_evens(ranked: Ranked, tokens: float | None) -> list[BreakEven]:
    """Return break-evens of the best against its baseline, and of other stacks against the best.

    A stack has a break-even only if its steps are faster and it surely starts later.
    """
    best = ranked.best
    if best is None or best.runs.rate is not None:
        return []
    bases = [candidate for candidate in ranked.eligible if candidate.is_baseline]
    pairs = [(best, base) for base in bases if point_of(base) == point_of(best)]
    pairs += [(candidate, best) for candidate in ranked.eligible]
    results = []
    for candidate, rival in pairs:
        extra, saved = _extra_and_saved(candidate, rival)
        starts_later = mean_ends(extra)[0] > 0
        if starts_later and job_time(candidate, None).median < job_time(rival, None).median:
            steps = tokens / rival.tokens_per_step if tokens else None
            results.append(break_even((candidate.name, rival.name), extra, saved, steps))
    return results


def is_as_fast(one: Candidate, soonest: Candidate, tokens: float | None) -> bool:
    """Return whether `one` is surely at most 2 % slower than `soonest` in a job of `tokens`."""
    ratio = as_fast(one, soonest, tokens)
    return ratio is not None and ratio.low is not None and ratio.low >= 1 - SAME_WITHIN


def _not_faster(one: Candidate, best: Candidate, tokens: float | None) -> bool:
    ratio = as_fast(one, best, tokens)
    return ratio is not None and ratio.high is not None and ratio.high < 1 + SAME_WITHIN


def _extra_and_saved(one: Candidate, rival: Candidate) -> tuple[list[float], list[float]]:
    """Return two lists: the seconds that `one` starts after `rival`, and those it saves per step.

    Runs are paired by round if both have common rounds, else by order.
    """
    shared = sorted(set(one.start_seconds) & set(rival.start_seconds))
    if shares_rounds(one.runs, rival.runs):
        keys = list(zip(shared, shared, strict=True))
    else:
        keys = list(zip(one.start_seconds, rival.start_seconds, strict=False))
    extra = [one.start_seconds[a] - rival.start_seconds[b] for a, b in keys]
    seconds = one.runs.compared_seconds, rival.runs.compared_seconds
    saved = [(seconds[1][b] - seconds[0][a]) * rival.tokens_per_step for a, b in keys]
    return extra, saved
