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
    """Check the declaration `needs_adapter` by a completed run."""
    used = result.experiment.scenario.adapter.use
    if trials.kind.needs_adapter or "adapter" in trials.slots:
        return proven("needs_adapter", f"it runs with the adapter {used!r}")
    if used == "none":
        return proven("needs_adapter", "it runs without an adapter")
    return unproven("needs_adapter", f"`scenario` adds the adapter {used!r}, so this was not tried")


def missing_adapter(trials: TrialRuns, result: Result) -> Iterator[Clause]:
    """Run a failed plugin with an adapter, and yield a violated clause if it then succeeds."""
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
    """Check how many trained tensors got a gradient in the first step."""
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
    """Check that the plugin reports evidence of its effect."""
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
    """Check the size of a run's output, log and evidence."""
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
    """Compare the loss with the baseline's, and return the clause."""
    name = "loss of the baseline"
    if not set(trials.slots) <= SAME_WORK:
        return unproven(name, f"it fills {', '.join(trials.slots)}: what is trained is its own")
    found = compare_losses({("", 0): baseline}, {("", 0): result})
    reason = found.loss_reason
    rule = "its loss_tolerance" if found.loss_tolerance_by else "it declares no loss_tolerance"
    if found.loss_verdict in (*ALIKE, "inconclusive", DESIGNED):
        near = f"differs by {found.loss_difference:.2g}, {found.loss_tolerance:g} allowed ({rule})"
        if found.loss_verdict == "inconclusive":
            return unproven(name, f"{near}: inconclusive, {reason}")
        return proven(name, f"{near}{_designed(found.loss_verdict, found.loss_excused)}")
    if trials.other_work:
        return unproven(name, f"the loss differs {reason}: acknowledged by other_work=True")
    wider = "loss_tolerance" if not found.loss_tolerance_by else "a wider loss_tolerance"
    return violated(name, f"the loss differs {reason} ({rule}); {_ways_out(wider)}")


def training(trials: TrialRuns, baseline: Result, result: Result) -> Iterator[Clause]:
    """Compare loss and weight update with the baseline's, and yield the clauses."""
    by_loss = loss(trials, baseline, result)
    yield by_loss
    if by_loss.outcome != "violated" and set(trials.slots) <= SAME_WORK:
        yield update(trials, baseline, result)


def update(trials: TrialRuns, baseline: Result, result: Result) -> Clause:
    """Compare the weight update with the baseline's, and return the clause."""
    name = "update of the baseline"
    found = compare_training({("", 0): baseline}, {("", 0): result})
    rule = "its update_tolerance" if found.update_tolerance_by else "it declares none"
    different = found.training_difference
    if not different and found.update_verdict in ("not tested", "inconclusive"):
        return unproven(name, found.update_reason or "nothing is trained by torch")
    if found.update_verdict == DESIGNED or not different:
        allowed = f"{found.update_tolerance:g} allowed ({rule})"
        design = _designed(found.update_verdict, found.update_excused)
        return proven(name, f"{found.update_difference:.2g} apart, {allowed}{design}")
    if trials.other_work:
        return unproven(name, f"{different}: acknowledged by other_work=True")
    wider = "update_tolerance" if not found.update_tolerance_by else "a wider update_tolerance"
    return violated(name, f"{different} ({rule}); {_ways_out(wider)}")


def _designed(verdict: str, excused: bool) -> str:
    """Return a remark if the training differs by design, or an empty text."""
    if verdict != DESIGNED:
        return ""
    return f", {DESIGNED}" if excused else f", {DESIGNED}: too far apart to be called faster"


def _ways_out(declaration: str) -> str:
    """Return advice to an author whose plugin trains differently from the baseline."""
    return (
        f"if that is by design, declare {declaration}, or where it trains something else say "
        "check_plugin(..., other_work=True)"
    )


def own_steps(trials: TrialRuns, result: Result) -> Iterator[Clause]:
    """Check a plugin's additional steps after the measured steps, if it observes any."""
    assert trials.kind
    if "observe_steps" not in implemented(trials.kind):
        return
    name, taken = "steps of its own", result.ranks[0].observed_steps
    metrics = [one.name for one in result.ranks[0].metrics if one.plugin == trials.name]
    if not taken:
        yield unproven(name, "it observed none here")
    elif not metrics:
        yield violated(name, f"it observed {taken} steps, and `finish` returned no metric of them")
    else:
        yield proven(name, f"{taken} after the window, for {', '.join(metrics)}")


def serialised(result: Result) -> Clause:
    if Result.model_validate_json(result.model_dump_json()) == result:
        return proven("serialisable", "the result is read back as it was")
    return violated("serialisable", "the result is not read back from JSON as it was written")
