"""Recommend a stack and a device for a model: from stored runs, else from estimates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from accel_bench.analysis.estimates.lengths import summarize_lengths
from accel_bench.analysis.estimates.schema import LengthSummary
from accel_bench.analysis.recommendation.advice import advice
from accel_bench.analysis.recommendation.answer import (
    answer_of,
    considered,
    imported_rows,
    kept_settings,
    others_of,
)
from accel_bench.analysis.recommendation.candidates import Candidate, collect_candidates
from accel_bench.analysis.recommendation.ranking import (
    Ranked,
    break_evens,
    last_start,
    rank,
)
from accel_bench.analysis.recommendation.schema import (
    NextRun,
    Offer,
    Recommendation,
    RecommendRequest,
)
from accel_bench.analysis.wording import rate, settings
from accel_bench.catalog.hardware import NamedHardware, list_hardware, named_hardware
from accel_bench.catalog.prices import PriceEntry
from accel_bench.errors import AccelBenchError, ScenarioError
from accel_bench.result import Result
from accel_bench.runner.device_estimates import DeviceEstimate, DeviceEstimator
from accel_bench.runner.estimate_cost import is_price_of
from accel_bench.runner.recommend_next import assignments, first_run, more_rounds
from accel_bench.runner.recommend_offers import (
    choose,
    estimated_offer,
    measured_offer,
    price_key,
)
from accel_bench.store.database import Store
from accel_bench.store.records import SessionRecord

LENGTH = "data.sequence_length"


@dataclass(frozen=True)
class Stored:
    """Stored runs of a model, and the sessions that they belong to."""

    results: Sequence[Result] = ()
    sessions: Mapping[str, SessionRecord] = field(default_factory=dict)
    store: Store | None = None

    @property
    def baselines(self) -> dict[str, str]:
        """Names of the baselines by session."""
        return {name: baseline_of(session) for name, session in self.sessions.items()}


@dataclass(frozen=True)
class Recommender:
    """Answers one request."""

    request: RecommendRequest
    stored: Stored
    prices: Sequence[PriceEntry]

    estimator: DeviceEstimator | None
    """Estimates what is not stored; None for answers from stored runs alone."""

    def answer(self) -> Recommendation:
        """Return the recommendation. Raises AccelBenchError where the request has no answer."""
        chosen, left_out = self._candidates()
        by_device = {
            device: rank([one for one in chosen if one.device == device], self.tokens)
            for device in dict.fromkeys(one.device for one in chosen)
        }
        ranks = [one for one in by_device.values() if one.best]
        offers = {
            id(one): measured_offer(one.best, self.request, self.tokens, self.prices)
            for one in ranks
            if one.best
        }
        estimates = list(self._estimates({one.device.name for r in ranks if (one := r.best)}))
        estimated = [(one, estimated_offer(one, self.request)) for one in estimates]
        all_offers = [*offers.values(), *(offer for _, offer in estimated)]
        taken = choose(all_offers, self.request)
        ranked = next((one for one in ranks if offers[id(one)] is taken), None)
        found = next((one for one, offer in estimated if offer is taken), None)
        refused = [one for one in by_device.values() if not one.best]
        document = self._document(taken, ranked or next(iter(ranks or refused), None), chosen)
        next_runs = tuple(self._next_runs(taken, ranked, found or next(iter(estimates), None)))
        return document.model_copy(
            update={
                "offers": tuple(sorted(all_offers, key=price_key)),
                "left_out": tuple(left_out),
                "next_runs": next_runs,
            }
        )

    @property
    def lengths(self) -> LengthSummary | None:
        """What the lengths of the request say."""
        found = self.request.lengths
        return summarize_lengths(list(found)) if found else None

    @property
    def tokens(self) -> float | None:
        """Real tokens of the job: those of all samples where none are given."""
        if self.request.tokens is not None or self.request.lengths is None:
            return self.request.tokens
        longest = summarize_lengths(list(self.request.lengths)).sequence_length
        return float(sum(min(length, longest) for length in self.request.lengths))

    def _candidates(self) -> tuple[list[Candidate], list[str]]:
        """Return the candidates of one training and one length, and what was left out."""
        left_out = list(imported_rows(self.stored.results))
        found = collect_candidates(self.stored.results, self.stored.baselines)
        found, others = _of_gpu(found, self.request.gpu)
        left_out += others
        found, others = _of_length(found, self.lengths)
        left_out += others
        found, others = _of_newest_training(found)
        return found, left_out + others

    def _estimates(self, measured: set[str]) -> Iterator[DeviceEstimate]:
        """Yield estimates of devices that have no stored runs which could be recommended."""
        if self.estimator is None:
            return
        for hardware in self._to_estimate(measured):
            yield self.estimator.estimate(hardware)

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
        self, taken: Offer | None, ranked: Ranked | None, candidates: Sequence[Candidate]
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
            shown["answer"] = self._nothing(ranked)
        elif taken.kind == "estimated":
            shown |= {"answer": _estimated_answer(taken), "certainty": "estimated"}
        elif ranked and ranked.best:
            best = ranked.best
            shown |= {
                "answer": answer_of(ranked, tokens) + _limits_words(taken, hours=False),
                "certainty": "measured" if ranked.sure else "open",
                "recommended": considered(best, tokens),
                "kept": kept_settings(best),
            }
        return blank.model_copy(update=shown)

    def _nothing(self, ranked: Ranked | None) -> str:
        request = self.request
        limits = request.budget_usd is not None or request.deadline_hours is not None
        if limits and ranked and ranked.best:
            return (
                "Cannot: nothing that is stored or estimated does the job within the limits; "
                "the offers say what each device would take."
            )
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
            if more := more_rounds(ranked, self.stored.sessions, hourly):
                yield more
        elif found and self.estimator and not found.estimate.problem:
            changed = {**dict(self.estimator.request.overrides), **found.settings}
            words = [self.request.scenario, *assignments(changed)]
            target, cost = (_hardware(found), found.plan), found.estimate.cost
            yield first_run(self.estimator, target, words, self.stored.store, cost)


def baseline_of(session: SessionRecord) -> str:
    """Return the stack with which a session's others are compared."""
    file = session.document.get("scenario")
    file = file if isinstance(file, dict) else {}
    stacks = file.get("stacks")
    names = list(stacks) if isinstance(stacks, dict) else []
    named = file.get("baseline")
    if isinstance(named, str) and named:
        return named
    return "baseline" if "baseline" in names or not names else names[0]


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


def _of_gpu(found: list[Candidate], gpu: str | None) -> tuple[list[Candidate], list[str]]:
    """Return the candidates of a device; rows of others are never carried over to it."""
    if gpu is None:
        return found, []
    name = named_hardware(gpu).name
    own = [one for one in found if one.device.name == name]
    others = dict.fromkeys(one.device.label for one in found if one.device.name != name)
    return own, [f"rows of {label}: another device than {name}" for label in others]


def _of_length(
    found: list[Candidate], lengths: LengthSummary | None
) -> tuple[list[Candidate], list[str]]:
    """Return the candidates of the shortest stored length that holds 95 % of the samples."""
    if lengths is None:
        return found, []

    def length(one: Candidate) -> int:
        return one.experiment.scenario.data.sequence_length

    enough = [length(one) for one in found if length(one) >= lengths.percentile_95]
    taken = min(enough, default=None)
    others = sorted({length(one) for one in found} - {taken})
    notes = [
        f"rows of {other:,} tokens: the job needs {lengths.percentile_95:,}" for other in others
    ]
    return [one for one in found if length(one) == taken], notes


def _of_newest_training(found: list[Candidate]) -> tuple[list[Candidate], list[str]]:
    """Return the candidates of the training whose usable baseline ran last."""
    bases = [one for one in found if one.is_baseline and one.runs.usable] or found
    if not bases:
        return [], []
    newest = max(bases, key=last_start)
    kept = [one for one in found if one.training == newest.training]
    others = {one.training: one for one in found if one.training != newest.training}
    notes = [
        f"rows of {one.experiment.scenario.name} ({settings(kept_settings(one))}): another "
        "training than the newest; --where chooses"
        for one in others.values()
    ]
    return kept, notes


def _device(ranked: Ranked) -> object:
    one = ranked.best or next(iter(ranked.refused))
    return one.device


def _hardware(found: DeviceEstimate) -> NamedHardware | None:
    with suppress(AccelBenchError):
        return named_hardware(found.estimate.gpu)
    return None


def _estimated_answer(offer: Offer) -> str:
    """Return an answer that rests on a simulation."""
    text = f"Nothing of this was measured on {offer.device}, all is estimated: {offer.fit}"
    if offer.settings:
        text += f" It fits with {settings(offer.settings)}."
    if offer.tokens_per_second:
        low, high = offer.tokens_per_second.low, offer.tokens_per_second.high
        text += f" It trains at {rate(low)} to {rate(high)} tokens/s."
    text += _limits_words(offer)
    return f"{text} Which stack is fastest there cannot be told without measuring."


def _limits_words(offer: Offer, hours: bool = True) -> str:
    """Return hours, money and whether the limits are kept, as a sentence; empty without any."""
    parts = []
    if offer.hours and hours:
        parts.append(f"{offer.hours.low:.3g} to {offer.hours.high:.3g} hours")
    if offer.usd:
        parts.append(f"{offer.usd.low:,.2f} to {offer.usd.high:,.2f} USD ({offer.price})")
    for what, answer in (("budget", offer.within_budget), ("deadline", offer.within_deadline)):
        if answer is not None:
            kept = {"yes": "kept", "perhaps": "perhaps kept", "no": "not kept"}[answer]
            parts.append(f"the {what} is {kept}")
    return f" It takes {', '.join(parts)}." if parts else ""
