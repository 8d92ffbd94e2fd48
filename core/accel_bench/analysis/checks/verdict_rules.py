"""Rules of verdicts on a training: distances allowed, explained or refused between two runs.

docs/verdicts.md has the same table, with the evidence for each rule.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple, TypeAlias

from accel_bench.analysis.checks.declared import (
    declared_tolerances,
    in_letters,
    other_optimizers,
    other_training,
)
from accel_bench.analysis.checks.distance import exact_differences
from accel_bench.analysis.statistics.verdict import PRACTICAL_FLOOR
from accel_bench.effective import DROPOUT, plain_name
from accel_bench.result import Result

Pair: TypeAlias = tuple[Result, Result]
"""Runs of the baseline and of a stack in the same round."""

HALF = frozenset({"bfloat16", "float16"})

ROUNDING = 5e-3
"""Largest declared tolerance of the loss at which a plugin counts as rounding only."""


def _always(pair: Pair) -> bool:
    return True


def _in_other_dtypes(pair: Pair) -> bool:
    works = [run.experiment.scenario for run in pair]
    return len({(work.model.dtype, work.train.precision) for work in works}) > 1


def _in_16_bits(pair: Pair) -> bool:
    return pair[0].experiment.scenario.compute_dtype != "float32"


def _rounds(pair: Pair) -> bool:
    """Return whether at least one run computes, or stores trained weights, in 16 bits."""
    ranks = [rank for run in pair for rank in run.ranks[:1]]
    stored = any(HALF & set(rank.effective.trained_dtypes) for rank in ranks)
    return stored or any(run.experiment.scenario.compute_dtype in HALF for run in pair)


def _is_coarse(pair: Pair) -> bool:
    return any(run.experiment.scenario.train.matmul_precision != "highest" for run in pair)


def _decodes_otherwise(pair: Pair) -> bool:
    """Return whether rounding, or the timing of batches, can change a generated token."""
    works = [run.experiment.scenario for run in pair]
    return any(work.compute_dtype != "float32" or work.inference.rate is not None for work in works)


def _declares_no_output(pair: Pair) -> bool:
    return not declared_tolerances("output", *pair)


def _samples(pair: Pair) -> str:
    sampled = pair[0].experiment.scenario.inference.decoding == "sampling"
    drew = "sampling drew other tokens, and which of them differ by more than the draw is not known"
    return drew if sampled else ""


def _draws(pair: Pair) -> str:
    """Return a text that random draws explain a difference; empty if one run draws nothing.

    Both runs draw from one seed, but kernels, batches and paddings change the order of the draws.
    """
    drawn = [run.ranks[0].effective.drawn for run in pair if run.ranks]
    if len(drawn) < len(pair) or not all(drawn):
        return ""
    adapter = pair[1].experiment.scenario.adapter.options
    where = "--set adapter.dropout=0" if adapter.get("dropout") else "model.overrides"
    without = f"; without it ({where}) it can be told" if drawn[-1] == DROPOUT else ""
    return f"{drawn[-1]} drawn in another order does that{without}"


def left_out_share(pair: Pair) -> float:
    """Return the relative difference of two runs' numbers of optimizer steps, since gradient
    scalers skip some. A run is invalid if it skips more steps than the scaler's scale explains."""
    steps = _scaled_steps(pair)
    return abs(steps[1] - steps[0]) / max(*steps, 1) if steps else 0.0


def _scaled_steps(pair: Pair) -> list[int]:
    """Return two runs' numbers of optimizer steps; empty unless both use a gradient scaler."""
    counts = [
        progress.counted_steps
        for run in pair
        if run.experiment.scenario.train.precision == "fp16-autocast"
        and (progress := run.ranks[0].effective.optimizer_progress)
        and progress.counted_steps is not None
    ]
    return counts if len(counts) == len(pair) else []


def _leaves_out_steps(pair: Pair) -> str:
    if not left_out_share(pair):
        return ""
    counts = "{1} steps in the place of {0}".format(*_scaled_steps(pair))
    return f"gradient scalers that left out other steps do that ({counts} were taken)"


def _has_parts(pair: Pair) -> bool:
    """Return whether the rules for parts of a mixture of experts apply: a run has experts, and the
    two runs declare neither other settings of the training nor a large tolerance."""
    mixture = any(rank.effective.experts for run in pair for rank in run.ranks[:1])
    declared = max(declared_tolerances("update", *pair).values(), default=0.0)
    excused = declared <= limit_of("declared update", pair)
    return mixture and excused and not other_training(*pair)


def _by_sketches(pair: Pair) -> bool:
    return exact_differences(*pair) is None


def _draws_in_parts(pair: Pair) -> bool:
    return _has_parts(pair) and bool(_draws(pair))


def _is_undeclared(pair: Pair) -> bool:
    return _has_parts(pair) and not declared_tolerances("update", *pair)


def _rounds_scores(pair: Pair) -> str:
    words = (
        "rounded scores that send tokens to other experts do that; in float32 without autocast it "
        "can be told"
    )
    return words if _is_undeclared(pair) and _rounds(pair) else ""


def _is_other_work(pair: Pair) -> bool:
    works = [run.experiment.scenario for run in pair]
    batches = {
        (work.train.global_batch_size, work.data.sequence_length, work.world_size) for work in works
    }
    return bool(other_training(*pair)) or len(batches) > 1


def _approximates(pair: Pair) -> bool:
    return max(declared_tolerances("loss", *pair).values(), default=0.0) > ROUNDING


def computes_exactly(pair: Pair) -> bool:
    """Return whether two runs are known to do the same work in float32 without random draws."""
    declared = _is_other_work(pair) or declared_tolerances("loss", *pair)
    return not declared and all(map(_is_exact, pair))


def _is_exact(run: Result) -> bool:
    if not run.ranks or run.experiment.scenario.compute_dtype != "float32":
        return False
    effective = run.ranks[0].effective
    stored = effective.optimizer_progress is not None and not effective.drawn
    return stored and effective.float32_matmul_precision in (None, "highest")


def _declares_model(pair: Pair) -> bool:
    """Return whether the adapter or model settings of two runs differ, and so what they train."""
    works = [run.experiment.scenario for run in pair]
    before, after = (
        (work.adapter, work.model.id, work.model.overrides, work.model.revision) for work in works
    )
    return before != after


def _declares_optimizer(pair: Pair) -> bool:
    return bool(other_optimizers(*pair))


def _trains_as_many(pair: Pair) -> bool:
    ranks = [run.ranks[:1] for run in pair]
    before, after = (sum(sum(rank.effective.trained_dtypes.values()) for rank in r) for r in ranks)
    return before == after


def _trains_same_tensors(pair: Pair) -> bool:
    before, after = map(gradient_norms, pair)
    return bool(after) and before.keys() == after.keys()


def gradient_norms(run: Result) -> dict[str, float | None]:
    """Return the gradient norms of rank 0 in its first step, by tensor; empty if not read."""
    flow = run.ranks[0].effective.gradient_flow if run.ranks else None
    return {plain_name(name): norm for name, norm in flow.gradient_norms.items()} if flow else {}


class Rule(NamedTuple):
    """Limit of one figure of two runs, with the condition under which it holds."""

    figure: str
    case: str
    """Name of the condition, in a word or two."""

    holds: Callable[[Pair], bool | str]
    """Condition on the two runs; for an explanation it returns the text, or an empty one."""

    limit: float
    why: str


RULES = (
    # Allowed, unless a plugin declares a tolerance. The first rule of a figure that holds counts.
    Rule("loss", "other dtypes", _in_other_dtypes, 2e-2, "one of the two rounds more"),
    Rule("loss", "16 bits", _in_16_bits, 5e-3, "sums in another order are rounded otherwise"),
    Rule("loss", "float32", _always, 1e-3, "sums in another order differ in their last digits"),
    Rule("update", "16 bits", _rounds, 0.2, "changes of weights are rounded"),
    Rule("update", "coarse products", _is_coarse, 0.1, "inputs are rounded to tf32 or bfloat16"),
    Rule("update", "float32", _always, 0.01, "differences of last digits grow by training"),
    Rule("output", "letters", in_letters, 0.0, "a text alone does not show near ties"),
    Rule("output", "16 bits or timing", _decodes_otherwise, 0.05, "near ties may turn round"),
    Rule("output", "float32", _always, 0.0, "the same batches are decoded greedily"),
    # Excused where a plugin declares more than is allowed.
    Rule("declared loss", "always", _always, 2e-2, "bases in 4 bits, the coarsest, need as much"),
    Rule("declared update", "always", _always, 0.3, "bases in 4 bits need as much"),
    Rule("declared output", "always", _always, 0.2, "beyond it the text is another one"),
    # Explained although it is more, so that the verdict stays open.
    Rule("explained loss", "random draws", _draws, 2e-2, "other draws move it by less"),
    Rule("explained size", "random draws", _draws, 0.1, "other draws turn an update, no more"),
    Rule("explained size a step", "scalers", _leaves_out_steps, 0.0, "fewer steps change less"),
    Rule("explained mixture", "16 bits", _rounds_scores, 0.4, "rounding chooses other experts"),
    Rule("explained output", "sampling", _samples, inf, "each run draws its own tokens"),
    # Refused although it is less.
    Rule("size of experts", "random draws", _draws_in_parts, 0.14, "draws move experts more"),
    Rule("size of experts", "mixture", _has_parts, 0.03, "rounding turns a change, no more"),
    Rule("size of routers", "random draws", _draws_in_parts, 0.5, "draws move routers most"),
    Rule("size of routers", "mixture", _has_parts, 0.15, "rounding turns a change, no more"),
    Rule("size of a mixture", "sketches", _by_sketches, 0.03, "rounding turns a change, no more"),
    Rule("rest of a mixture", "undeclared", _is_undeclared, 0.0, "tokens go through it as before"),
    Rule("standard errors", "sketches", _always, 3.0, "sketches estimate a size"),
    Rule("wrong requests", "undeclared", _declares_no_output, 0, "rounding decides near ties only"),
    # Compared beside the three: the first step's gradients, and what trains.
    Rule("gradient norms", "other work", _is_other_work, 5.0, "batches have other gradients"),
    Rule("gradient norms", "approximations", _approximates, 3.0, "more than rounding is declared"),
    Rule("gradient norms", "float32", computes_exactly, 1.02, "equal work has equal norms"),
    Rule("gradient norms", "rounding", _always, 1.5, "the two round, or draw, otherwise"),
    Rule("norms of an expert", "float32", computes_exactly, 1.02, "equal work has equal norms"),
    Rule("norms of an expert", "rounding", _always, 5.0, "its few tokens may go elsewhere"),
    Rule("what trains", "declared", _declares_model, inf, "the scenario trains otherwise"),
    Rule("what trains", "undeclared", _always, 0, "nothing else may train"),
    Rule("tensors of one side", "declared", _declares_model, inf, "the scenario trains otherwise"),
    Rule("tensors of one side", "as many weights", _trains_as_many, inf, "they have other names"),
    Rule("tensors of one side", "other weights", _always, 0, "nothing else may train"),
    Rule("optimizer", "declared", _declares_optimizer, inf, "a plugin has another by design"),
    Rule("optimizer", "undeclared", _always, 0, "its numbers and dtypes decide on the update"),
    Rule("weights", "same tensors", _trains_same_tensors, 0.01, "a vocabulary may be padded"),
    Rule("weights", "other tensors", _always, 0.0, "something else trains"),
    Rule("FLOPs", "always", _always, 0.01, "a kernel may pad its matrices"),
    Rule("tokens", "always", _always, PRACTICAL_FLOOR, "so few make no stack faster"),
)
"""All limits on figures of two runs: relative differences, but factors for norms.

The first rule of a figure whose condition holds decides. A task's sensitivities multiply the
tolerances that plugins declare, before a run (`plugins/active.py`).
"""


def limit_of(figure: str, pair: Pair) -> float:
    """Return the limit of `figure`, a name in RULES, for two runs; infinite if no rule holds."""
    return next((rule.limit for rule in _rules(figure) if rule.holds(pair)), inf)


def explanation(figure: str, value: float, pair: Pair) -> str:
    """Return a rule's text that explains the `value` of a figure in two runs; empty without one."""
    near = (rule for rule in _rules(figure) if value <= rule.limit)
    return next((str(words) for rule in near if (words := rule.holds(pair))), "")


def _rules(figure: str) -> list[Rule]:
    rules = [rule for rule in RULES if rule.figure == figure]
    assert rules, f"no rule on {figure!r}"
    return rules
