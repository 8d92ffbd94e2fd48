"""Clauses that are proven by running the plugin beside its baseline on a tiny model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any, TypeAlias

from accel_bench.analysis.checks.convergence import compare_losses
from accel_bench.errors import AccelBenchError
from accel_bench.result import Result, Status
from accel_bench.scenario.uses import slot_defaults
from accel_bench.testing.in_process import fail_in_process
from accel_bench.testing.process_state import SEEN_THROUGH
from accel_bench.testing.report import RUN, Clause, judged, proven, unproven, violated
from accel_bench.testing.running import needs_processes, run_or_skip
from accel_bench.testing.tiny import merged, model_of, plan_trial, shrunk
from accel_bench.testing.trial_runs import TrialRuns, losses, own_reasons

Step: TypeAlias = tuple[str, Callable[[], Iterable[Clause]]]
"""A name, and what tries the clauses of that name and those beside them."""

SAME_WORK = frozenset({"engine", "metrics"})
"""Slots whose plugins must not change what is trained."""

MOST_OUTPUT = 1_000_000
"""Bytes that a few runs may print and log together."""

MOST_EVIDENCE = 100_000
"""Bytes of JSON that a run may show as evidence: it is stored with every run."""

UNDONE = "undone at the end"
"""Name of the clause about what outlives a run."""

SAME_LOSSES = "same seed, same losses"
"""Name of the clause about `deterministic`."""

ELSEWHERE = "where it cannot work, say so in restricted_model_archs or dtypes"
"""The other way out of a violation in one setting alone."""

USUAL_ARCHITECTURES = ("LlamaForCausalLM", "GPT2LMHeadModel")
"""Architectures that a plugin is tried on which declares none."""

USUAL_DTYPES = ("float32", "bfloat16")
"""Dtypes that a plugin is tried in which declares none."""


def steps(trials: TrialRuns) -> Iterator[Step]:
    """Yield what is tried by running the plugin: in the usual setting first, then in others.

    A step reads what earlier ones have run, and runs it itself in a process that starts there.
    """
    yield RUN, lambda: _runs(trials)
    if _obstacle(trials) is not None:
        return
    result = trials.execution.result
    yield UNDONE, lambda: _undone(trials)
    if not result.status.completed:
        return
    yield "what a result says", lambda: _shown(trials)
    yield SAME_LOSSES, lambda: [_repeated(trials)]
    yield from _other_settings(trials)


def _runs(trials: TrialRuns) -> Iterator[Clause]:
    """Run the plugin in the usual setting, and where that fails look for what it needs."""
    if obstacle := _obstacle(trials):
        yield obstacle
        return
    result = trials.execution.result
    where = _setting(result)
    failed = [f"{where}: {_ending(result)}"] if _failed(result) else []
    yield from judged(RUN, failed, f"ok {where}")
    if not result.status.completed:
        yield from _cut_gradient(result)
        yield from _missing_adapter(trials, result)


@cache
def _obstacle(trials: TrialRuns) -> Clause | None:
    """Return why the plugin is not run at all; None where it is."""
    if reason := _cannot_be_tried(trials):
        return unproven(RUN, f"{reason}; only its declarations were checked")
    try:
        skipped = trials.usual.plugin.skipped
        if skipped:
            return unproven(RUN, f"it cannot run here: {'; '.join(skipped)}")
        baseline = trials.baseline(trials.usual)
    except AccelBenchError as error:
        return violated(RUN, str(error))
    except BaseException as error:
        return violated(RUN, f"planning raised {type(error).__name__}: {error}")
    return None if baseline.status.completed else _no_baseline(trials, baseline)


def _undone(trials: TrialRuns) -> list[Clause]:
    """Compare the process before and after a run, and after one that fails early."""
    execution = trials.execution
    left = [*_left(execution.left)]
    if execution.result.status.completed:
        left += _left_by_a_failure(trials)
    return judged(UNDONE, left, f"as before: {SEEN_THROUGH}")


def _shown(trials: TrialRuns) -> Iterator[Clause]:
    """Check what the result of the usual setting says."""
    result = trials.execution.result
    replaced = [
        f"{text} while the window was measured; what measures must be left alone"
        for text in trials.execution.replaced
    ]
    yield from judged("what measures", replaced, "nothing of it was replaced in the window")
    yield from _output(trials, result)
    yield _adapter(trials, result)
    yield _gradients(result)
    yield _evidence(trials, result)
    yield _loss(trials, trials.baseline(trials.usual), result)
    yield _serialised(result)


def _cannot_be_tried(trials: TrialRuns) -> str:
    """Return why no run of this kit proves anything; empty where one can."""
    devices = trials.kind.devices
    if devices is not None and trials.device not in devices:
        listed = ", ".join(sorted(devices))
        return (
            f"devices are {listed} and this is {trials.device}: check_plugin(device=...) proves it "
            "where there is one"
        )
    return needs_processes(trials.name, trials.slots)


def _no_baseline(trials: TrialRuns, baseline: Result) -> Clause:
    """Blame the author's scenario, or else a dtype that this device does not do well."""
    if not trials.scenario and baseline.status is Status.INVALID:
        return unproven(
            RUN, f"not even the baseline runs {_setting(baseline)}: {_ending(baseline)}"
        )
    return violated(RUN, f"even without the plugin: {_ending(baseline)}; mend `scenario`")


def _left(texts: Collection[str], known: Collection[str] = (), where: str = "") -> Iterator[str]:
    """Yield what a run has left in the process, except what is `known`, with the way out."""
    for text in texts:
        if text not in known:
            yield f"{where}{text}; undo it by run.on_close or close_run"


def _left_by_a_failure(trials: TrialRuns) -> Iterator[str]:
    """Yield what a run leaves behind that fails before the plugin's other hooks are called."""
    failed = fail_in_process(trials.usual.plugin, trials.root)
    where = "after a run that failed once processes were prepared: "
    yield from _left(failed.left, trials.execution.left, where)
    log = failed.result.log_tail.strip()
    for hook in ("close_run", "on_close"):
        if f"{hook} of {trials.name}\n" in log:
            raised = log.rpartition(f"failed in {hook}: ")[2]
            yield (
                f"{where}{hook} raised {raised}; it is called always: set in __init__ what it reads"
            )


def _adapter(trials: TrialRuns, result: Result) -> Clause:
    """Compare `needs_adapter` with the run."""
    used = result.experiment.scenario.adapter.use
    if trials.kind.needs_adapter or "adapter" in trials.slots:
        return proven("needs_adapter", f"it runs with the adapter {used!r}")
    if used == "none":
        return proven("needs_adapter", "it runs without an adapter")
    return unproven("needs_adapter", f"`scenario` adds the adapter {used!r}, so this was not tried")


def _missing_adapter(trials: TrialRuns, result: Result) -> Iterator[Clause]:
    """Run a plugin that fails without an adapter with one, and say what it does not declare."""
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


def _gradients(result: Result) -> Clause:
    """Report how many trained tensors got a gradient in the first step; a run needs all."""
    flow = result.ranks[0].effective.gradient_flow
    if flow is None:
        return unproven("gradient flow", "nothing is trained by torch")
    tensors, reached = flow.trained_tensors, flow.tensors_with_gradient
    return proven("gradient flow", f"{reached} of {tensors} trained tensors got a gradient")


def _cut_gradient(result: Result) -> Iterator[Clause]:
    """Yield a clause where a run has ended since trained tensors got no gradient."""
    flow = result.ranks[0].effective.gradient_flow if result.ranks else None
    if flow is not None and flow.modules_without_gradient:
        cut = ", ".join(flow.modules_without_gradient[:3])
        yield violated(
            "gradient flow",
            f"{flow.tensors_with_gradient} of {flow.trained_tensors} trained tensors got a "
            f"gradient, and none in {cut} ...: detach nothing on the way to the loss",
        )


def _evidence(trials: TrialRuns, result: Result) -> Clause:
    """Check that the plugin shows that it acted."""
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


def _output(trials: TrialRuns, result: Result) -> list[Clause]:
    """Check how much a run has printed, logged and shown as evidence."""
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
    return judged("output", problems, f"{written} bytes, {shown} of evidence")


def _repeated(trials: TrialRuns) -> Clause:
    """Compare the losses of a second run, where the plugin claims that they are equal."""
    name, result = SAME_LOSSES, trials.execution.result
    if not trials.kind.deterministic:
        return unproven(name, "`deterministic` is not claimed")
    again = trials.run(trials.usual).result
    if not again.status.completed:
        return violated(name, f"the second run in one process failed: {_ending(again)}")
    # A window that was disturbed is measured again, so that one of them may have more steps.
    steps = list(zip(losses(result), losses(again), strict=False))
    unequal = [step for step, (first, second) in enumerate(steps) if first != second]
    if not unequal:
        return proven(name, f"{len(steps)} losses are equal, bit for bit")
    first, second = steps[unequal[0]]
    return violated(
        name,
        f"the loss of step {unequal[0]} was {first} and then {second}; draw random numbers from "
        "generators seeded with train.seed, or do not claim `deterministic`",
    )


def _loss(trials: TrialRuns, baseline: Result, result: Result) -> Clause:
    """Compare the loss with the baseline's, by the rule of the reports."""
    name = "loss of the baseline"
    if not set(trials.slots) <= SAME_WORK:
        return unproven(name, f"it fills {', '.join(trials.slots)}: what is trained is its own")
    found = compare_losses({("", 0): baseline}, {("", 0): result})
    reason = found.loss_reason
    rule = "its loss_tolerance" if found.loss_tolerance_by else "it declares no loss_tolerance"
    if found.loss_verdict == "equivalent":
        return proven(
            name,
            f"differs by {found.loss_difference:.2g}, {found.loss_tolerance:g} allowed ({rule})",
        )
    if trials.other_work:
        return unproven(name, f"the loss differs {reason}: acknowledged by other_work=True")
    return violated(
        name,
        f"the loss differs {reason} ({rule}); if that is by design, declare loss_tolerance, "
        "or where it trains something else say check_plugin(..., other_work=True)",
    )


def _serialised(result: Result) -> Clause:
    if Result.model_validate_json(result.model_dump_json()) == result:
        return proven("serialisable", "the result is read back as it was")
    return violated("serialisable", "the result is not read back from JSON as it was written")


def _other_settings(trials: TrialRuns) -> Iterator[Step]:
    """Try the other dtypes on the usual model, and the other architectures in the usual dtype."""
    model, kind = trials.usual.plugin.experiment.scenario.model, trials.kind
    usual = f"{model.dtype} on {model.id}"
    yield "dtypes", lambda: [proven("dtypes", usual)]
    dtypes = sorted(kind.dtypes or USUAL_DTYPES) if trials.dtypes is None else trials.dtypes
    for dtype in dtypes:
        if dtype != model.dtype:
            yield "dtypes", partial(_in_setting, trials, "dtypes", dtype, dtype=dtype)
    declared = sorted(kind.restricted_model_archs or USUAL_ARCHITECTURES)
    for architecture in declared if trials.archs is None else trials.archs:
        yield "architectures", partial(_architecture, trials, architecture)


def _architecture(trials: TrialRuns, architecture: str) -> Iterable[Clause]:
    """Run the plugin on the smallest model of the catalog with an architecture."""
    name = model_of(architecture)
    if name is None:
        return [unproven("architectures", f"no model of the catalog is a {architecture}")]
    if name == trials.usual.plugin.experiment.scenario.model.id:
        return [proven("architectures", architecture)]
    return _in_setting(trials, "architectures", architecture, id=name, overrides=shrunk(name))


def _in_setting(trials: TrialRuns, clause: str, value: str, **model: Any) -> Iterator[Clause]:
    """Run plugin and baseline with other settings of the model."""
    trial = trials.plan(**model)
    if trial.plugin.skipped:
        yield violated(clause, f"{value} is declared and refused: {trial.plugin.skipped[0]}")
        return
    baseline = trials.baseline(trial)
    if not baseline.status.completed:
        ending = _ending(baseline)
        yield unproven(clause, f"{value}: not even the baseline runs here: {ending}")
        return
    execution = trials.run(trial)
    result, where = execution.result, _setting(execution.result)
    found = [
        violated(UNDONE, text)
        for text in _left(execution.left, trials.execution.left, f"{where}: ")
    ]
    if _failed(result):
        found.append(
            violated(clause, f"{value} is declared, and it does not run {where}: {_ending(result)}")
        )
    else:
        tried = (_evidence(trials, result), _loss(trials, baseline, result))
        wrong = [one for one in tried if one.outcome == "violated"]
        found += [violated(one.name, f"{where}: {one.sentence}; {ELSEWHERE}") for one in wrong]
    yield from found or [proven(clause, value)]


def _failed(result: Result) -> bool:
    return not result.status.completed or bool(own_reasons(result))


def _setting(result: Result) -> str:
    scenario = result.experiment.scenario
    return f"on {scenario.model.id} in {scenario.model.dtype} on {scenario.resources.device}"


def _ending(result: Result) -> str:
    reasons = own_reasons(result) or list(result.reasons)
    where = f" in {result.phase}" if result.phase else ""
    return f"{result.status.value}{where}: {'; '.join(reasons) or 'no reason given'}"
