"""Clauses that are proven by running the plugin beside its baseline on a tiny model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from accel_bench.analysis.checks.convergence import compare_losses
from accel_bench.errors import AccelBenchError
from accel_bench.result import Result, Status
from accel_bench.testing.in_process import Execution, fail_in_process
from accel_bench.testing.process_state import SEEN_THROUGH
from accel_bench.testing.report import RUN, Clause, judged, proven, unproven, violated
from accel_bench.testing.running import needs_processes
from accel_bench.testing.tiny import Trial, model_of, shrunk
from accel_bench.testing.trial_runs import TrialRuns, losses, own_reasons

SAME_WORK = frozenset({"engine", "metrics"})
"""Slots whose plugins must not change what is trained."""

UNDONE = "undone at the end"
"""Name of the clause about what outlives a run."""

ELSEWHERE = "where it cannot work, say so in restricted_model_archs or dtypes"
"""The other way out of a violation in one setting alone."""

USUAL_ARCHITECTURES = ("LlamaForCausalLM", "GPT2LMHeadModel")
"""Architectures that a plugin is tried on which declares none."""

USUAL_DTYPES = ("float32", "bfloat16")
"""Dtypes that a plugin is tried in which declares none."""


def behaviour(trials: TrialRuns) -> Iterator[Clause]:
    """Run the plugin in the usual setting, check every clause, then try the other settings."""
    try:
        if reason := _cannot_be_tried(trials):
            yield unproven(RUN, f"{reason}; only its declarations were checked")
            return
        trial = trials.plan()
        if trial.plugin.skipped:
            yield unproven(RUN, f"it cannot run here: {'; '.join(trial.plugin.skipped)}")
            return
        baseline = trials.baseline(trial)
        if not baseline.status.completed:
            yield _no_baseline(trials, baseline)
            return
        execution = trials.run(trial)
    except AccelBenchError as error:
        yield violated(RUN, str(error))
        return
    result, where = execution.result, _setting(execution.result)
    yield from judged(
        RUN, [f"{where}: {_ending(result)}"] if _failed(result) else [], f"ok {where}"
    )
    left = [*_left(execution.left)]
    if result.status.completed:
        left += _left_by_a_failure(trials, trial, execution)
    yield from judged(UNDONE, left, f"as before: {SEEN_THROUGH}")
    if result.status.completed:
        yield _adapter(trials, result)
        yield _gradients(result)
        yield _evidence(trials, result)
        yield _repeated(trials, trial, result)
        yield _loss(trials, baseline, result)
        yield _serialised(result)
        yield from _other_settings(trials, execution)


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


def _left_by_a_failure(trials: TrialRuns, trial: Trial, execution: Execution) -> Iterator[str]:
    """Yield what a run leaves behind that fails before the plugin's other hooks are called."""
    failed = fail_in_process(trial.plugin, trials.root)
    where = "after a run that failed once processes were prepared: "
    yield from _left(failed.left, execution.left, where)
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


def _gradients(result: Result) -> Clause:
    """Report how many trained tensors got a gradient in the first step; a run needs all."""
    flow = result.ranks[0].effective.gradient_flow
    if flow is None:
        return unproven("gradient flow", "nothing is trained by torch")
    tensors, reached = flow.trained_tensors, flow.tensors_with_gradient
    return proven("gradient flow", f"{reached} of {tensors} trained tensors got a gradient")


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


def _repeated(trials: TrialRuns, trial: Trial, result: Result) -> Clause:
    """Compare the losses of a second run, where the plugin claims that they are equal."""
    name = "same seed, same losses"
    if not trials.kind.deterministic:
        return unproven(name, "`deterministic` is not claimed")
    again = trials.run(trial).result
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


def _other_settings(trials: TrialRuns, usual: Execution) -> Iterator[Clause]:
    """Try the other dtypes on the usual model, and the other architectures in the usual dtype."""
    model, kind = usual.result.experiment.scenario.model, trials.kind
    yield proven("dtypes", f"{model.dtype} on {model.id}")
    dtypes = sorted(kind.dtypes or USUAL_DTYPES) if trials.dtypes is None else trials.dtypes
    for dtype in dtypes:
        if dtype != model.dtype:
            yield from _in_setting(trials, "dtypes", dtype, trials.plan(dtype=dtype), usual.left)
    declared = sorted(kind.restricted_model_archs or USUAL_ARCHITECTURES)
    for architecture in declared if trials.archs is None else trials.archs:
        name = model_of(architecture)
        if name is None:
            yield unproven("architectures", f"no model of the catalog is a {architecture}")
        elif name == model.id:
            yield proven("architectures", architecture)
        else:
            trial = trials.plan(id=name, overrides=shrunk(name))
            yield from _in_setting(trials, "architectures", architecture, trial, usual.left)


def _in_setting(
    trials: TrialRuns, clause: str, value: str, trial: Trial, known: Collection[str]
) -> Iterator[Clause]:
    """Run plugin and baseline in one more setting; `known` is what every run leaves."""
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
    found = [violated(UNDONE, text) for text in _left(execution.left, known, f"{where}: ")]
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
