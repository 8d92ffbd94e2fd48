"""Checks of the plugin contract by the result of a run. A clause is a checked requirement."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping

from accel_bench.analysis.checks.convergence import compare_losses
from accel_bench.analysis.checks.training import compare_training
from accel_bench.analysis.statistics.verdict import ALIKE
from accel_bench.plugins.describe import implemented
from accel_bench.result import Result
from accel_bench.runner.artifacts import TAIL_BYTES
from accel_bench.scenario.uses import slot_defaults
from accel_bench_testing.report import Clause, judged, proven, unproven, violated
from accel_bench_testing.running import run_or_skip
from accel_bench_testing.tiny import merged, plan_trial
from accel_bench_testing.trial_runs import TrialRuns

SAME_WORK = frozenset({"engine", "metrics"})
"""Kinds of plugins that must not change the training."""

MOST_OUTPUT = 4 * TAIL_BYTES
"""Largest output and log of a few runs in bytes; a result keeps `TAIL_BYTES` of a log."""

DESIGNED = "different by design"
"""Verdict on a training that differs because the plugin declares so."""

MOST_EVIDENCE = 100_000
"""Largest JSON of evidence in bytes, since every run stores it."""


def adapter(trials: TrialRuns, result: Result) -> Clause:
    """Check that the declaration `needs_adapter` fits a completed run; return the outcome as a
    clause."""
    used = result.experiment.scenario.adapter.use
    if trials.kind.needs_adapter or "adapter" in trials.slots:
        return proven("needs_adapter", f"it runs with the adapter {used!r}")
    if used == "none":
        return proven("needs_adapter", "it runs without an adapter")
    return unproven("needs_adapter", f"`scenario` adds the adapter {used!r}, so this was not tried")


def missing_adapter(trials: TrialRuns, result: Result) -> Iterator[Clause]:
    """Run a plugin that failed with `result` again, with an adapter, and yield a violated clause if
    it then succeeds."""
    alone = result.experiment.scenario.adapter.use == "none"
    if trials.kind.needs_adapter or "adapter" in trials.slots or not alone:
        return
    adapter = slot_defaults().needed_adapter
    trial = plan_trial(trials.name, trials.options, merged(trials.scenario, {"adapter": adapter}))
    if run_or_skip(trial.plugin, trials.root).result.status.completed:
        yield violated(
            "needs_adapter",
            f"it fails without an adapter and runs with {adapter!r}: declare needs_adapter = True",
        )


def gradients(result: Result) -> Clause:
    """Return a clause with the number of trained tensors that got a gradient in the first step; the
    clause is unproven if torch trains nothing."""
    flow = result.ranks[0].effective.gradient_flow
    if flow is None:
        return unproven("gradient flow", "nothing is trained by torch")
    tensors, reached = flow.trained_tensors, flow.tensors_with_gradient
    return proven("gradient flow", f"{reached} of {tensors} trained tensors got a gradient")


def cut_gradient(result: Result) -> Iterator[Clause]:
    """Yield a violated clause if trained tensors without a gradient ended the run."""
    flow = result.ranks[0].effective.gradient_flow if result.ranks else None
    if flow is not None and flow.modules_without_gradient:
        cut = ", ".join(flow.modules_without_gradient[:3])
        yield violated(
            "gradient flow",
            f"{flow.tensors_with_gradient} of {flow.trained_tensors} trained tensors got a "
            f"gradient, and none in {cut} ...: detach nothing on the way to the loss",
        )


def evidence(trials: TrialRuns, result: Result) -> Clause:
    """Check that the plugin reports evidence of its effect in a run; return the outcome as a
    clause."""
    shown = result.ranks[0].evidence.get(trials.name)
    metrics = (*result.ranks[0].metrics, *result.metrics)
    # What fills a slot acts in every run; what stands in the stack may have nothing to do.
    if isinstance(shown, Mapping) and shown and (trials.slots or any(shown.values())):
        return proven("evidence", ", ".join(shown))
    if trials.slots == ("metrics",) and metrics:
        return proven("evidence", "its metrics")
    nothing = "report_evidence returns nothing but zeros" if shown else "report_evidence is empty"
    what = nothing if shown is not None else "there is no run.on_evidence and no report_evidence"
    return violated(
        "evidence", f"{what}; return counts that could only be there if the plugin acted"
    )


def output(trials: TrialRuns, result: Result) -> list[Clause]:
    """Check that a run's output, log and evidence are small, and that the plugin prints nothing;
    return the outcome as clauses."""
    log = trials.root / result.folder / "rank0.log"
    written = os.fstat(1).st_size + (log.stat().st_size if log.exists() else 0)
    shown = len(json.dumps(result.ranks[0].evidence.get(trials.name)))
    problems = [
        f"a run {what} {size / 1e6:.1f} MB, and {most / 1e6:.1f} MB is much; {instead}"
        for what, size, most, instead in (
            ("writes to its output and log", written, MOST_OUTPUT, "log what is news"),
            ("shows as evidence", shown, MOST_EVIDENCE, "return counts, no lists"),
        )
        if size > most
    ]
    problems += [
        f"{module} prints {text[:60]!r}; log by run.logger, and only what is news"
        for module, text in trials.execution.printed.items()
    ]
    return judged("output", problems, f"{written} bytes, {shown} of evidence")


def loss(trials: TrialRuns, baseline: Result, result: Result) -> Clause:
    """Check that the loss of a run is the baseline's within the plugin's tolerance; return the
    outcome as a clause."""
    name = "loss of the baseline"
    if not set(trials.slots) <= SAME_WORK:
        return unproven(name, f"it fills {', '.join(trials.slots)}: what is trained is its own")
    compared = compare_losses({("", 0): baseline}, {("", 0): result})
    reason = compared.loss_reason
    rule = "its loss_tolerance" if compared.loss_tolerance_by else "it declares no loss_tolerance"
    if compared.loss_verdict in (*ALIKE, "inconclusive", DESIGNED):
        near = (
            f"differs by {compared.loss_difference:.2g}, "
            f"{compared.loss_tolerance:g} allowed ({rule})"
        )
        if compared.loss_verdict == "inconclusive":
            return unproven(name, f"{near}: inconclusive, {reason}")
        return proven(name, f"{near}{_designed(compared.loss_verdict, compared.loss_excused)}")
    if trials.other_work:
        return unproven(name, f"the loss differs {reason}: acknowledged by other_work=True")
    wider = "loss_tolerance" if not compared.loss_tolerance_by else "a wider loss_tolerance"
    return violated(name, f"the loss differs {reason} ({rule}); {_ways_out(wider)}")


def training(trials: TrialRuns, baseline: Result, result: Result) -> Iterator[Clause]:
    """Check that loss and weight update of a run are the baseline's within the plugin's tolerances;
    yield the outcome as clauses."""
    by_loss = loss(trials, baseline, result)
    yield by_loss
    if by_loss.outcome != "violated" and set(trials.slots) <= SAME_WORK:
        yield update(trials, baseline, result)


def update(trials: TrialRuns, baseline: Result, result: Result) -> Clause:
    """Check that the weight update of a run is the baseline's within the plugin's tolerance; return
    the outcome as a clause."""
    name = "update of the baseline"
    compared = compare_training({("", 0): baseline}, {("", 0): result})
    rule = "its update_tolerance" if compared.update_tolerance_by else "it declares none"
    different = compared.training_difference
    if not different and compared.update_verdict in ("not tested", "inconclusive"):
        return unproven(name, compared.update_reason or "nothing is trained by torch")
    if compared.update_verdict == DESIGNED or not different:
        allowed = f"{compared.update_tolerance:g} allowed ({rule})"
        design = _designed(compared.update_verdict, compared.update_excused)
        return proven(name, f"{compared.update_difference:.2g} apart, {allowed}{design}")
    if trials.other_work:
        return unproven(name, f"{different}: acknowledged by other_work=True")
    wider = "update_tolerance" if not compared.update_tolerance_by else "a wider update_tolerance"
    return violated(name, f"{different} ({rule}); {_ways_out(wider)}")


def _designed(verdict: str, excused: bool) -> str:
    """Return a remark for the end of a sentence if the training differs by design, or an empty
    string.

    `verdict` is the verdict on the training. `excused` is False if the training differs too much
    for the plugin to be called faster.
    """
    if verdict != DESIGNED:
        return ""
    return f", {DESIGNED}" if excused else f", {DESIGNED}: too far apart to be called faster"


def _ways_out(declaration: str) -> str:
    """Return advice to an author whose plugin trains differently from the baseline; `declaration`
    is the class attribute to set."""
    return (
        f"if that is by design, declare {declaration}, or where it trains something else say "
        "check_plugin(..., other_work=True)"
    )


def own_steps(trials: TrialRuns, result: Result) -> Iterator[Clause]:
    """Check that a plugin returns metrics of the steps that it observes after the measured steps;
    yield the outcome as a clause.

    Nothing is yielded if the plugin does not observe steps.
    """
    assert trials.kind
    if "observe_steps" not in implemented(trials.kind):
        return
    name, count = "steps of its own", result.ranks[0].observed_steps
    metrics = [metric.name for metric in result.ranks[0].metrics if metric.plugin == trials.name]
    if not count:
        yield unproven(name, "it observed none here")
    elif not metrics:
        yield violated(name, f"it observed {count} steps, and `finish` returned no metric of them")
    else:
        yield proven(name, f"{count} after the window, for {', '.join(metrics)}")


def serialised(result: Result) -> Clause:
    if Result.model_validate_json(result.model_dump_json()) == result:
        return proven("serialisable", "the result is read back as it was")
    return violated("serialisable", "the result is not read back from JSON as it was written")
