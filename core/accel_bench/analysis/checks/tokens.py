"""Does a step of a stack hold as many tokens as the baseline's? Speeds are made of these counts."""

from __future__ import annotations

from collections import Counter
from typing import Any

from accel_bench.analysis.checks.allowance import SAME_TRAINING
from accel_bench.analysis.statistics.verdict import PRACTICAL_FLOOR
from accel_bench.result import Result

TOKEN_TOLERANCE = PRACTICAL_FLOOR
"""Relative difference of counts that is allowed: alone it is not worth a verdict on the speed."""

KINDS = {"real_tokens": "real", "supervised_tokens": "supervised"}
"""Counts of a sample that must be the baseline's, with their names."""


def token_differences(baseline: Result, stack: Result) -> tuple[str, ...]:
    """Return a sentence for each count in which a stack's steps are not the baseline's.

    Runs of one round take the same samples in the same steps, however they are laid out. Compared
    are the steps that both took, over all ranks; nothing is where the two declare other data or
    another global batch.
    """
    if _batch(baseline) != _batch(stack):
        return ()
    sentences = []
    for kind, name in KINDS.items():
        before, after = _by_step(baseline, kind), _by_step(stack, kind)
        steps = sorted(set(before) & set(after))
        theirs, ours = (sum(counts[step] for step in steps) for counts in (before, after))
        if steps and abs(ours - theirs) > TOKEN_TOLERANCE * theirs:
            our_mean, their_mean = (f"{total / len(steps):,.6g}" for total in (ours, theirs))
            sentences.append(
                f"a step holds {ours / theirs:.3g} times the baseline's {name} tokens "
                f"({our_mean} against {their_mean})"
                if theirs
                else f"a step holds {our_mean} {name} tokens, the baseline's none"
            )
    return tuple(sentences)


def _by_step(run: Result, kind: str) -> Counter[int]:
    """Return a count of all batches by step number, warm-up and discarded windows included."""
    counts: Counter[int] = Counter()
    for rank in run.data_ranks:
        if rank.window is not None:
            window = rank.window
            for sample in (*window.warmup, *window.discarded, *window.samples):
                counts[sample.step] += getattr(sample, kind)
    return counts


def _batch(run: Result) -> dict[str, Any]:
    """Return what a scenario says about the samples of a step, and not how they are laid out."""
    scenario = run.experiment.scenario
    data = scenario.data.model_dump(mode="json")
    settings = {key: value for key, value in data.items() if f"data.{key}" not in SAME_TRAINING}
    return {**settings, "global_batch_size": scenario.train.global_batch_size}
