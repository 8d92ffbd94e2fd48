"""Did a stack train what its baseline trained? Tensors, weights, FLOPs, dropout, optimizer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isclose

from accel_bench.analysis.checks.allowance import plugins_of_one_side
from accel_bench.analysis.wording import join_names, percent
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
    if not _declare_optimizer(baseline, stack):
        found += optimizer_differences(baseline, stack)
    if not explained(baseline, stack):
        length = works[0].data.sequence_length
        found += [
            *_weights(before.effective, after.effective),
            *_flops(before, after, length),
            *_dropout(before.effective, after.effective),
        ]
    return tuple(found)


def optimizer_by_design(baseline: Result, stack: Result) -> str:
    """Return how the optimizer differs, and which plugin of one side declares it; else nothing."""
    names = _declare_optimizer(baseline, stack)
    found = list(optimizer_differences(baseline, stack)) if names else []
    return f"{'; '.join(found)}, as {join_names(names)} declares" if found else ""


def optimizer_differences(baseline: Result, stack: Result) -> Iterator[str]:
    """Yield how the numbers of the optimizers in force, and the dtypes of their states, differ.

    What only one of them has is not compared, nor what the two scenarios ask for differently.
    """
    ranks = [run.ranks[0].effective for run in (baseline, stack) if run.ranks]
    progress = [one.optimizer_progress for one in ranks if one.optimizer_progress]
    slots = [run.experiment.scenario.optimizer for run in (baseline, stack)]
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


def _declare_optimizer(baseline: Result, stack: Result) -> list[str]:
    """Return the plugins of one side alone that declare another optimizer."""
    pairs = ((baseline, stack), (stack, baseline))
    return [
        name
        for run, other in pairs
        for name in run.other_optimizers
        if name in plugins_of_one_side(run, other)
    ]


def _same_numbers(old: Mapping[str, int], new: Mapping[str, int]) -> bool:
    """Return whether tensors have the same numbers; of as many tensors, as many have each."""
    alike = sum(old.values()) == sum(new.values())
    return old == new if alike else old.keys() == new.keys()


def _by_tensors(values: Mapping[str, int]) -> str:
    """Return `0.01`, or `0.01 (20 tensors) and 0 (4)` where not all tensors have the same."""
    if len(values) == 1:
        return next(iter(values))
    return " and ".join(f"{value} ({tensors} tensors)" for value, tensors in values.items())


def _smaller_dtypes(old: Mapping[str, int], new: Mapping[str, int]) -> list[str]:
    """Return dtypes of fewer bits than any of the baseline's."""
    least = min(map(_bits, old), default=0)
    return [dtype for dtype in new if _bits(dtype) < least]


def _bits(dtype: str) -> int:
    """Return the bits of a dtype by its name, such as `bfloat16` or `float8_e4m3fn`."""
    found = re.search(r"\d+", dtype)
    return int(found[0]) if found else 8


def _same_rates(old: Mapping[str, int], new: Mapping[str, int]) -> bool:
    pairs = zip(sorted(map(float, old)), sorted(map(float, new)), strict=False)
    return len(old) == len(new) and all(isclose(*pair, rel_tol=RATE_TOLERANCE) for pair in pairs)
