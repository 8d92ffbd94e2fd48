"""Comparison of the tokens that a stack and the baseline generated for the same requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accel_bench.analysis.checks.agreement import BLOCK, Agreement, agreement
from accel_bench.analysis.checks.allowance import Allowance, allowance
from accel_bench.analysis.checks.declared import in_letters
from accel_bench.analysis.checks.verdict_rules import Pair, explanation, limit_of
from accel_bench.analysis.statistics.verdict import Training
from accel_bench.analysis.wording import count, percent, training_word
from accel_bench.documents.base import Frozen
from accel_bench.result import Result

LETTERS = (
    "texts without token ids are compared letter by letter, and none may differ; a server that "
    "knows return_token_ids tells them (engine.extra)"
)
"""Explanation of the zero tolerance for texts that are compared letter by letter."""


class OutputComparison(Frozen):
    """Comparison of a stack's generated output with the baseline's, or of B's with A's."""

    output_verdict: Training = "not tested"
    """Verdict on the generated output."""

    output_difference: float | None = None
    """Share of differing tokens among those whose earlier tokens all agree, in the worst round;
    0.01 is 1 %.

    If a block of eight positions surely differs more, its lower bound counts.
    """

    output_tolerance: float | None = None
    """Tolerated share of differing tokens; null if nothing was compared."""

    output_tolerance_by: tuple[str, ...] = ()
    """Plugins that declare the tolerance and that only one side uses; empty for the usual one."""

    output_excused: bool = False
    """True if only a plugin's declaration excuses a difference above the usual tolerance."""

    output_requests: int | None = None
    """Number of compared requests in all rounds; null if nothing was compared."""

    output_reason: str = ""
    """Reason for a verdict other than `bitwise equal`."""

    @property
    def output_word(self) -> str:
        """Verdict on the output in words for people, `same` for equal tokens."""
        if self.output_verdict == "bitwise equal":
            return "same"
        return training_word(self.output_verdict, self.output_tolerance_by)


def compare_outputs(pairs: Sequence[Pair]) -> OutputComparison:
    """Compare the answers of at least one pair of runs, and return the worst comparison."""
    asked = {key for before, after in pairs for key in _other_requests(before, after)}
    if asked:
        reason = f"other requests were answered: {', '.join(sorted(asked))} differs"
        return OutputComparison(output_reason=reason)
    agreements = [agreement(before, after) for before, after in pairs]
    known = [agreed for agreed in agreements if agreed is not None and agreed.requests]
    if len(known) < len(agreements):
        return OutputComparison(output_reason="one of the two has kept no answers")
    if any(in_letters([before]) != in_letters([after]) for before, after in pairs):
        reason = "one of the two has token ids, the other one text alone"
        return OutputComparison(output_reason=reason)
    if not all(agreed.compared for agreed in known):
        return OutputComparison(output_reason="no token was generated")
    pair = next((pair for pair in pairs if in_letters(pair)), pairs[0])
    allowed = allowance("output", pair)
    worst = max(known, key=lambda agreed: (_count_unexplained(agreed, pair), agreed.difference))
    output = _judged(worst, sum(agreed.requests for agreed in known), allowed, pair)
    trusts = output.output_verdict == "equivalent" and not allowed.plugins
    more = {"output_reason": output.output_reason + _unknown_near_ties(known)} if trusts else {}
    return output.model_copy(update=more)


def _judged(worst: Agreement, requests: int, allowed: Allowance, pair: Pair) -> OutputComparison:
    """Return the comparison of two stacks' answers with its verdict, by `worst`, the most different
    round. `requests` is the number of compared requests in all rounds."""
    output = OutputComparison(
        output_verdict="bitwise equal",
        output_difference=worst.difference,
        output_tolerance=allowed.tolerance,
        output_tolerance_by=allowed.plugins,
        output_requests=requests,
    )
    if not worst.differing:
        return output
    if drawn := explanation("explained output", worst.difference, pair):
        return output.model_copy(update={"output_verdict": "not tested", "output_reason": drawn})
    wrong = _count_unexplained(worst, pair)
    verdict: Training = "different" if wrong else allowed.verdict(worst.difference)
    reason = (
        f"{worst.differing:,} of {count(worst.requests, 'request')} have another answer: "
        f"{_difference_words(worst)}, {allowed.words}"
    )
    if wrong:
        reason += f"; in {wrong:,} of them rounding does not explain the first other token"
    if in_letters(pair):
        reason += f"; {LETTERS}"
    excused = not wrong and allowed.excuses(worst.difference)
    if verdict == "different by design" and not excused:
        reason += f"; {allowed.by_design}"
    judged = {"output_verdict": verdict, "output_excused": excused, "output_reason": reason}
    return output.model_copy(update=judged)


def _count_unexplained(agreed: Agreement, pair: Pair) -> int:
    allowed = limit_of("wrong requests", pair)
    return agreed.unexplained if agreed.unexplained > allowed else 0


def _unknown_near_ties(rounds: Sequence[Agreement]) -> str:
    """Return a text on how many different answers have unknown near ties; empty if none has."""
    untold = sum(agreed.untold for agreed in rounds)
    if not untold:
        return ""
    known, requests = (
        sum(getattr(agreed, name) for agreed in rounds) for name in ("known", "requests")
    )
    return (
        f"; near ties are known of {known:,} of {count(requests, 'request')}: whether rounding "
        f"explains the other answers to {untold:,} of the rest cannot be told"
    )


def _difference_words(worst: Agreement) -> str:
    """Return the share of differing tokens as text, in all answers or in the worst block."""
    block = worst.worst
    if block is None or worst.overall >= block.surely:
        return f"{percent(worst.overall)} of the tokens differ where all before are equal"
    share = block.differing / block.compared
    return (
        f"{percent(share)} of the tokens from {block.first} to {block.first + BLOCK - 1} differ "
        f"where all before are equal, {percent(block.surely)} at least"
    )


def _other_requests(before: Result, after: Result) -> Iterator[str]:
    """Yield the settings, or `the first prompt`, in which two runs' requests differ."""
    works = (before.experiment.scenario, after.experiment.scenario)
    for key in ("prompt_tokens", "new_tokens", "decoding"):
        ours, theirs = (getattr(work.inference, key) for work in works)
        if ours != theirs:
            yield f"inference.{key}"
    asked = [
        [rank.answers.first_prompt for rank in run.ranks if rank.answers] for run in (before, after)
    ]
    if any(ours and theirs and ours != theirs for ours, theirs in zip(*asked, strict=False)):
        yield "the first prompt"
