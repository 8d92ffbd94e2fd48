"""Order candidates: what fits and trains the same first, then what does the job soonest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from accel_bench.analysis.device_kinds import DeviceKind
from accel_bench.analysis.statistics.estimators import Interval, geometric_interval
from accel_bench.analysis.statistics.verdict import (
    MINIMUM_ROUNDS,
    SAME_WITHIN,
    Comparison,
    RoundKey,
    compare,
)
from accel_bench.analysis.tables.points import paired_rounds, ratio_of, shares_rounds
from accel_bench_advise.recommendation.break_even import break_even, mean_ends
from accel_bench_advise.recommendation.candidates import (
    Candidate,
    same_training,
    within_limits,
)
from accel_bench_advise.recommendation.schema import BreakEven, Certainty


class Ranked(NamedTuple):
    """Candidates of one training on one kind of device."""

    best: Candidate | None
    runner_up: Candidate | None
    eligible: tuple[Candidate, ...]
    """Candidates that may be recommended, the soonest first."""

    refused: tuple[Candidate, ...]

    sure: bool = False
    """True if nothing eligible may be 2 % faster than the best, as far as enough rounds show."""

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All of them, those first that may be recommended."""
        return (*self.eligible, *self.refused)

    @property
    def device(self) -> DeviceKind:
        """The device."""
        return self.candidates[0].device

    @property
    def certainty(self) -> Certainty:
        """How sure the best is."""
        return "cannot tell" if self.best is None else "measured" if self.sure else "open"


def rank(
    candidates: Sequence[Candidate],
    tokens: float | None,
    at_most: Mapping[str, float] | None = None,
) -> Ranked:
    """Return the candidates in order; the best is the plainest within 2 % of the soonest.

    All of one device. Those whose sweep point trains something else than the newest baseline's are
    refused, and so is what does not keep up with its requests, or has more of a metric than
    `at_most`.
    """
    compared = with_reference(candidates)
    settled = _with_lone([within_limits(one, at_most or {}) for one in compared])
    eligible = sorted(
        (one for one in settled if not one.obstacle),
        key=lambda one: job_time(one, tokens).median,
    )
    refused = tuple(one for one in settled if one.obstacle)
    if not eligible:
        return Ranked(None, None, (), refused)
    soonest = _soonest(eligible, tokens)
    eligible.sort(key=lambda one: one is not soonest)
    best = min(
        (one for one in eligible if one is soonest or is_as_fast(one, soonest, tokens)),
        key=lambda one: one.size,
    )
    others = [one for one in eligible if one is not best]
    sure = len(best.runs.speeds) >= MINIMUM_ROUNDS and not best.lone
    sure = sure and all(_not_faster(one, best, tokens) for one in others)
    return Ranked(best, others[0] if others else None, tuple(eligible), refused, sure)


def _soonest(eligible: Sequence[Candidate], tokens: float | None) -> Candidate:
    """Return the one that does the job soonest, by pairs where there are."""
    soonest = eligible[0]
    for one in eligible[1:]:
        ratio = as_fast(one, soonest, tokens)
        if ratio is not None and ratio.median > 1:
            soonest = one
    return soonest


def with_reference(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates; refused are sweep points whose baseline trains something else.

    The reference is the baseline that ran last and can be used.
    """
    bases = [one for one in candidates if one.is_baseline and not one.obstacle]
    if not bases:
        return list(candidates)
    reference = max(bases, key=last_start)
    obstacles = {
        point_of(one): same_training(reference, one)
        for one in bases
        if point_of(one) != point_of(reference)
    }

    def judged(one: Candidate) -> Candidate:
        if one.lone:  # Its own baseline cannot be compared with, that of another point can.
            return one.trained_apart(same_training(reference, one))
        why = "" if one.obstacle else obstacles.get(point_of(one), "")
        return one.trained_apart(why) if why else one

    return list(map(judged, candidates))


def _with_lone(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates; where none is eligible, what fits alone is, compared with nothing."""
    if any(not one.obstacle for one in candidates):
        return list(candidates)
    return [one.trained_apart("") if one.lone else one for one in candidates]


def point_of(candidate: Candidate) -> tuple[str, str, str]:
    """Return what candidates of one comparison share."""
    experiment = candidate.experiment
    return experiment.scenario.name, experiment.point, candidate.training


def last_start(candidate: Candidate) -> str:
    """Return when its last run started; empty where none counts."""
    return max((run.started_at for run in candidate.runs.counted.values()), default="")


def job_time(candidate: Candidate, tokens: float | None) -> Interval:
    """Return the seconds of the job, or of a token; the candidate has at least one speed."""
    found = geometric_interval(list(candidate.job_seconds(tokens).values()))
    assert found is not None
    return found


def as_fast(one: Candidate, other: Candidate, tokens: float | None) -> Interval | None:
    """Return how fast one does the job over the other, of pairs where their rounds are."""
    seconds, others, paired = _seconds_of(one, other, tokens)
    return ratio_of(others, seconds, paired)


def verdict_between(best: Candidate, other: Candidate, tokens: float | None) -> Comparison | None:
    """Return the comparison of two that ran in the same rounds, as verdicts are made; else None."""
    seconds, others, paired = _seconds_of(best, other, tokens)
    return compare(others, {"best": seconds})["best"] if paired else None


def _seconds_of(
    one: Candidate, other: Candidate, tokens: float | None
) -> tuple[dict[RoundKey, float], dict[RoundKey, float], bool]:
    """Return the seconds of the job of both, of pairs where their rounds are, and if they are."""
    keys = pairs_of(one, other)
    seconds, others = (
        {key: own[key] for key in keys or own if key in own}
        for own in (one.job_seconds(tokens), other.job_seconds(tokens))
    )
    return seconds, others, bool(keys)


def pairs_of(one: Candidate, other: Candidate) -> list[RoundKey]:
    """Return the rounds by which two are compared as pairs; none where all their runs count.

    Enough rounds that both ran side by side are better evidence than those that they did not:
    between the latter, drift would count as difference.
    """
    found = paired_rounds(one.runs, other.runs)
    few = len(found) < MINIMUM_ROUNDS and not shares_rounds(one.runs, other.runs)
    return [] if few else sorted(found)


def break_evens(ranked: Ranked, tokens: float | None) -> list[BreakEven]:
    """Return when the best pays against its baseline, and when what steps faster pays against it.

    None for what does not surely start later.
    """
    best = ranked.best
    if best is None or best.runs.rate is not None:
        return []
    bases = [one for one in ranked.eligible if one.is_baseline]
    pairs = [(best, one) for one in bases if point_of(one) == point_of(best)]
    pairs += [(one, best) for one in ranked.eligible]
    return [_break_even(*pair, tokens) for pair in pairs if _costs_more_once(*pair)]


def is_as_fast(one: Candidate, soonest: Candidate, tokens: float | None) -> bool:
    """Return whether one is surely no more than 2 % behind the soonest."""
    ratio = as_fast(one, soonest, tokens)
    return ratio is not None and ratio.low is not None and ratio.low >= 1 - SAME_WITHIN


def _not_faster(one: Candidate, best: Candidate, tokens: float | None) -> bool:
    ratio = as_fast(one, best, tokens)
    return ratio is not None and ratio.high is not None and ratio.high < 1 + SAME_WITHIN


def _costs_more_once(one: Candidate, other: Candidate) -> bool:
    """Return whether a candidate surely starts later than another and takes shorter steps."""
    extra, _ = _extra_and_saved(one, other)
    return mean_ends(extra)[0] > 0 and job_time(one, None).median < job_time(other, None).median


def _break_even(one: Candidate, rival: Candidate, tokens: float | None) -> BreakEven:
    extra, saved = _extra_and_saved(one, rival)
    steps = tokens / rival.tokens_per_step if tokens else None
    return break_even((one.name, rival.name), extra, saved, steps)


def _extra_and_saved(one: Candidate, rival: Candidate) -> tuple[list[float], list[float]]:
    """Return what a start takes longer and a step less than the rival's.

    Runs of the same round are compared where both have rounds in common, else runs in order.
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
