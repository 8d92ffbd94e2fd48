"""Latencies of requests, and their metrics, which are computed in the same way for all engines."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from accel_bench.machine.clock import perf_counter_ns
from accel_bench.result import Metric

PERCENTILES = (50, 90, 99)
"""Percentiles reported for every latency."""

SATURATED = 0.98
"""Utilization of a server, as a fraction of time, from which it counts as saturated."""


def now() -> float:
    """Return the current time by the host's clock, in seconds."""
    return perf_counter_ns() / 1e9


@dataclass
class Served:
    """Counts and times of a batch of answered requests; all times are seconds on one clock."""

    requests: int
    """Number of requests."""

    prompt_tokens: int
    """Number of tokens in the prompts, without padding."""

    started: float
    """Time at which the work on the requests began."""

    arrivals: Sequence[float] = ()
    """Arrival time of each request; empty if work on each begins at its arrival."""

    waited: float = 0.0
    """Idle seconds before the batch, without a request to work on."""

    tokens: list[tuple[float, int]] = field(default_factory=list)
    """Times at which tokens reached the host, each with the number of tokens per request."""

    @property
    def ended(self) -> float:
        """Time at which the last token reached the host."""
        return self.tokens[-1][0]

    @property
    def new_tokens(self) -> int:
        """Number of generated tokens of all requests."""
        return self.requests * sum(count for _, count in self.tokens)

    @property
    def first_token_seconds(self) -> list[float]:
        """Seconds from each request's arrival to its first token."""
        return [self.tokens[0][0] - arrival for arrival in self._arrivals()]

    @property
    def request_seconds(self) -> list[float]:
        """Seconds from each request's arrival to its last token."""
        return [self.ended - arrival for arrival in self._arrivals()]

    @property
    def queue_seconds(self) -> list[float]:
        """Seconds that each request waited before the work on it began."""
        return [self.started - arrival for arrival in self._arrivals()]

    @property
    def inter_token_seconds(self) -> list[float]:
        """Seconds between successive tokens of each request, in one list for all requests.

        Tokens that reach the host together share one interval. The first tokens have none.
        """
        gaps: list[float] = []
        for (before, _), (after, count) in itertools.pairwise(self.tokens):
            gaps += [(after - before) / count] * (count * self.requests)
        return gaps

    def _arrivals(self) -> Sequence[float]:
        return self.arrivals or [self.started] * self.requests


class Arrivals:
    """Arrival times of requests by a Poisson process, which does not wait for answers."""

    def __init__(self, rate: float, seed: int) -> None:
        self._random = random.Random(seed)
        self._rate = rate
        self._next = self._gap()

    def until_next(self, instant: float) -> float:
        """Return the seconds from `instant` to the next arrival; 0 if a request waits already."""
        return max(0.0, self._next - instant)

    def take(self, instant: float, most: int) -> list[float]:
        """Remove and return up to `most` arrival times that are not after `instant`."""
        arrivals: list[float] = []
        while len(arrivals) < most and self._next <= instant:
            arrivals.append(self._next)
            self._next += self._gap()
        return arrivals

    def _gap(self) -> float:
        return self._random.expovariate(self._rate)


@dataclass(frozen=True)
class Load:
    """Rates and utilization of a server whose requests arrive at a given rate."""

    offered: float
    """Arriving requests per second."""

    achieved: float
    """Answered requests per second."""

    busy: float | None
    """Utilization of the server as a fraction of time; None if only the server knows it."""

    saturated: bool
    """True if requests arrive faster than the server answers, so that they pile up."""

    @property
    def text(self) -> str:
        """Description of the load, in a line."""
        rates = f"{self.achieved:.3g} of {self.offered:.3g} requests/s answered"
        work = "" if self.busy is None else f", at work {self.busy:.0%} of the time"
        return f"saturated: {rates}{work}: the queue grows" if self.saturated else f"{rates}{work}"


def load_of(served: Sequence[Served], offered: float) -> Load:
    """Return the load of a server that answered these batches; `offered` is in requests/s.

    The benchmark's own time between batches counts neither as work nor as waiting.
    """
    working = sum(batch.ended - batch.started for batch in served)
    whole = working + sum(batch.waited for batch in served[1:])
    answered = sum(batch.requests for batch in served)
    busy = working / whole
    return Load(offered, answered / whole, busy, busy >= SATURATED)


KEEPS_UP = 0.9
"""Least fraction of the arriving requests that a server answers if it is not saturated."""


def load_of_streams(served: Sequence[Served], offered: float) -> Load:
    """Return the load of a server that answers requests concurrently; `offered` is in requests/s.

    The server is saturated if later requests have longer latencies. The medians of the first and of
    the last third of the requests are compared.
    """
    requests = sorted((batch.arrivals[0], batch.ended) for batch in served)
    ends = sorted(ended for _, ended in requests)
    span = ends[-1] - ends[0]
    if not span:
        return Load(offered, 1 / max(ends[0] - requests[0][0], 1e-9), None, False)
    achieved = (len(ends) - 1) / span
    third = max(1, len(requests) // 3)
    (arrived, first), (arrived_last, last) = _middles(requests[:third]), _middles(requests[-third:])
    between, longer = arrived_last - arrived, last - first
    return Load(offered, achieved, None, longer > (1 / KEEPS_UP - 1) * between)


def _middles(requests: Sequence[tuple[float, float]]) -> tuple[float, float]:
    latencies = [ended - arrival for arrival, ended in requests]
    return statistics.median(arrival for arrival, _ in requests), statistics.median(latencies)


def spread_evenly(parts: Sequence[tuple[float, int]], tokens: int) -> list[tuple[float, int]]:
    """Return the parts (arrival time, token count) of a stream, with `tokens` spread evenly over
    them. There must be at least as many tokens as parts."""
    count = len(parts)
    ends = [-(-number * tokens // count) for number in range(count + 1)]
    shares = [after - before for before, after in itertools.pairwise(ends)]
    return [(instant, share) for (instant, _), share in zip(parts, shares, strict=True)]


def latency_metrics(
    served: Sequence[Served], load: Load | None, seconds: float
) -> Iterator[Metric]:
    """Yield metrics of latencies and rates of the requests that were answered in `seconds`.

    `load` is None if requests do not arrive at a rate, but each follows the last answer.
    """
    if not served:
        return
    tokens = [interval for batch in served for interval in batch.inter_token_seconds]
    yield from _percentiles("time_to_first_token", _all(served, "first_token_seconds"))
    yield from _percentiles("inter_token_latency", tokens)
    yield from _percentiles("request_latency", _all(served, "request_seconds"))
    requests = sum(batch.requests for batch in served)
    prefill = covered_seconds([(batch.started, batch.tokens[0][0]) for batch in served])
    prompts = sum(batch.prompt_tokens for batch in served)
    yield _rate("prefill_tokens_per_second", prompts / prefill if prefill else None, "tokens/s")
    yield _rate("decode_tokens_per_second", _decode(served), "tokens/s")
    yield _count("measured_requests", requests)
    yield _count("measured_inter_token_latencies", len(tokens))
    if load is None:
        yield _rate("requests_per_second", requests / seconds, "requests/s")
        return
    yield from _percentiles("queueing", _all(served, "queue_seconds"))
    yield _rate("requests_per_second", load.achieved, "requests/s", load.text)
    if load.busy is not None:
        yield Metric(name="busy", value=load.busy, unit="1", scope="rank", better="lower")


def _decode(served: Sequence[Served]) -> float | None:
    """Return tokens per second, without the first of each request; None if all came at once."""
    seconds = covered_seconds([(batch.tokens[0][0], batch.ended) for batch in served])
    tokens = sum(batch.new_tokens - batch.requests * batch.tokens[0][1] for batch in served)
    return tokens / seconds if seconds else None


def covered_seconds(intervals: Sequence[tuple[float, float]]) -> float:
    """Return the seconds covered by intervals; overlapping intervals count once."""
    seconds, until = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        seconds += max(0.0, end - max(begin, until))
        until = max(until, end)
    return seconds


def _all(served: Sequence[Served], name: str) -> list[float]:
    return [value for batch in served for value in getattr(batch, name)]


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the `percent`-th percentile of values, interpolated linearly between sorted ones."""
    if len(values) < 2:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _percentiles(name: str, seconds: Sequence[float]) -> Iterator[Metric]:
    for percent in PERCENTILES:
        value = 1000 * percentile(seconds, percent) if seconds else None
        yield Metric(
            name=f"{name}_p{percent}", value=value, unit="ms", scope="rank", better="lower"
        )


def _rate(name: str, value: float | None, unit: str, reason: str = "") -> Metric:
    return Metric(name=name, value=value, unit=unit, scope="rank", better="higher", reason=reason)


def _count(name: str, value: int) -> Metric:
    return Metric(name=name, value=value, unit="1", scope="rank")
