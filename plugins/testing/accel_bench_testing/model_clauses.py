"""Checks of the contract for plugins that load a model (`accel_bench.modeling.contract`)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from accel_bench.analysis.checks.convergence import compare_losses
from accel_bench.analysis.statistics.verdict import ALIKE
from accel_bench.result import Result
from accel_bench_testing.report import CheckStep, Clause, proven, unproven, violated
from accel_bench_testing.running import run_or_skip
from accel_bench_testing.trial_runs import TrialRuns, ending_of

LARGE_VOCABULARY = 300_000
"""Vocabulary size of data that exceeds the embeddings of all models in these checks."""


def model_steps(trials: TrialRuns) -> Iterator[CheckStep]:
    """Yield the check steps for a plugin that loads the scenario's model."""
    if trials.usual.plugin.experiment.scenario.engine.use == "null":
        return
    yield "accumulation", lambda: [accumulation(trials)]
    yield "memory", lambda: [_memory(trials)]
    yield "vocabulary", lambda: [_vocabulary(trials)]
    yield "checkpointing", lambda: [_checkpointing(trials)]


def _run(trials: TrialRuns, **work: Any) -> Result:
    return run_or_skip(trials.plan(**work).plugin, trials.root).result


def accumulation(trials: TrialRuns) -> Clause:
    """Check that micro-batches of one sample give the losses of a whole batch; return the outcome
    as a clause."""
    if getattr(trials.kind, "batch_dependent", False):
        return unproven("accumulation", "the loss of a sample depends on its micro-batch")
    train = trials.usual.plugin.experiment.scenario.train
    sequences = train.micro_batch_size * train.gradient_accumulation
    several = {"micro_batch_size": 1, "gradient_accumulation": max(2, sequences)}
    result = _run(trials, train=several)
    if not result.status.completed:
        return violated("accumulation", f"with {several}: {ending_of(result)}")
    return _same_losses("accumulation", trials, result, f"with {several}")


def _memory(trials: TrialRuns) -> Clause:
    """Check that the plugin imports no package after `prepare_process`, when memory counts as the
    model's; return the outcome as a clause."""
    own = trials.kind.__module__.partition(".")[0]
    late = [
        package
        for package in trials.execution.imported
        if package not in {own, "accel_bench", *sys.stdlib_module_names}
    ]
    if late:
        return violated(
            "memory",
            f"{', '.join(late)} is imported after prepare_process, so that it counts as the "
            "model's memory; import it there",
        )
    return proven("memory", "nothing is imported once the model's memory is counted")


def _vocabulary(trials: TrialRuns) -> Clause:
    """Check that data with more token ids than the model has embeddings are refused; return the
    outcome as a clause."""
    if trials.usual.plugin.experiment.scenario.data.use == "null":
        return unproven("vocabulary", "the data has no tokens")
    if "data" in trials.slots:
        return unproven("vocabulary", "the data is the plugin's own")
    result = _run(trials, data={"vocab_size": LARGE_VOCABULARY})
    error = result.ranks[0].error if result.ranks else None
    if error is not None and error.type == "ScenarioError":
        return proven("vocabulary", "data that the model has no embeddings for is refused")
    return violated(
        "vocabulary",
        f"data of {LARGE_VOCABULARY} tokens: {ending_of(result)}; give the model a `config` with "
        "vocab_size, or call accel_bench.check_fit in load_model: a GPU would only abort",
    )


def _checkpointing(trials: TrialRuns) -> Clause:
    """Check that activation checkpointing does not change the losses; return the outcome as a
    clause."""
    result = _run(trials, train={"gradient_checkpointing": True})
    if result.status.completed:
        return _same_losses("checkpointing", trials, result, "under gradient_checkpointing")
    if "does not offer it" in " ".join(result.reasons):
        return unproven(
            "checkpointing", "the model does not offer it, and runs with it are refused"
        )
    return violated("checkpointing", f"under gradient_checkpointing: {ending_of(result)}")


def _same_losses(name: str, trials: TrialRuns, result: Result, where: str) -> Clause:
    compared = compare_losses({("", 0): trials.execution.result}, {("", 0): result})
    # A wrong sum shows in the losses themselves, also where training hardly moves them.
    if compared.loss_verdict in (*ALIKE, "inconclusive"):
        return proven(name, f"the same losses {where}")
    return violated(name, f"the loss differs {compared.loss_reason} {where}")
