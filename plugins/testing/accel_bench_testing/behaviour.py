"""Checks of the plugin contract by runs of a plugin and of its baseline on a tiny model.

A clause is a requirement of the contract with the outcome of its check.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

from accel_bench.catalog.models import list_cards
from accel_bench.errors import AccelBenchError
from accel_bench.result import Result, Status
from accel_bench_testing import result_clauses
from accel_bench_testing.in_process import fail_in_process
from accel_bench_testing.model_clauses import accumulation, model_steps
from accel_bench_testing.process_state import SEEN_THROUGH
from accel_bench_testing.report import RUN, CheckStep, Clause, judged, proven, unproven, violated
from accel_bench_testing.running import needs_processes
from accel_bench_testing.tiny import model_of, models_of_task, shrunk
from accel_bench_testing.trial_runs import TrialRuns, ending_of, losses, own_reasons

UNDONE = "undone at the end"
"""Name of the clause that a run leaves no changes in its process."""

SAME_LOSSES = "same seed, same losses"
"""Name of the clause that a plugin declared `deterministic` repeats its losses."""

ELSEWHERE = "where it cannot work, say so in restricted_model_archs or dtypes"
"""Advice for a violation that occurs only with one dtype or architecture."""

USUAL_ARCHITECTURES = ("LlamaForCausalLM", "GPT2LMHeadModel")
"""Architectures on which a plugin is run if it declares none."""

USUAL_DTYPES = ("float32", "bfloat16")
"""Dtypes with which a plugin is run if it declares none."""


def steps(trials: TrialRuns) -> Iterator[CheckStep]:
    """Yield the check steps that run the plugin: with the usual model and dtype, then with others.

    `trials` makes the runs when they are needed, and keeps them for later steps. In a new process
    they are made again.
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
    if "model" in trials.slots:
        yield from model_steps(trials)
    if "task" in trials.slots:
        yield "accumulation", lambda: [accumulation(trials)]
    yield from _other_settings(trials)


def _runs(trials: TrialRuns) -> Iterator[Clause]:
    """Run the plugin with the usual model and dtype, and yield the clauses. If the run fails, find
    out whether the plugin needs something undeclared, such as an adapter."""
    if obstacle := _obstacle(trials):
        yield obstacle
        return
    result = trials.execution.result
    where = _setting(result)
    failed = [f"{where}: {ending_of(result)}"] if _failed(result) else []
    yield from judged(RUN, failed, f"ok {where}")
    if not result.status.completed:
        yield from result_clauses.cut_gradient(result)
        yield from result_clauses.missing_adapter(trials, result)


@cache
def _obstacle(trials: TrialRuns) -> Clause | None:
    """Return a clause with the reason why the plugin cannot be run at all, or None if it can."""
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
    """Check the process for changes left by a complete run, and by a run that fails early; return
    the clauses."""
    execution = trials.execution
    left = [*_left(execution.left)]
    if execution.result.status.completed:
        left += _left_by_a_failure(trials)
    return judged(UNDONE, left, f"as before: {SEEN_THROUGH}")


def _shown(trials: TrialRuns) -> Iterator[Clause]:
    """Yield the clauses that the result of the run with the usual model and dtype can prove."""
    result = trials.execution.result
    replaced = [
        f"{text} while the window was measured; what measures must be left alone"
        for text in trials.execution.replaced
    ]
    yield from judged("what measures", replaced, "nothing of it was replaced in the window")
    yield from result_clauses.output(trials, result)
    yield result_clauses.adapter(trials, result)
    yield result_clauses.gradients(result)
    yield result_clauses.evidence(trials, result)
    yield from result_clauses.own_steps(trials, result)
    yield from result_clauses.training(trials, trials.baseline(trials.usual), result)
    yield result_clauses.serialised(result)


def _cannot_be_tried(trials: TrialRuns) -> str:
    """Return why the plugin cannot run on this device or in a single process, or an empty
    string."""
    devices = trials.kind.devices
    if devices is not None and trials.device not in devices:
        listed = ", ".join(sorted(devices))
        return (
            f"devices are {listed} and this is {trials.device}: check_plugin(device=...) proves it "
            "where there is one"
        )
    return needs_processes(trials.name, trials.slots)


def _no_baseline(trials: TrialRuns, baseline: Result) -> Clause:
    """Return the clause for a failed baseline run: a faulty scenario, or a setting that this
    machine does not support."""
    if not trials.scenario and baseline.status is Status.INVALID:
        return unproven(
            RUN, f"not even the baseline runs {_setting(baseline)}: {ending_of(baseline)}"
        )
    return violated(RUN, f"even without the plugin: {ending_of(baseline)}; mend `scenario`")


def _left(texts: Collection[str], known: Collection[str] = (), where: str = "") -> Iterator[str]:
    """Yield sentences on changes that a run left in the process, except the `known` changes.

    `texts` describe the changes, and `where` begins each sentence.
    """
    for text in texts:
        if text not in known:
            yield f"{where}{text}; undo it by run.on_close or close_run"


def _left_by_a_failure(trials: TrialRuns) -> Iterator[str]:
    """Yield sentences on changes left in the process, and errors of closing hooks, after a run that
    fails before the plugin's other hooks."""
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


def _repeated(trials: TrialRuns) -> Clause:
    """Check that a second run of a plugin declared deterministic has equal losses; return the
    outcome as a clause."""
    name, result = SAME_LOSSES, trials.execution.result
    if not trials.kind.deterministic:
        return unproven(name, "`deterministic` is not claimed")
    again = trials.run(trials.usual).result
    if not again.status.completed:
        return violated(name, f"the second run in one process failed: {ending_of(again)}")
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


def _other_settings(trials: TrialRuns) -> Iterator[CheckStep]:
    """Yield check steps that run the plugin with other dtypes on the usual model, and on other
    architectures."""
    model, kind = trials.usual.plugin.experiment.scenario.model, trials.kind
    usual = f"{model.dtype} on {model.id}"
    yield "dtypes", lambda: [proven("dtypes", usual)]
    dtypes = sorted(kind.dtypes or USUAL_DTYPES) if trials.dtypes is None else trials.dtypes
    for dtype in dtypes:
        if dtype != model.dtype:
            yield "dtypes", partial(_in_setting, trials, "dtypes", dtype, {"dtype": dtype})
    declared = sorted(kind.restricted_model_archs or _usual_architectures(trials))
    for architecture in declared if trials.archs is None else trials.archs:
        yield "architectures", partial(_architecture, trials, architecture)


def _usual_architectures(trials: TrialRuns) -> Sequence[str]:
    """Return the names of the architectures on which a plugin is run if it declares none."""
    if "task" not in trials.slots:
        return USUAL_ARCHITECTURES
    cards = list_cards()
    names = dict.fromkeys(cards[name].architecture for name in models_of_task(trials.name))
    return [*names][: len(USUAL_ARCHITECTURES)]


def _architecture(trials: TrialRuns, architecture: str) -> Iterable[Clause]:
    """Run the plugin on the catalog's smallest model of an architecture, and return the clauses."""
    name = model_of(architecture)
    if name is None:
        return [unproven("architectures", f"no model of the catalog is a {architecture}")]
    scenario, task = trials.usual.plugin.experiment.scenario, list_cards()[name].task
    if name == scenario.model.id:
        return [proven("architectures", architecture)]
    if task != scenario.task.use:
        way_out = f"scenario={{'task': '{task}', 'model': {{'id': '{name}'}}, 'data': ...}}"
        return [unproven("architectures", f"{architecture} is trained by task {task}: {way_out}")]
    model = {"id": name, "overrides": shrunk(name)}
    return _in_setting(trials, "architectures", architecture, model)


def _in_setting(
    trials: TrialRuns, clause: str, value: str, model: Mapping[str, Any]
) -> Iterator[Clause]:
    """Run plugin and baseline with other model settings `model`, and yield the clauses.

    `clause` is the name of the clause to prove, and `value` the tried dtype or architecture.
    """
    trial = trials.plan(model=model)
    if trial.plugin.skipped:
        yield violated(clause, f"{value} is declared and refused: {trial.plugin.skipped[0]}")
        return
    baseline = trials.baseline(trial)
    if not baseline.status.completed:
        ending = ending_of(baseline)
        yield unproven(clause, f"{value}: not even the baseline runs here: {ending}")
        return
    execution = trials.run(trial)
    result, where = execution.result, _setting(execution.result)
    clauses = [
        violated(UNDONE, text)
        for text in _left(execution.left, trials.execution.left, f"{where}: ")
    ]
    if _failed(result):
        clauses.append(
            violated(
                clause, f"{value} is declared, and it does not run {where}: {ending_of(result)}"
            )
        )
    else:
        tried = (
            result_clauses.evidence(trials, result),
            *result_clauses.training(trials, baseline, result),
        )
        wrong = [checked for checked in tried if checked.outcome == "violated"]
        clauses += [
            violated(checked.name, f"{where}: {checked.sentence}; {ELSEWHERE}") for checked in wrong
        ]
    yield from clauses or [proven(clause, value)]


def _failed(result: Result) -> bool:
    return not result.status.completed or bool(own_reasons(result))


def _setting(result: Result) -> str:
    scenario = result.experiment.scenario
    return f"on {scenario.model.id} in {scenario.model.dtype} on {scenario.resources.device}"
