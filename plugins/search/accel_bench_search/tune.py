"""`accel-bench tune`: find the settings of a stack that train fastest, or best in a given time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from accel_bench.analysis.metrics.offered_load import offered_rate
from accel_bench.analysis.tables.experiment_keys import changes_task
from accel_bench.cli.options import Names, PlanOptions, takes
from accel_bench.cli.output import print_report
from accel_bench.cli.request import Invocation, plan_request, single_draft
from accel_bench.errors import AccelBenchError, ScenarioError
from accel_bench.runner.interrupted import open_results
from accel_bench.scenario.models import Scenario
from accel_bench_search.study import Axis, open_study, parse_axis, require_optuna
from accel_bench_search.trial import StackPlans, TrialRunner
from accel_bench_search.trial_judgement import with_answer
from accel_bench_search.tune_report import Objective, Unit, tune_view
from accel_bench_search.tune_search import TuneSearch, TuneTask

UNITS: tuple[Unit, ...] = ("seconds", "dollars", "tokens")

RATE = "inference.rate"
"""Key of the request rate, which cannot be tuned."""

MEMORY = "peak_memory_bytes"
"""Name of the metric that a search may limit."""


@dataclass(frozen=True, kw_only=True)
class TuneOptions(PlanOptions):
    """Command-line options of `accel-bench tune`."""

    scenario: Annotated[str, typer.Argument(help="A scenario file, or a shipped scenario's name.")]
    vary: Annotated[
        Names,
        typer.Option(
            metavar="KEY=SPEC",
            help="What to tune: KEY=1..64, KEY=1e-5..1e-2:log or KEY=a,b,c; may be repeated.",
        ),
    ] = None
    objective: Annotated[
        Literal["tokens_per_second", "loss"],
        typer.Option(
            help="What to improve: speed at an equivalent loss (where requests arrive at a rate, "
            "the median latency), or the loss."
        ),
    ] = "tokens_per_second"
    until: Annotated[
        str | None,
        typer.Option(
            metavar="UNIT=N",
            help="Where the loss is read: seconds=60, dollars=0.5 or tokens=1e6.",
        ),
    ] = None
    price: Annotated[
        float | None,
        typer.Option(help="US dollars for an hour of all machines, for --until dollars=N."),
    ] = None
    metric_below: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC=V", help="Largest memory of a device: peak_memory_bytes=16GiB."
        ),
    ] = None
    stack: Annotated[str | None, typer.Option(help="The stack to tune; else the baseline.")] = None
    trials: Annotated[int, typer.Option(min=1, help="Trials of the study in all.")] = 20
    check_rounds: Annotated[
        int,
        typer.Option(min=5, help="Rounds, or seeds, in which the winner meets the baseline."),
    ] = 5
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0


@takes(TuneOptions)
def tune(options: TuneOptions) -> int:
    """Search for the settings with which a stack trains fastest, or best in a given time.

    A trial that runs out of memory is no failure, and no larger values are run. Each trial is a
    real run that is stored, with its verdicts. The study is kept in the results database, so that
    the same command goes on where it was stopped. The winner is run again, interleaved with the
    baseline, before it is called better.

    Needs Optuna: pip install 'accel-bench[tune]'.
    """
    require_optuna()
    axes = [parse_axis(text) for text in options.vary or ()]
    if not axes:
        raise ScenarioError(
            "tune needs --vary KEY=SPEC, such as train.learning_rate=1e-5..1e-2:log"
        )
    if len({axis.key for axis in axes}) < len(axes):
        raise ScenarioError("--vary names a key twice; give each key once")
    objective = parse_objective(options)
    if objective.goal == "loss":
        _refuse_tasks(axes)
    draft = single_draft(options.scenario, "tune")
    request = plan_request(options, {})
    with Invocation(options).allocated([draft], request) as invoked:
        plans = StackPlans.laid(draft, request, options.stack, invoked)
        plan = plans.of_stack({})
        experiment = plan.single.experiment
        task = TuneTask(axes, _at_the_rate(objective, experiment.scenario, axes), plans, experiment)
        _check_ends(task)
        if options.dry_run:
            invoked.show([plan])
            return 0
        return _run(options, task, invoked)


def parse_objective(options: TuneOptions) -> Objective:
    """Return the objective that the options define.

    Raises ScenarioError for options that are invalid or contradict each other.
    """
    memory = parse_memory(options.metric_below) if options.metric_below else None
    if options.objective != "loss":
        if options.until or options.price is not None:
            raise ScenarioError("--until and --price belong to --objective loss")
        return Objective(goal=options.objective, memory_below_bytes=memory)
    unit, _, text = (options.until or "").partition("=")
    kind = next((name for name in UNITS if name == unit.strip()), None)
    amount = _positive(text)
    if kind is None or amount is None:
        raise ScenarioError(
            f"--until {options.until}: the loss is read at seconds=N, dollars=N or tokens=N, such "
            "as --until seconds=60"
        )
    if (kind == "dollars") != (options.price is not None):
        raise ScenarioError("--until dollars=N needs --price, dollars for an hour of all machines")
    if options.price is not None and not 0 < options.price < float("inf"):
        raise ScenarioError(f"--price must be a positive number, not {options.price}")
    return Objective(
        goal="loss",
        unit=kind,
        amount=amount,
        usd_per_hour=options.price,
        memory_below_bytes=memory,
    )


def _refuse_tasks(axes: Sequence[Axis]) -> None:
    """Raise ScenarioError for a key of data or model, whose values change what a loss means."""
    if key := next((axis.key for axis in axes if changes_task(axis.key)), None):
        raise ScenarioError(
            f"--vary {key} with --objective loss: losses on other data, or of another model, are "
            "of other tasks; tune them for speed, or vary what only changes the training"
        )


def _at_the_rate(objective: Objective, scenario: Scenario, axes: Sequence[Axis]) -> Objective:
    """Return the objective, with latency in place of speed if the scenario's requests have a rate.

    Raises ScenarioError for a search over the rate, or for a loss if nothing is trained.
    """
    if scenario.generates and not objective.is_speed:
        raise ScenarioError("--objective loss: a model that answers requests has no loss")
    if offered_rate(scenario) is None:
        return objective
    if any(axis.key == RATE for axis in axes):
        raise ScenarioError(
            f"--vary {RATE}: fewer requests are always answered sooner; sweep the rate with `run`"
        )
    return objective.model_copy(update={"goal": "request_seconds"})


def parse_memory(text: str) -> int:
    """Return the bytes in text such as `peak_memory_bytes=16GiB`.

    Raises ScenarioError for other text.
    """
    metric, _, size = text.partition("=")
    try:
        limit = TypeAdapter(ByteSize).validate_python(size.strip())
    except ValidationError:
        limit = ByteSize(0)
    if metric.strip() != MEMORY or limit <= 0:
        raise ScenarioError(f"--metric-below {text}: tune limits memory; write {MEMORY}=16GiB")
    return int(limit)


def _positive(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < float("inf") else None


def _check_ends(task: TuneTask) -> None:
    """Raise a plan's error if neither the first nor the last values of the axes can be planned."""
    errors = []
    for end in (0, 1):
        try:
            task.plans.trial({axis.key: axis.ends[end] for axis in task.axes}, {})
            return
        except AccelBenchError as error:
            errors.append(error)
    raise errors[0]


def _run(options: TuneOptions, task: TuneTask, invoked: Invocation) -> int:
    name, seed = task.study_name(options.seed), options.seed
    own, maximize = task.own, task.objective.better > 0
    with (
        open_results(options.results, write=True) as store,
        open_study(store, name, task.axes, seed, maximize) as study,
        invoked.sessions(store) as new_session,
    ):
        runner = TrialRunner(store, invoked.machine, new_session)
        search = TuneSearch(runner, study, task, options.quiet, options.force)
        search.notify(f"study {name}: {len(study.trials())} of {options.trials} trials are stored")
        if all(axis.key in own and axis.holds(own[axis.key]) for axis in task.axes):
            study.try_first(own)
        report = with_answer(search.report(options.trials, options.check_rounds))
    print_report(tune_view(report), options.output)
    return report.exit_code
