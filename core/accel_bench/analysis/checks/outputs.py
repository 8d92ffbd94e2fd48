"""Did a stack generate the same text? Its tokens against the baseline's, request by request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

from accel_bench.analysis.checks.allowance import Allowance, Limits, allowance
from accel_bench.analysis.statistics.verdict import RoundKey
from accel_bench.analysis.wording import count, percent
from accel_bench.documents.base import Frozen
from accel_bench.result import Answers, Result

OutputWord: TypeAlias = Literal[
    "same", "equivalent", "different", "different by design", "not tested"
]
"""Verdicts on what was generated; `same` is token for token."""

EXACT = 0.0
"""Share of tokens that may differ where both decode greedily in float32."""

HALF_TOLERANCE = 0.05
"""The same where either computes in 16 bits, in which two tokens are often equally likely."""

MAXIMUM_TOLERANCE = 0.2
"""Largest share of other tokens that a declared tolerance makes equivalent."""

DRAWN = "sampling drew other tokens, and which of them differ by more than the draw is not known"
"""Why nothing is said of other tokens where they were drawn."""

NO_ANSWERS = "one of the two has kept no answers"
"""Why nothing is compared."""


def _usual(baseline: Result, stack: Result) -> float:
    works = (baseline.experiment.scenario, stack.experiment.scenario)
    exact = all(work.compute_dtype == "float32" for work in works)
    return EXACT if exact else HALF_TOLERANCE


LIMITS = Limits(lambda run: run.output_tolerances, _usual, MAXIMUM_TOLERANCE, trusts_distance=True)
"""What is allowed for the share of other tokens."""


class OutputComparison(Frozen):
    """What a stack generated against what the baseline did, or B against A."""

    output_verdict: OutputWord = "not tested"
    """Whether it is the same text."""

    output_difference: float | None = None
    """Share of other tokens among those before which all tokens are equal, of the worst round: a
    model is not blamed for what follows from another token. 0.01 is 1 %."""

    output_tolerance: float | None = None
    """Share that is allowed; null where nothing was compared."""

    output_tolerance_by: tuple[str, ...] = ()
    """Plugins that declare it, of those that one side alone uses; empty where none does."""

    output_requests: int | None = None
    """Requests that were compared, of all rounds; null where nothing was."""

    output_reason: str = ""
    """Why the verdict is not `same`."""


class Agreement(NamedTuple):
    """How two runs agree in their answers to the same requests."""

    requests: int
    """Requests that both answered."""

    differing: int
    """Requests with another answer."""

    compared: int
    """Tokens before which all tokens of the request are equal."""

    @property
    def difference(self) -> float:
        """Share of them that differ."""
        return self.differing / self.compared if self.compared else 0.0


def compare_outputs(
    baseline: Mapping[RoundKey, Result], stack: Mapping[RoundKey, Result]
) -> OutputComparison:
    """Compare the answers of completed runs with the same key; the worst round counts."""
    keys = [
        key
        for key in sorted(set(baseline) & set(stack))
        if baseline[key].status.completed and stack[key].status.completed
    ]
    if not keys:
        return OutputComparison(output_reason="no round in which both completed")
    pairs = [(baseline[key], stack[key]) for key in keys]
    asked = {key for before, after in pairs for key in _other_requests(before, after)}
    if asked:
        reason = f"other requests were answered: {', '.join(sorted(asked))} differs"
        return OutputComparison(output_reason=reason)
    found = [agreement(before, after) for before, after in pairs]
    known = [one for one in found if one is not None and one.requests]
    if len(known) < len(found):
        return OutputComparison(output_reason=NO_ANSWERS)
    allowed = allowance(*pairs[0], LIMITS)
    worst = max(known, key=lambda one: one.difference)
    sampled = pairs[0][0].experiment.scenario.inference.decoding == "sampling"
    return _judged(worst, sum(one.requests for one in known), allowed, sampled)


def _judged(worst: Agreement, requests: int, allowed: Allowance, sampled: bool) -> OutputComparison:
    """Return the verdict on the worst round."""
    found = OutputComparison(
        output_verdict="same",
        output_difference=worst.difference,
        output_tolerance=allowed.tolerance,
        output_tolerance_by=allowed.plugins,
        output_requests=requests,
    )
    if not worst.differing:
        return found
    if sampled:
        return found.model_copy(update={"output_verdict": "not tested", "output_reason": DRAWN})
    verdict: OutputWord = allowed.verdict(worst.difference)
    reason = (
        f"{worst.differing:,} of {count(worst.requests, 'request')} have another answer: "
        f"{percent(worst.difference)} of the tokens differ where all before are equal, "
        f"{allowed.words}"
    )
    if verdict == "different by design":
        reason += f"; {allowed.by_design}"
    return found.model_copy(update={"output_verdict": verdict, "output_reason": reason})


def agreement(baseline: Result, stack: Result) -> Agreement | None:
    """Return how all ranks of two runs agree; None where one has kept no answers."""
    if not baseline.ranks or len(baseline.ranks) != len(stack.ranks):
        return None
    parts = []
    for before, after in zip(baseline.ranks, stack.ranks, strict=True):
        if before.answers is None or after.answers is None:
            return None
        parts.append(_agreement(before.answers, after.answers))
    return Agreement(*(sum(figures) for figures in zip(*parts, strict=True)))


def _agreement(before: Answers, after: Answers) -> Agreement:
    """Compare the answers that both have, by token ids or by digests."""
    tokens = list(zip(before.tokens, after.tokens, strict=False))
    differing = sum(one != other for one, other in tokens)
    compared = sum(_compared(one, other) for one, other in tokens)
    digests = list(_digests(before, after))
    different = sum(one != other for one, other in digests)
    # Where only digests were kept, an answer that differs counts as one token that does.
    return Agreement(
        len(tokens) + len(digests), differing + different, compared + max(different, len(digests))
    )


def _compared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return the tokens up to the first that differs, and itself."""
    for number, (first, second) in enumerate(zip(one, other, strict=False), 1):
        if first != second:
            return number
    return min(len(one), len(other)) + (len(one) != len(other))


def _digests(before: Answers, after: Answers) -> Iterator[tuple[str, str]]:
    """Yield the pairs of digests of requests of which neither run has the ids."""
    first = max(len(before.tokens), len(after.tokens))
    ours, theirs = (one.digests[max(0, first - len(one.tokens)) :] for one in (before, after))
    yield from zip(ours, theirs, strict=False)


def _other_requests(before: Result, after: Result) -> Iterator[str]:
    """Yield settings by which two runs answer other requests."""
    works = (before.experiment.scenario, after.experiment.scenario)
    for key in ("prompt_tokens", "new_tokens", "decoding"):
        ours, theirs = (getattr(work.inference, key) for work in works)
        if ours != theirs:
            yield f"inference.{key}"
