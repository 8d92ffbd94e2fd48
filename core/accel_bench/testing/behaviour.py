"""Clauses that are seen by running the plugin beside its baseline on a tiny model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from accel_bench.analysis.checks.convergence import compare_losses
from accel_bench.errors import AccelBenchError
from accel_bench.result import Result, Status
from accel_bench.testing.in_process import Execution
from accel_bench.testing.report import RUN, Clause, proven, unproven, violated
from accel_bench.testing.running import refuse_processes
from accel_bench.testing.tiny import Trial, model_of
from accel_bench.testing.traces import SEEN_THROUGH
from accel_bench.testing.trials import TrialRuns, losses, own_reasons

SAME_WORK = frozenset({"engine", "metrics"})
"""Slots whose plugins must not change what is trained."""

UNDONE = "undone at the end"
"""Name of the clause about what outlives a run."""

ELSEWHERE = "where it cannot work, say so in restricted_model_archs or dtypes"
"""The other way out of a violation in one setting alone."""


def behaviour(trials: TrialRuns) -> Iterator[Clause]:
    """Run the plugin in the usual setting, look at everything, then try the other settings."""
    try:
        if reason := _cannot_be_tried(trials):
            yield unproven(RUN, f"{reason}; nothing but its declarations was looked at")
            return
        trial = trials.plan()
        if trial.plugin.skipped:
            yield unproven(RUN, f"it cannot run here: {'; '.join(trial.plugin.skipped)}")
            return
        baseline = trials.baseline(trial)
        if not baseline.status.completed:
            yield _no_baseline(trials, baseline)
            return
        carried = trials.run(trial)
    except AccelBenchError as error:
        yield violated(RUN, str(error))
        return
    yield _runs(RUN, carried.result, _setting(carried.result))
    undone = [*_undone(carried)]
    if carried.result.status.completed:
        undone += _after_failure(trials, trial, carried)
    yield from undone or [proven(UNDONE, f"as before: {SEEN_THROUGH}")]
    if carried.result.status.completed:
        yield from _of_a_run(trials, trial, baseline, carried.result)
        yield from _other_settings(trials, carried)


def _cannot_be_tried(trials: TrialRuns) -> str:
    """Why no run of this kit can say anything; empty where one can."""
    devices = trials.kind.devices
    if devices is not None and trials.device not in devices:
        listed = ", ".join(sorted(devices))
        return (
            f"devices are {listed} and this is {trials.device}: check_plugin(device=...) proves it "
            "where there is one"
        )
    try:
        refuse_processes(trials.name, trials.slots)
    except AccelBenchError as error:
        return str(error)
    return ""


def _no_baseline(trials: TrialRuns, baseline: Result) -> Clause:
    """Why nothing can be compared: the author's scenario, or a dtype that this device is bad at."""
    if not trials.scenario and baseline.status is Status.INVALID:
        return unproven(
            RUN, f"not even the baseline runs {_setting(baseline)}: {_ending(baseline)}"
        )
    return violated(RUN, f"even without the plugin: {_ending(baseline)}; mend `scenario`")


def _of_a_run(
    trials: TrialRuns, trial: Trial, baseline: Result, result: Result
) -> Iterator[Clause]:
    """Everything that one good run shows."""
    yield _adapter(trials, result)
    yield _gradients(result)
    yield _evidence(trials, result)
    yield _repeated(trials, trial, result)
    yield _loss(trials, baseline, result)
    yield _serialised(result)


def _runs(name: str, result: Result, where: str) -> Clause:
    """Whether a run ended well, a machine that was busy aside."""
    reasons = own_reasons(result)
    if result.status.completed and not reasons:
        return proven(name, f"ok {where}")
    return violated(name, f"{where}: {_ending(result)}")


def _undone(carried: Execution, known: Collection[str] = (), where: str = "") -> Iterator[Clause]:
    """What the process still shows of the run after `close_run`, but for what is known already."""
    for text in carried.left:
        if text not in known:
            yield violated(UNDONE, f"{where}{text}; undo it by run.on_close or close_run")


def _after_failure(trials: TrialRuns, trial: Trial, carried: Execution) -> Iterator[Clause]:
    """What a run leaves behind that failed before the plugin's other hooks were called."""
    failed, where = trials.fail(trial), "after a run that failed once processes were prepared: "
    yield from _undone(failed, carried.left, where)
    log = failed.result.log_tail.strip()
    for hook in ("close_run", "on_close"):
        if f"{hook} of {trials.name}\n" in log:
            raised = log.rpartition(f"failed in {hook}: ")[2]
            yield violated(
                UNDONE,
                f"{where}{hook} raised {raised}; it is called always: set in __init__ what it "
                "reads",
            )


def _adapter(trials: TrialRuns, result: Result) -> Clause:
    """Whether `needs_adapter` is what was seen."""
    used = result.experiment.scenario.adapter.use
    if trials.kind.needs_adapter or "adapter" in trials.slots:
        return proven("needs_adapter", f"it runs with the adapter {used!r}")
    if used == "none":
        return proven("needs_adapter", "it runs without an adapter")
    return unproven("needs_adapter", f"`scenario` adds the adapter {used!r}, so this was not tried")


def _gradients(result: Result) -> Clause:
    """Whether every trained module got a gradient in the first step."""
    flow = result.ranks[0].effective.gradient_flow
    if flow is None:
        return unproven("gradient flow", "nothing is trained by torch")
    tensors, reached = flow.trained_tensors, flow.tensors_with_gradient
    return proven("gradient flow", f"{reached} of {tensors} trained tensors got a gradient")


def _evidence(trials: TrialRuns, result: Result) -> Clause:
    """Whether the plugin shows that it acted."""
    shown = result.ranks[0].evidence.get(trials.name)
    metrics = (*result.ranks[0].metrics, *result.metrics)
    # What fills a slot acts in every run; what stands in the stack may have found nothing to do.
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
    """Whether a second run has the same losses, where the plugin says so."""
    name = "same seed, same losses"
    if not trials.kind.deterministic:
        return unproven(name, "`deterministic` is not claimed")
    again = trials.run(trial).result
    if not again.status.completed:
        return violated(name, f"the second run in one process failed: {_ending(again)}")
    # A window that was disturbed is measured again, so that one of them may have more steps.
    pairs = list(zip(losses(result), losses(again), strict=False))
    unequal = [step for step, (first, second) in enumerate(pairs) if first != second]
    if not unequal:
        return proven(name, f"{len(pairs)} losses are equal, bit for bit")
    first, second = pairs[unequal[0]]
    return violated(
        name,
        f"the loss of step {unequal[0]} was {first} and then {second}; draw random numbers from "
        "generators seeded with train.seed, or do not claim `deterministic`",
    )


def _loss(trials: TrialRuns, baseline: Result, result: Result) -> Clause:
    """Whether the loss is the baseline's, by the rule of the reports."""
    name = "loss of the baseline"
    if not set(trials.slots) <= SAME_WORK:
        return unproven(name, f"it fills {', '.join(trials.slots)}: what is trained is its own")
    found = compare_losses({("", 0): baseline}, {("", 0): result})
    reason = found.loss_reason
    declared = trials.kind.loss_tolerance
    rule = "its loss_tolerance" if declared is not None else "it declares no loss_tolerance"
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
    """Whether the result survives being stored."""
    if Result.model_validate_json(result.model_dump_json()) == result:
        return proven("serialisable", "the result is read back as it was")
    return violated("serialisable", "the result is not read back from JSON as it was written")


def _other_settings(trials: TrialRuns, usual: Execution) -> Iterator[Clause]:
    """The other dtypes on the usual model, and the other architectures in the usual dtype."""
    model = usual.result.experiment.scenario.model
    yield proven("dtypes", f"{model.dtype} on {model.id}")
    for dtype in trials.other_dtypes(model.dtype):
        yield from _in_setting(trials, ("dtypes", dtype), trials.plan(dtype=dtype), usual.left)
    for architecture in trials.architectures():
        name = model_of(architecture)
        if name is None:
            yield unproven("architectures", f"no model of the catalog is a {architecture}")
        elif name != model.id:
            setting = ("architectures", architecture)
            yield from _in_setting(trials, setting, trials.plan(model=name), usual.left)
        else:
            yield proven("architectures", architecture)


def _in_setting(
    trials: TrialRuns, setting: tuple[str, str], trial: Trial, known: Collection[str]
) -> Iterator[Clause]:
    """One more pair of runs, and what they show; `known` is left by every run."""
    clause, value = setting
    if trial.plugin.skipped:
        yield violated(clause, f"{value} is declared and refused: {trial.plugin.skipped[0]}")
        return
    baseline = trials.baseline(trial)
    if not baseline.status.completed:
        ending = _ending(baseline)
        yield unproven(clause, f"{value}: not even the baseline runs here: {ending}")
        return
    carried = trials.run(trial)
    result, where = carried.result, _setting(carried.result)
    found = [*_undone(carried, known, f"{where}: ")]
    if not result.status.completed or own_reasons(result):
        found.append(
            violated(clause, f"{value} is declared, and it does not run {where}: {_ending(result)}")
        )
    else:
        seen = (_evidence(trials, result), _loss(trials, baseline, result))
        wrong = [one for one in seen if one.outcome == "violated"]
        found += [violated(one.name, f"{where}: {one.sentence}; {ELSEWHERE}") for one in wrong]
    yield from found or [proven(clause, value)]


def _setting(result: Result) -> str:
    """Where a run took place."""
    scenario = result.experiment.scenario
    return f"on {scenario.model.id} in {scenario.model.dtype} on {scenario.resources.device}"


def _ending(result: Result) -> str:
    """How a run ended, in a line."""
    reasons = own_reasons(result) or list(result.reasons)
    where = f" in {result.phase}" if result.phase else ""
    return f"{result.status.value}{where}: {'; '.join(reasons) or 'no reason given'}"
