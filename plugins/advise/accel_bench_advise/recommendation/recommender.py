"""Recommender of a stack and a device for a model: from stored runs, else from estimates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from accel_bench.analysis.device_kinds import DeviceKind
from accel_bench.analysis.wording import count, settings
from accel_bench.catalog.hardware import NamedHardware, list_hardware, named_hardware
from accel_bench.errors import AccelBenchError, ScenarioError
from accel_bench.result import Result
from accel_bench_advise.estimates.estimator import DeviceEstimate, Estimator
from accel_bench_advise.estimates.lengths import summarize_lengths
from accel_bench_advise.estimates.schema import LengthSummary
from accel_bench_advise.estimates.target import is_price_of
from accel_bench_advise.price_table import PriceEntry
from accel_bench_advise.recommendation.advice import advice
from accel_bench_advise.recommendation.candidate_rows import (
    answer_of,
    candidate_row,
    kept_settings,
    others_of,
)
from accel_bench_advise.recommendation.candidates import Candidate, Stored, collect_candidates
from accel_bench_advise.recommendation.next_runs import first_run, more_rounds
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
from accel_bench_advise.recommendation.ranking import Ranked, break_evens, last_start, rank
from accel_bench_advise.recommendation.schema import (
    AS_FAST,
    LeftOut,
    NextRun,
    Offer,
    OtherCandidate,
    Recommendation,
    RecommendRequest,
)

Narrowed: TypeAlias = tuple[list[Candidate], list[LeftOut]]
"""Candidates that are evidence for a request, and descriptions of excluded rows."""

NO_JOB = LeftOut(
    rows="the stored requests",
    reason="they arrive at a rate (inference.rate), by which a job of tokens has no hours; leave "
    "--tokens, --lengths, --budget and --deadline out, or choose others with --where",
)
"""Excluded rows of requests at a rate, which give no hours for a job of tokens."""


@dataclass(frozen=True)
class Recommender:
    """Recommender that answers one request, from stored runs, estimates and prices."""

    request: RecommendRequest
    stored: Stored
    prices: Sequence[PriceEntry]

    estimator: Estimator | None
    """Estimator for devices without stored runs; None to use stored runs alone."""

    def answer(self) -> Recommendation:
        """Return the recommendation of a stack and a device.

        Raises AccelBenchError if the scenario cannot be planned for the only device to estimate.
        """
        ranks, left_out = self.ranked()
        measured = [
            (ranking, measured_offer(ranking.best, self.request, self.tokens, self.prices))
            for ranking in ranks
            if ranking.best
        ]
        estimates = self._estimates({ranking.device.name for ranking, _ in measured}, left_out)
        estimated = [(estimate, estimated_offer(estimate, self.request)) for estimate in estimates]
        offers = [own for _, own in measured] + [own for _, own in estimated]
        chosen = choose(offers, self.request)
        ranked = next((ranking for ranking, own in measured if own is chosen), None)
        estimate = next((estimate for estimate, own in estimated if own is chosen), None)
        nearest = estimate or next((estimate for estimate, _ in estimated), None)
        there = [
            ranking for ranking in ranks if chosen is None or ranking.device.name == chosen.device
        ]
        shown = ranked or min(there, key=lambda ranking: ranking.best is None, default=None)
        next_runs = self._next_runs(chosen, ranked, nearest)
        return Recommendation(
            request=self.request,
            offer=chosen,
            offers=tuple(sorted(offers, key=price_key)),
            lengths=self.lengths,
            tokens=self.tokens,
            left_out=tuple(left_out),
            next_runs=tuple(next_runs),
            **self._answer_fields(chosen, shown, offers),
        )

    def ranked(self) -> tuple[list[Ranked], list[LeftOut]]:
        """Return the ranking of stacks on each device, and the rows that are no evidence."""
        left_out = list(_imported(self.stored.results))
        candidates = collect_candidates(self.stored.results, self.stored.baselines)
        for narrowed in (self._of_gpu, self._of_length, self._of_job, self._of_newest_training):
            candidates, others = narrowed(candidates)
            left_out += others
        by_device: dict[DeviceKind, list[Candidate]] = {}
        for candidate in candidates:
            by_device.setdefault(candidate.device, []).append(candidate)
        limits = self.request.at_most
        return [rank(own, self.tokens, limits) for own in by_device.values()], left_out

    @property
    def lengths(self) -> LengthSummary | None:
        """Summary of the request's sample lengths; None without lengths."""
        return lengths_of(self.request)

    @property
    def tokens(self) -> float | None:
        """Real tokens of the job, by default the sum of the truncated lengths; None if unknown."""
        lengths = self.lengths
        if self.request.tokens is not None or lengths is None:
            return self.request.tokens
        longest = lengths.sequence_length
        return float(sum(min(length, longest) for length in self.request.lengths or ()))

    def _of_gpu(self, found: list[Candidate]) -> Narrowed:
        """Return the candidates on the requested device, and a description of the others."""
        if self.request.gpu is None:
            return found, []
        name = named_hardware(self.request.gpu).name
        own = [candidate for candidate in found if candidate.device.name == name]
        others = dict.fromkeys(
            candidate.device.label for candidate in found if candidate.device.name != name
        )
        reason = f"another device than {name}"
        return own, [LeftOut(rows=f"rows of {label}", reason=reason) for label in others]

    def _of_length(self, found: list[Candidate]) -> Narrowed:
        """Return the candidates of the shortest sequence length that holds 95 % of the samples.

        The second list describes the other candidates.
        """
        if self.lengths is None:
            return found, []
        needed = self.lengths.percentile_95
        every = {candidate.experiment.scenario.data.sequence_length for candidate in found}
        shortest = min((length for length in every if length >= needed), default=None)
        return [
            candidate
            for candidate in found
            if candidate.experiment.scenario.data.sequence_length == shortest
        ], [
            LeftOut(rows=f"rows of {other:,} tokens", reason=f"the job needs {needed:,}")
            for other in sorted(every - {shortest})
        ]

    def _of_job(self, found: list[Candidate]) -> Narrowed:
        """Return the candidates whose runs tell a job's hours, and a description of the others."""
        kept = [
            candidate for candidate in found if self.tokens is None or candidate.runs.rate is None
        ]
        return kept, [NO_JOB] if len(kept) < len(found) else []

    def _of_newest_training(self, found: list[Candidate]) -> Narrowed:
        """Return the candidates of the newest training, and a description of the others.

        A training with several usable candidates comes before any with only one.
        """
        bases = [
            candidate for candidate in found if candidate.is_baseline and candidate.runs.usable
        ] or found
        if not bases:
            return [], []
        usable = Counter(candidate.training for candidate in found if candidate.runs.usable)
        newest = max(
            bases, key=lambda candidate: (usable[candidate.training] > 1, last_start(candidate))
        )
        kept = [candidate for candidate in found if candidate.training == newest.training]
        others = {other.training: other for other in found if other.training != newest.training}
        notes = [
            LeftOut(
                rows=f"rows of {other.experiment.scenario.name} ({settings(kept_settings(other))})",
                reason="another training than the newest; --where chooses",
            )
            for other in others.values()
        ]
        return kept, notes

    def _estimates(self, measured: set[str], left_out: list[LeftOut]) -> Iterator[DeviceEstimate]:
        """Yield estimates for the considered devices that have no usable stored stack.

        `measured` are devices with such a stack. Devices for which the scenario cannot be planned
        are added to `left_out`.
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
                left_out.append(LeftOut(rows=hardware.name, reason=str(error)))

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

    def _answer_fields(
        self, chosen: Offer | None, ranked: Ranked | None, offers: Sequence[Offer]
    ) -> dict[str, Any]:
        """Return, by name, the fields of `Recommendation` that hold the answer and the stacks.

        `chosen` is the recommended device; without one, the best rejected stack is described.
        `ranked` is the ranking of stacks to show, if any, and `offers` are the offers of all
        devices.
        """
        best = ranked.best if ranked else None
        others = others_of(ranked, self.tokens) if ranked else ()
        fields: dict[str, Any] = {"certainty": "not tested", "others": others}
        if ranked:
            fields |= {
                "runner_up": next(
                    (other for other in others if other.outcome == "runner-up"), None
                ),
                "break_even": tuple(break_evens(ranked, self.tokens)),
                "advice": tuple(advice(ranked, self.lengths)),
            }
        if chosen is None:
            fields["answer"] = self._nothing(ranked, offers)
            if best:
                fields["others"] = (self._rejected_best(best, offers), *others)
        elif chosen.kind == "estimated":
            fields |= {"answer": estimated_answer(chosen), "certainty": "estimated"}
        elif ranked and best:
            fields |= {
                "answer": answer_of(ranked, self.tokens) + limits_words(chosen, hours=False),
                "certainty": ranked.certainty,
                "recommended": candidate_row(best, self.tokens),
                "kept": kept_settings(best),
            }
        return fields

    def _rejected_best(self, best: Candidate, offers: Sequence[Offer]) -> OtherCandidate:
        """Return the best stack, which is rejected: it exceeds a limit or has no known price."""
        (own,) = [
            offer
            for offer in offers
            if offer.kind == "measured" and offer.device == best.device.label
        ]
        unpriced = lacks_price(own, self.request) and own.within_deadline != "does not hold"
        return OtherCandidate(
            outcome="best, price not known" if unpriced else "best, over the limits",
            why=own.problem or limits_words(own).strip(),
            of_the_best=AS_FAST,
            row=candidate_row(best, self.tokens),
        )

    def _nothing(self, ranked: Ranked | None, offers: Sequence[Offer]) -> str:
        request = self.request
        limits = request.budget_usd is not None or request.deadline_hours is not None
        if limits and ranked and ranked.best:
            return nothing_within(offers, request)
        if ranked is not None:
            return (
                "Not tested: of what is stored nothing may be recommended; the reasons stand "
                "with each row."
            )
        return f"Not tested: nothing that is stored of {request.model} answers this."

    def _next_runs(
        self, chosen: Offer | None, ranked: Ranked | None, found: DeviceEstimate | None
    ) -> Iterator[NextRun]:
        """Yield commands that would measure the missing evidence.

        They add rounds to the stacks of `ranked`, the chosen ranking, or else measure the estimated
        experiment `found`.
        """
        if ranked:
            hourly = chosen.usd_per_hour if chosen else None
            if more := more_rounds(ranked, self.tokens, self.stored, hourly):
                yield more
        elif found and not found.estimate.problem:
            yield first_run(found, self.request.scenario)


def lengths_of(request: RecommendRequest) -> LengthSummary | None:
    """Return the summary of a request's sample lengths; None without lengths."""
    return summarize_lengths(request.lengths) if request.lengths else None


def check_request(request: RecommendRequest) -> None:
    """Raise ScenarioError for an unknown device, or a budget or deadline without the job's size."""
    for key, option in (("budget_usd", "--budget"), ("deadline_hours", "--deadline")):
        if getattr(request, key) is not None and not (request.tokens or request.lengths):
            raise ScenarioError(
                f"{option} needs the size of the job: --tokens 1.2e9, or --lengths for one pass "
                "over your samples"
            )
    if request.gpu is not None:
        named_hardware(request.gpu)


def _imported(results: Sequence[Result]) -> Iterator[LeftOut]:
    """Yield an excluded row for each file of runs that another program measured."""
    for file, runs in Counter(run.provenance.file for run in results if run.imported).items():
        yield LeftOut(rows=f"{count(runs, 'run')} of {file}", reason="imported, not measured here")
