"""Comparison of what a stack and its baseline train: weights, FLOPs, dropout, optimizer, tokens."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from math import isclose
from typing import Any

from accel_bench.analysis.checks.declared import SAME_TRAINING, other_optimizers
from accel_bench.analysis.checks.verdict_rules import Pair, gradient_norms, limit_of
from accel_bench.analysis.wording import join_names, percent
from accel_bench.flops.formulas import forward_flops, model_flops
from accel_bench.flops.workload import Workload
from accel_bench.result import Result

TOKEN_KINDS = {"real_tokens": "real", "supervised_tokens": "supervised"}
"""Token counts of a step that must equal the baseline's, with their names in messages."""

RATE_TOLERANCE = 1e-5
"""Relative difference up to which two learning rates are equal, since six digits are stored."""


def trained_differences(baseline: Result, stack: Result) -> tuple[str, ...]:
    """Return undeclared differences between a stack's training and its baseline's, in words.

    Differences that the stacks declare, by options of the adapter or settings of the model, are
    left out. Figures that one of the two runs did not store are left out too.
    """
    if not (baseline.ranks and stack.ranks):
        return ()
    pair = baseline, stack
    groups = {
        "optimizer": [*optimizer_differences(pair)],
        "what trains": [*_weights(pair), *_flops(pair), *_dropout(pair)],
    }
    beyond = (clauses for of, clauses in groups.items() if len(clauses) > limit_of(of, pair))
    return (*_rates(pair), *chain.from_iterable(beyond))


def optimizer_by_design(baseline: Result, stack: Result) -> str:
    """Return a text on declared differences of optimizers, with the plugins; empty without any."""
    names = other_optimizers(baseline, stack)
    clauses = list(optimizer_differences((baseline, stack))) if names else []
    return f"{'; '.join(clauses)}, as {join_names(names)} declares" if clauses else ""


def optimizer_differences(pair: Pair) -> Iterator[str]:
    """Yield differences of two optimizers' hyperparameters and state dtypes, in words.

    Values that only one optimizer has, or that the scenarios set differently, are left out.
    """
    ranks = [run.ranks[0].effective for run in pair if run.ranks]
    progress = [rank.optimizer_progress for rank in ranks if rank.optimizer_progress]
    slots = [run.experiment.scenario.optimizer for run in pair]
    if len(progress) < len(slots) or slots[0].use != slots[1].use:
        return
    old, new = ({**p.hyperparameters, "weight_decay": p.weight_decays} for p in progress)
    for name in (name for name in old if new.get(name) and old[name]):
        asked = [slot.options.get(name) for slot in slots]
        if asked[0] == asked[1] and not _same_numbers(old[name], new[name]):
            now, then = _by_tensors(new[name]), _by_tensors(old[name])
            yield f"its optimizer has {name} {now}, the baseline's {then}"
    smaller = _smaller_dtypes(progress[0].state_dtypes, progress[1].state_dtypes)
    if lower := [dtype for dtype in smaller if dtype not in ranks[1].trained_dtypes]:
        kept = " and ".join(progress[0].state_dtypes)
        yield f"its optimizer keeps its state in {' and '.join(lower)}, the baseline's in {kept}"


def token_differences(baseline: Result, stack: Result) -> tuple[str, ...]:
    """Return a sentence for each token count that differs, over all common steps or in one step.

    Runs of one round take the same samples in each step, unless other data or batches are declared.
    """
    if _batch(baseline) != _batch(stack):
        return ()
    allowed = limit_of("tokens", (baseline, stack))
    sentences = []
    for kind, name in TOKEN_KINDS.items():
        before, after = _by_step(baseline, kind), _by_step(stack, kind)
        apart = {i: abs(after[i] - n) / max(n, 1) for i, n in before.items() if i in after}
        steps = sorted(apart, key=apart.__getitem__)
        for some in (steps, steps[-1:]):
            theirs, ours = (sum(counts[step] for step in some) for counts in (before, after))
            if abs(ours - theirs) > allowed * theirs:
                means = [f"{total / len(some):,.6g}" for total in (ours, theirs)]
                sentences.append(
                    f"a step holds {ours / theirs:.3g} times the baseline's {name} tokens "
                    f"({' against '.join(means)})"
                    if theirs
                    else f"a step holds {means[0]} {name} tokens, the baseline's none"
                )
                break
    return tuple(sentences)


def _weights(pair: Pair) -> Iterator[str]:
    before, after = (run.ranks[0].effective for run in pair)
    weights = [sum(side.trained_dtypes.values()) for side in (before, after)]
    if not all(weights) or isclose(*weights, rel_tol=limit_of("weights", pair)):
        return
    theirs, tensors = (gradient_norms(run).keys() for run in pair)
    if tensors and tensors <= theirs:
        share = f"{percent(weights[1] / weights[0])} of its weights"
        yield f"trains {len(tensors)} of the baseline's {len(theirs)} tensors, {share}"
    else:
        yield f"trains {weights[1]:,} weights, the baseline {weights[0]:,}"


def _flops(pair: Pair) -> Iterator[str]:
    """Yield both runs' FLOPs per token, as text, if forward plus weight-gradient FLOPs differ.

    FLOPs of input gradients are left out, since checkpointing may add them for the first layer.
    """
    before, after = (run.ranks[0].workload for run in pair)
    if before is None or after is None:
        return
    old, new = map(_products, (before, after))
    if not isclose(old, new, rel_tol=limit_of("FLOPs", pair)):
        length = pair[0].experiment.scenario.data.sequence_length
        flops = [model_flops(workload, length).causal for workload in (after, before)]
        yield "{:.2g} FLOP a token, the baseline's {:.2g}".format(*flops)


def _products(workload: Workload) -> float:
    return sum(forward_flops(matmul) * (1 + matmul.trains) for matmul in workload.matmuls)


def _dropout(pair: Pair) -> Iterator[str]:
    before, after = (run.ranks[0].effective for run in pair)
    # A row of an earlier version has not stored it.
    stored = before.optimizer_progress and after.optimizer_progress
    if stored and set(before.dropout) != set(after.dropout):
        now, then = (", ".join(side.dropout) or "0" for side in (after, before))
        yield f"dropout {now}, the baseline's {then}"


def _rates(pair: Pair) -> Iterator[str]:
    """Yield both runs' learning rates, as text, if they differ and the scenarios' rates agree."""
    before, after = (run.ranks[0].effective.optimizer_progress for run in pair)
    asked = {run.experiment.scenario.train.learning_rate for run in pair}
    if before is None or after is None:
        return
    old, new = before.learning_rates, after.learning_rates
    if len(asked) == 1 and old and new and not _same_rates(old, new):
        yield f"learning rate {', '.join(new)} in force, the baseline's {', '.join(old)}"


def _same_numbers(old: Mapping[str, int], new: Mapping[str, int]) -> bool:
    alike = sum(old.values()) == sum(new.values())
    return old == new if alike else old.keys() == new.keys()


def _by_tensors(values: Mapping[str, int]) -> str:
    """Return values in words: `0.01`, or `0.01 (20 tensors) and 0 (4 tensors)`. `values` maps each
    value, as text, to its number of tensors."""
    if len(values) == 1:
        return next(iter(values))
    return " and ".join(f"{value} ({tensors} tensors)" for value, tensors in values.items())


def _smaller_dtypes(old: Mapping[str, int], new: Mapping[str, int]) -> list[str]:
    least = min(map(_bits, old), default=0)
    return [dtype for dtype in new if _bits(dtype) < least]


def _bits(dtype: str) -> int:
    match = re.search(r"\d+", dtype)
    return int(match[0]) if match else 8


def _same_rates(old: Mapping[str, int], new: Mapping[str, int]) -> bool:
    pairs = zip(sorted(map(float, old)), sorted(map(float, new)), strict=False)
    return len(old) == len(new) and all(isclose(*pair, rel_tol=RATE_TOLERANCE) for pair in pairs)


def _by_step(run: Result, kind: str) -> Counter[int]:
    """Return the number of tokens of a `kind` in TOKEN_KINDS by step, over all ranks, with warm-up
    and discarded windows."""
    counts: Counter[int] = Counter()
    for rank in run.data_ranks:
        if rank.window is not None:
            for sample in rank.window.all_steps:
                counts[sample.step] += getattr(sample, kind)
    return counts


def _batch(run: Result) -> dict[str, Any]:
    """Return the settings that decide which samples a step holds; padding is left out."""
    scenario = run.experiment.scenario
    data = scenario.data.model_dump(mode="json")
    settings = {key: value for key, value in data.items() if f"data.{key}" not in SAME_TRAINING}
    return {**settings, "global_batch_size": scenario.train.global_batch_size}
