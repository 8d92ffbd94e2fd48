"""Recommend a stack and a device for a model: from stored runs, else from estimates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from accel_bench.analysis.facts import DeviceKind
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.catalog.hardware import NamedHardware, list_hardware, named_hardware
from accel_bench.catalog.prices import PriceEntry
from accel_bench.errors import AccelBenchError, ScenarioError
from accel_bench_advise.estimates.cost import is_price_of
from accel_bench_advise.estimates.estimator import DeviceEstimate, Estimator
from accel_bench_advise.estimates.lengths import summarize_lengths
from accel_bench_advise.estimates.schema import LengthSummary
from accel_bench_advise.recommendation.advice import advice
from accel_bench_advise.recommendation.answer import (
    answer_of,
    considered,
    imported_rows,
    kept_settings,
    others_of,
)
from accel_bench_advise.recommendation.candidates import Candidate, Stored, collect_candidates
from accel_bench_advise.recommendation.evidence import of_gpu, of_length, of_newest_training
from accel_bench_advise.recommendation.next_runs import PlanOf, first_run, more_rounds
from accel_bench_advise.recommendation.offers import (
    choose,
    estimated_answer,
    estimated_offer,
    lacks_price,
    limits_words,
    measured_offer,
    nothing_within,
    price_key,
)
from accel_bench_advise.recommendation.ranking import (
    Ranked,
    break_evens,
    rank,
)
from accel_bench_advise.recommendation.schema import (
    Fate,
    NextRun,
    Offer,
    Other,
    Recommendation,
    RecommendRequest,
)

NO_JOB = (
    "the stored requests arrive at a rate (inference.rate), by which a job of tokens has no hours; "
    "leave --tokens, --lengths, --budget and --deadline out, or choose others with --where"
)
"""Why the size of a job is refused."""


@dataclass(frozen=True)
class Recommender:
    """Answers one request."""

    request: RecommendRequest
    stored: Stored
    prices: Sequence[PriceEntry]

    estimator: Estimator | None
    """Estimates what is not stored; None for answers from stored runs alone."""

    plan_of: PlanOf | None = None
    """Plans a stored command anew; without it, the minutes of more rounds are not known."""

    def answer(self) -> Recommendation:
        """Return the recommendation. Raises AccelBenchError where the request has no answer."""
        chosen, left_out = self._candidates()
        by_device = self._by_device(chosen)
        ranks = [one for one in by_device.values() if one.best]
        offers = {
            id(one): measured_offer(one.best, self.request, self.tokens, self.prices)
            for one in ranks
            if one.best
        }
        measured = {one.device.name for ranked in ranks if (one := ranked.best)}
        estimates = list(self._estimates(measured, left_out))
        estimated = [(one, estimated_offer(one, self.request)) for one in estimates]
        all_offers = [*offers.values(), *(offer for _, offer in estimated)]
        taken = choose(all_offers, self.request)
        ranked = next((one for one in ranks if offers[id(one)] is taken), None)
        found = next((one for one, offer in estimated if offer is taken), None)
        document = self._document(taken, ranked or _shown(taken, by_device), chosen, all_offers)
        next_runs = tuple(self._next_runs(taken, ranked, found or next(iter(estimates), None)))
        return document.model_copy(
            update={
                "offers": tuple(sorted(all_offers, key=price_key)),
                "left_out": tuple(left_out),
                "next_runs": next_runs,
            }
        )

    def ranked(self) -> tuple[dict[DeviceKind, Ranked], list[str]]:
        """Return the stored stacks in order on each device, and what was left out: those at a rate
        too, for a job of tokens."""
        chosen, left_out = self._candidates()
        kept = [one for one in chosen if self.tokens is None or one.runs.rate is None]
        left_out += [NO_JOB] if len(kept) < len(chosen) else []
        return self._by_device(kept), left_out

    def _by_device(self, chosen: Sequence[Candidate]) -> dict[DeviceKind, Ranked]:
        """Return the candidates in order on each device. Raises ScenarioError for a job of tokens
        where requests arrive at a rate."""
        if self.tokens is not None and any(one.runs.rate is not None for one in chosen):
            raise ScenarioError(NO_JOB)
        return {
            device: rank(
                [one for one in chosen if one.device == device], self.tokens, self.request.at_most
            )
            for device in dict.fromkeys(one.device for one in chosen)
        }

    @property
    def lengths(self) -> LengthSummary | None:
        """What the lengths of the request say."""
        return lengths_of(self.request)

    @property
    def tokens(self) -> float | None:
        """Real tokens of the job: those of all samples where none are given."""
        lengths = self.lengths
        if self.request.tokens is not None or lengths is None:
            return self.request.tokens
        longest = lengths.sequence_length
        return float(sum(min(length, longest) for length in self.request.lengths or ()))

    def _candidates(self) -> tuple[list[Candidate], list[str]]:
        """Return the candidates of one training and one length, and what was left out."""
        left_out = list(imported_rows(self.stored.results))
        found = collect_candidates(self.stored.results, self.stored.baselines)
        found, others = of_gpu(found, self.request.gpu)
        left_out += others
        found, others = of_length(found, self.lengths)
        left_out += others
        found, others = of_newest_training(found)
        return found, left_out + others

    def _estimates(self, measured: set[str], left_out: list[str]) -> Iterator[DeviceEstimate]:
        """Yield estimates of devices that have no stored runs which could be recommended.

        `left_out` takes those of several devices on which the scenario cannot be planned.
        """
        if self.estimator is None:
            return
        wanted = list(self._to_estimate(measured))
        for hardware in wanted:
            try:
                yield replace(self.estimator, chosen=hardware).baseline()
            except AccelBenchError as error:
                if hardware is None or len(wanted) == 1:
                    raise
                left_out.append(f"{hardware.name}: {error}")

    def _to_estimate(self, measured: set[str]) -> Iterator[NamedHardware | None]:
        request = self.request
        if request.gpu is not None:
            hardware = named_hardware(request.gpu)
            if hardware.name not in measured:
                yield hardware
        elif request.budget_usd is not None or request.deadline_hours is not None:
            for name, row in list_hardware().items():
                hardware = NamedHardware(name, row)
                priced = any(is_price_of(entry.price, hardware) for entry in self.prices)
                if priced and name not in measured:
                    yield hardware
        elif not measured:
            yield None

    def _document(
        self,
        taken: Offer | None,
        ranked: Ranked | None,
        candidates: Sequence[Candidate],
        offers: Sequence[Offer],
    ) -> Recommendation:
        """Return what is known of the device that was chosen, or else of the best that is not."""
        tokens = self.tokens
        blank = Recommendation(
            request=self.request,
            answer="",
            certainty="cannot tell",
            offer=taken,
            lengths=self.lengths,
            tokens=tokens,
        )
        shown: dict[str, Any] = {}
        if ranked:
            same = [one for one in candidates if one.device == _device(ranked)]
            others = others_of(ranked, tokens)
            shown = {
                "others": others,
                "runner_up": next((one for one in others if one.fate == "runner-up"), None),
                "break_even": tuple(break_evens(ranked, tokens)),
                "advice": tuple(advice(same, ranked, self.lengths)),
            }
        if taken is None:
            shown["answer"] = self._nothing(ranked, offers)
            if ranked and ranked.best:
                shown["others"] = (self._best(ranked.best, offers), *shown["others"])
        elif taken.kind == "estimated":
            shown |= {"answer": estimated_answer(taken), "certainty": "estimated"}
        elif ranked and ranked.best:
            best = ranked.best
            shown |= {
                "answer": answer_of(ranked, tokens) + limits_words(taken, hours=False),
                "certainty": "measured" if ranked.sure else "open",
                "recommended": considered(best, tokens),
                "kept": kept_settings(best),
            }
        return blank.model_copy(update=shown)

    def _best(self, best: Candidate, offers: Sequence[Offer]) -> Other:
        """Return the row of the best stack where it is not recommended, as the limits forbid it."""
        (own,) = [
            one for one in offers if one.kind == "measured" and one.device == best.device.label
        ]
        fate: Fate = "best, over the limits"
        if lacks_price(own, self.request) and own.within_deadline != "no":
            fate = "best, price not known"
        return Other(
            fate=fate,
            why=own.problem or limits_words(own).strip(),
            of_the_best=Interval(median=1.0, low=1.0, high=1.0),
            row=considered(best, self.tokens),
        )

    def _nothing(self, ranked: Ranked | None, offers: Sequence[Offer]) -> str:
        request = self.request
        limits = request.budget_usd is not None or request.deadline_hours is not None
        if limits and ranked and ranked.best:
            return nothing_within(offers, request)
        if ranked is not None:
            return (
                "Cannot tell: of what is stored nothing may be recommended; the reasons stand "
                "with each row."
            )
        return f"Cannot tell: nothing that is stored of {request.model} answers this."

    def _next_runs(
        self, taken: Offer | None, ranked: Ranked | None, found: DeviceEstimate | None
    ) -> Iterator[NextRun]:
        """Yield commands that would settle what is open."""
        if ranked:
            hourly = taken.usd_per_hour if taken else None
            if more := more_rounds(ranked, self.tokens, self.stored, self.plan_of, hourly):
                yield more
        elif found and not found.estimate.problem:
            yield first_run(found, self.request.scenario, self.stored.store)


def lengths_of(request: RecommendRequest) -> LengthSummary | None:
    """Return what the lengths of a request say."""
    return summarize_lengths(request.lengths) if request.lengths else None


def check_request(request: RecommendRequest) -> None:
    """Raise ScenarioError for limits without the tokens that they are for."""
    for key, option in (("budget_usd", "--budget"), ("deadline_hours", "--deadline")):
        if getattr(request, key) is not None and not (request.tokens or request.lengths):
            raise ScenarioError(
                f"{option} needs the size of the job: --tokens 1.2e9, or --lengths for one pass "
                "over your samples"
            )
    if request.gpu is not None:
        named_hardware(request.gpu)


def _shown(taken: Offer | None, by_device: Mapping[DeviceKind, Ranked]) -> Ranked | None:
    """Return the rows to show where none of them is recommended: those of the same device."""
    found = [
        ranked
        for device, ranked in by_device.items()
        if taken is None or device.name == taken.device
    ]
    return next(iter(sorted(found, key=lambda one: one.best is None)), None)


def _device(ranked: Ranked) -> object:
    one = ranked.best or next(iter(ranked.refused))
    return one.device
