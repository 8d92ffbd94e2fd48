"""Did a stack train what its baseline trained? Tensors, weights, FLOPs, dropout and rates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isclose

from accel_bench.analysis.wording import percent
from accel_bench.effective import EffectiveConfiguration, plain_name
from accel_bench.flops.formulas import forward_flops, model_flops
from accel_bench.flops.workload import Workload
from accel_bench.result import RankResult, Result
from accel_bench.scenario.models import Scenario

ONE_EXPERT = re.compile(r"\.experts\.\d+\.")
"""In the name of a tensor of one expert: rounding may send it other tokens."""

FLOPS_TOLERANCE = 0.01
"""Relative difference of FLOPs for a token that is none: a kernel may pad its matrices. Of weights
it is none either, where the same tensors train: a vocabulary may be padded."""

RATE_TOLERANCE = 1e-5
"""Relative difference of two learning rates that is none: six digits of them are stored."""


def trained_differences(baseline: Result, stack: Result) -> tuple[str, ...]:
    """Return how what a stack trains is not what its baseline trains, each a sentence's end.

    Empty where both train the same, and where the stacks declare it: by options of the adapter, or
    settings of the model. What one of the two has not stored is not compared.
    """
    if not (baseline.ranks and stack.ranks):
        return ()
    before, after = baseline.ranks[0], stack.ranks[0]
    works = baseline.experiment.scenario, stack.experiment.scenario
    found = [*_rates(works, before.effective, after.effective)]
    if not explained(baseline, stack):
        length = works[0].data.sequence_length
        found += [
            *_weights(before.effective, after.effective),
            *_flops(before, after, length),
            *_dropout(before.effective, after.effective),
        ]
    return tuple(found)


def trained_tensors(effective: EffectiveConfiguration) -> set[str]:
    """Return the names of tensors that trained in the first step, wrappers left out."""
    flow = effective.gradient_flow
    return {plain_name(name) for name in flow.gradient_norms} if flow else set()


def restructured(baseline: Result, stack: Result) -> bool:
    """Return whether both train the same number of weights, under whatever names."""
    counts = [
        sum(weights for rank in run.ranks[:1] for weights in rank.effective.trained_dtypes.values())
        for run in (baseline, stack)
    ]
    return counts[0] == counts[1]


def explained(baseline: Result, stack: Result) -> bool:
    """Return whether options of the adapter, or settings of the model, declare other training."""
    works = (baseline.experiment.scenario, stack.experiment.scenario)
    declared = [
        (one.adapter, one.model.id, one.model.overrides, one.model.revision) for one in works
    ]
    return declared[0] != declared[1]


def _weights(before: EffectiveConfiguration, after: EffectiveConfiguration) -> Iterator[str]:
    weights = [sum(one.trained_dtypes.values()) for one in (before, after)]
    if not all(weights) or weights[0] == weights[1]:
        return
    tensors, theirs = trained_tensors(after), trained_tensors(before)
    if tensors and tensors == theirs and isclose(*weights, rel_tol=FLOPS_TOLERANCE):
        return
    if tensors and tensors <= theirs:
        share = f"{percent(weights[1] / weights[0])} of its weights"
        yield f"trains {len(tensors)} of the baseline's {len(theirs)} tensors, {share}"
    else:
        yield f"trains {weights[1]:,} weights, the baseline {weights[0]:,}"


def _flops(before: RankResult, after: RankResult, length: int) -> Iterator[str]:
    """Compare forward products and those of weights' gradients.

    Gradients of inputs are left out: checkpointing may ask for those of the first layer.
    """
    if before.workload is None or after.workload is None:
        return
    old, new = map(_products, (before.workload, after.workload))
    if not isclose(old, new, rel_tol=FLOPS_TOLERANCE):
        flops = [model_flops(one, length).causal for one in (after.workload, before.workload)]
        yield "{:.2g} FLOP a token, the baseline's {:.2g}".format(*flops)


def _products(workload: Workload) -> float:
    return sum(forward_flops(matmul) * (1 + matmul.trains) for matmul in workload.matmuls)


def _dropout(before: EffectiveConfiguration, after: EffectiveConfiguration) -> Iterator[str]:
    # A row of an earlier version has not stored it.
    stored = before.optimizer_progress and after.optimizer_progress
    if stored and set(before.dropout) != set(after.dropout):
        now, then = (", ".join(one.dropout) or "0" for one in (after, before))
        yield f"dropout {now}, the baseline's {then}"


def _rates(
    works: tuple[Scenario, Scenario], before: EffectiveConfiguration, after: EffectiveConfiguration
) -> Iterator[str]:
    """Compare the learning rates in force, where the scenario gives both the same one."""
    if before.optimizer_progress is None or after.optimizer_progress is None:
        return
    old, new = before.optimizer_progress.learning_rates, after.optimizer_progress.learning_rates
    same = works[0].train.learning_rate == works[1].train.learning_rate
    if same and old and new and not _same_rates(old, new):
        yield f"learning rate {', '.join(new)} in force, the baseline's {', '.join(old)}"


def _same_rates(old: Mapping[str, int], new: Mapping[str, int]) -> bool:
    pairs = zip(sorted(map(float, old)), sorted(map(float, new)), strict=False)
    return len(old) == len(new) and all(isclose(*pair, rel_tol=RATE_TOLERANCE) for pair in pairs)
