"""Offers: devices that could do a job, with its hours and dollars and verdicts on the limits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.statistics.verdict import Finding
from accel_bench.analysis.wording import rate, settings
from accel_bench.catalog.hardware import NamedHardware, list_hardware
from accel_bench_advise.estimates.estimator import DeviceEstimate
from accel_bench_advise.estimates.schema import Bounds
from accel_bench_advise.estimates.target import hourly_cost
from accel_bench_advise.price_table import PriceEntry
from accel_bench_advise.recommendation.candidates import Candidate
from accel_bench_advise.recommendation.ranking import job_time
from accel_bench_advise.recommendation.schema import Offer, RecommendRequest

NO_PRICE = "no price of {device} is known (`accel-bench catalog prices` takes your own)"
UNLISTED = (
    "no price of {device} is known: it is no device of `accel-bench catalog devices`, which prices "
    "are of; --deadline limits hours instead"
)


def measured_offer(
    best: Candidate,
    request: RecommendRequest,
    tokens: float | None,
    prices: Sequence[PriceEntry],
) -> Offer:
    """Return the offer of a device with the hours and dollars of its best stack.

    `tokens` is the size of the job; None leaves hours and dollars out.
    """
    row = list_hardware().get(best.device.name)
    hardware = NamedHardware(best.device.name, row) if row else None
    hourly, price = hourly_cost(best.experiment.scenario, hardware, prices) or (None, "")
    time = job_time(best, tokens) if tokens else None
    hours = _span(time).times(1 / 3600) if time else None
    speed = best.row.tokens_per_second
    offer = Offer(
        kind="measured",
        device=best.device.label,
        devices=best.device.devices,
        stack=best.name,
        tokens_per_second=_span(speed) if speed else None,
        request_seconds=_span(best.row.request_seconds) if best.row.request_seconds else None,
        hours=hours,
        usd=hours.times(hourly) if hours and hourly else None,
        usd_per_hour=hourly,
        price=price,
        fit="it ran",
    )
    sure = time is not None and time.high is not None
    return _with_limits(offer, request, sure, NO_PRICE if hardware else UNLISTED)


def estimated_offer(found: DeviceEstimate, request: RecommendRequest) -> Offer:
    """Return the offer of a device with the hours and dollars of an estimate."""
    estimate = found.estimate
    lacks = estimate.memory is not None and estimate.memory.fit == "does not hold"
    problem = estimate.problem or (estimate.answer if lacks else "")
    if not problem and estimate.speed is None:
        problem = "its speed cannot be estimated: no peak of the model's dtype is known"
    offer = Offer(
        kind="estimated",
        device=estimate.gpu,
        devices=estimate.devices,
        stack=estimate.stack,
        settings=found.settings,
        tokens_per_second=estimate.speed.tokens_per_second if estimate.speed else None,
        hours=estimate.hours,
        usd=estimate.cost.usd if estimate.cost else None,
        usd_per_hour=estimate.cost.usd_per_hour if estimate.cost else None,
        price=estimate.cost.price if estimate.cost else "",
        fit=estimate.answer,
        problem=problem,
    )
    return _with_limits(offer, request)


def choose(offers: Sequence[Offer], request: RecommendRequest) -> Offer | None:
    """Return the offer to recommend: the cheapest within limits, the fastest without limits.

    Of a span, the worse end counts. Without limits, measured offers are preferred. An offer that
    may keep the limits is returned if none surely keeps them. None if no offer remains.
    """
    possible = [offer for offer in offers if not offer.problem]
    if request.budget_usd is None and request.deadline_hours is None:
        measured = [offer for offer in possible if offer.kind == "measured"]
        return min(measured or possible, key=_duration, default=None)
    # An answer to a limit is None without the limit, and where the offer cannot be held to it.
    limits = {"within_budget": request.budget_usd, "within_deadline": request.deadline_hours}
    given = [key for key, limit in limits.items() if limit is not None]
    for allowed in ({"holds"}, {"holds", "inconclusive"}):
        kept = [offer for offer in possible if {getattr(offer, key) for key in given} <= allowed]
        if kept:
            return min(kept, key=price_key)
    return None


def price_key(offer: Offer) -> tuple[float, float]:
    """Return the sort key of an offer: upper end of dollars, then of hours."""
    return (
        offer.usd.high if offer.usd else math.inf,
        offer.hours.high if offer.hours else math.inf,
    )


def _with_limits(
    offer: Offer, request: RecommendRequest, sure: bool = True, no_price: str = NO_PRICE
) -> Offer:
    """Return a copy of the offer that says whether it keeps the budget and the deadline.

    `sure` is false for the time of a single run, which has no interval. `no_price` is the text of
    the problem if a budget is given and no price is known.
    """
    changes: dict[str, object] = {
        "within_budget": _within(offer.usd, request.budget_usd, sure),
        "within_deadline": _within(offer.hours, request.deadline_hours, sure),
    }
    if request.budget_usd is not None and offer.usd is None and not offer.problem:
        changes["problem"] = no_price.format(device=offer.device)
    return offer.model_copy(update=changes)


def _within(span: Bounds | None, limit: float | None, sure: bool) -> Finding | None:
    verdict = span.within(limit) if span else None
    return "inconclusive" if verdict == "holds" and not sure else verdict


def _duration(offer: Offer) -> float:
    """Return the upper end of an offer's latency, else of the job's hours, else of time per
    token."""
    if offer.request_seconds is not None:
        return offer.request_seconds.high
    if offer.hours is not None:
        return offer.hours.high
    return 1 / offer.tokens_per_second.low if offer.tokens_per_second else math.inf


def _span(interval: Interval) -> Bounds:
    """Return the ends of an interval; unknown ends are replaced by the median."""
    ends = [interval.median if end is None else end for end in (interval.low, interval.high)]
    return Bounds(low=ends[0], high=ends[1])


def estimated_answer(offer: Offer) -> str:
    """Return the recommendation of an estimated offer in sentences."""
    text = f"Nothing of this was measured on {offer.device}, all is estimated: {offer.fit}"
    if offer.settings:
        text += f" It fits with {settings(offer.settings)}."
    if offer.tokens_per_second:
        text += f" It trains at {offer.tokens_per_second.text(rate)} tokens/s."
    text += limits_words(offer)
    return f"{text} Which stack is fastest there cannot be told without measuring."


def nothing_within(offers: Sequence[Offer], request: RecommendRequest) -> str:
    """Return a sentence that says why no offer keeps the limits: too slow, too dear or no price."""
    unpriced = [
        offer.problem
        for offer in offers
        if lacks_price(offer, request) and offer.within_deadline != "does not hold"
    ]
    if unpriced:
        return f"It is open whether the budget is kept: {'; '.join(unpriced)}."
    return (
        "Cannot: nothing that is stored or estimated does the job within the limits; the offers "
        "say what each device would take."
    )


def lacks_price(offer: Offer, request: RecommendRequest) -> bool:
    """Return whether an offer has no price to compare with the budget."""
    return request.budget_usd is not None and offer.hours is not None and offer.usd is None


def limits_words(offer: Offer, hours: bool = True) -> str:
    """Return sentences on the offer: its hours, its dollars, and whether it keeps the limits.

    Each follows a space. If `hours` is false, the hours are left out. Empty if nothing is known.
    """
    takes = []
    if offer.hours and hours:
        takes.append(f"{offer.hours.text('{:.3g}'.format)} hours")
    if offer.usd:
        takes.append(f"{offer.usd.text('{:,.2f}'.format)} USD ({offer.price})")
    words = f" The job takes {' and '.join(takes)}." if takes else ""
    limits = {"budget": offer.within_budget, "deadline": offer.within_deadline}
    said = {"holds": "is kept", "inconclusive": "may be kept", "does not hold": "is not kept"}
    kept = [f"{what} {said[verdict]}" for what, verdict in limits.items() if verdict]
    return f"{words} The {' and the '.join(kept)}." if kept else words
