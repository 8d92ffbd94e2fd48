"""`accel-bench fit`: find the largest batch, length or other number that fits in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from accel_bench.analysis.wording import finding_words, milliseconds, rate_interval, settings, size
from accel_bench.cli.options import PlanOptions, takes
from accel_bench.cli.output import print_aside, print_report
from accel_bench.cli.request import Invocation, plan_request, single_draft
from accel_bench.errors import ScenarioError
from accel_bench.planning.plan import Plan
from accel_bench.report.table import Column, Report, Section, Table, columns_of, reader
from accel_bench.runner.interrupted import open_results
from accel_bench.scenario.draft import AXES, Draft, look_up
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.models import Scenario
from accel_bench_search.fit_report import (
    FitPoint,
    FitReport,
    SearchRange,
    fit_point,
    fit_report,
    next_value,
)
from accel_bench_search.trial import StackPlans, TrialRunner


@dataclass(frozen=True, kw_only=True)
class FitOptions(PlanOptions):
    """Command-line options of `accel-bench fit`."""

    scenario: Annotated[
        str, typer.Argument(help="A scenario file, or a shipped scenario's name.")
    ] = "quickstart"
    vary: Annotated[
        str, typer.Option(metavar="KEY", help="The key, such as data.sequence_length.")
    ] = "train.micro_batch_size"
    stack: Annotated[str | None, typer.Option(help="The stack to run; else the baseline.")] = None
    first: Annotated[
        int | None,
        typer.Option("--from", min=1, help="The first value to try; else the scenario's own."),
    ] = None
    most: Annotated[
        int | None, typer.Option("--max", min=1, metavar="N", help="The largest value to try.")
    ] = None
    step: Annotated[
        int, typer.Option(min=1, help="Distance of two values at which the search ends.")
    ] = 1
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds in which the largest that fits is measured.")
    ] = 1
    again: Annotated[
        bool, typer.Option("--again", help="Run values again that are stored already.")
    ] = False


@takes(FitOptions)
def fit(options: FitOptions) -> int:
    """Find the largest value of a key with which a stack fits in memory, by real runs.

    Values are doubled until one runs out of memory, then the gap is halved; nothing above one that
    does not fit is run. Each run is stored, and a stored value is not run again, so that the same
    command goes on where it was stopped. A failure of any other kind ends the search with its
    reason and exit code 1.
    """
    draft = single_draft(options.scenario, "fit")
    request = plan_request(options, {}, no_baseline=True)
    with Invocation(options).allocated([draft], request) as invoked:
        return _search(options, StackPlans.laid(draft, request, options.stack, invoked), invoked)


def _search(options: FitOptions, plans: StackPlans, invoked: Invocation) -> int:
    draft = plans.draft
    experiment = plans.of_stack(first_swept(draft, options.vary)).single.experiment
    scenario = experiment.scenario
    start = options.first or start_of(scenario, options.vary)
    start = min(start, options.most or start)
    kept = dict(freed(draft, options.vary, scenario))
    if options.dry_run:
        invoked.show([plans.of_stack({**kept, options.vary: start})])
        return 0
    where = SearchRange(start=start, most=options.most, step=options.step)
    with open_results(options.results, write=True) as store:
        with invoked.sessions(store) as new_session:
            report = FitSearch(
                options,
                TrialRunner(store, invoked.machine, new_session, options.again),
                lambda changes: plans.of_stack({**kept, **changes}),
                experiment,
                where,
            ).search()
    if kept:
        note = f"train.global_batch_size is left open for the search: {settings(kept)}"
        report = report.model_copy(update={"notes": (note, *report.notes)})
    print_report(fit_view(report), options.output)
    return report.exit_code


MakePlan = Callable[[Mapping[str, Any]], Plan]
"""Function that plans the stack with changed values of dotted keys; None unsets a key."""

MICRO_BATCH, TOTAL = "train.micro_batch_size", "train.global_batch_size"


@dataclass(frozen=True)
class FitSearch:
    """Search for the largest value of one key with which one stack fits in memory."""

    options: FitOptions
    runner: TrialRunner
    make_plan: MakePlan
    experiment: Experiment
    """Experiment of the stack in the scenario."""

    range: SearchRange

    def search(self) -> FitReport:
        """Try values until the largest fitting one is known, and return the report on them.

        Each finished run is stored.
        """
        points: list[FitPoint] = []
        measured: set[int] = set()
        while True:
            while (value := next_value(points, self.range)) is not None:
                points.append(self._try(value))
            names = self.experiment.scenario.name, self.experiment.stack.name
            report = fit_report(*names, self.options.vary, self.range, points)
            best = report.largest
            if best is None or report.failed or self.options.rounds == 1 or best.value in measured:
                return report
            # One that runs out of memory in a later round leaves a gap to search.
            measured.add(best.value)
            points[points.index(best)] = self._measure(best)

    def _try(self, value: int) -> FitPoint:
        key = self.options.vary
        if not self.options.quiet:
            print_aside(f"{key} = {value:,}")
        plan = self.make_plan({key: value})
        planned = plan.single
        check_value(planned.experiment.scenario, key, value)
        need = planned.need
        if need is not None and not need.fits and not self.options.force:
            has = size(need.available_bytes or 0)
            reason = f"it needs {need.describe()}, and there are {has} (not run; --force runs it)"
            return FitPoint(value=value, outcome="does not hold", reason=reason)
        run, stored = self.runner.run(plan)
        return fit_point(value, [run], stored)

    def _measure(self, point: FitPoint) -> FitPoint:
        """Run all rounds of a fitting value; return it with its speed over these rounds."""
        rounds = self.options.rounds
        plan = self.make_plan({self.options.vary: point.value, "measure.rounds": rounds})
        session = self.runner.new_session(resume=True)
        session.run_plan(plan)
        runs = self.runner.store.results(experiment_ids=[plan.single.experiment.id])
        first = next(n for n, run in enumerate(runs) if run.run_id == point.run_id)
        # What ran out of memory before the run that fits was outdone by it.
        counted = [
            run
            for n, run in enumerate(runs)
            if run.session == session.id
            or (self.runner.counts(run) and (run.status.completed or n >= first))
        ]
        return fit_point(point.value, counted, point.stored)


def check_value(scenario: Scenario, key: str, value: Any) -> None:
    """Raise ScenarioError if a stack sets the key itself, so that the value has no effect."""
    is_set, actual = look_up(scenario.model_dump(), key)
    if is_set and actual != value:
        raise ScenarioError(
            f"{key}={value!r} has no effect: the stack sets it to {actual!r}; choose another "
            "--stack, or another key"
        )


def start_of(scenario: Scenario, key: str) -> int:
    """Return the scenario's own value of a dotted key, with which a search starts.

    Raises ScenarioError if it is no whole number above 0.
    """
    is_set, value = look_up(scenario.model_dump(), key)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    what = f"is {value!r} here" if is_set and value is not None else "has no value here"
    raise ScenarioError(
        f"--vary {key}: it {what}, and a search needs a whole number above 0 to begin with; give "
        "one with --from, or name a key such as train.micro_batch_size or data.sequence_length"
    )


def first_swept(draft: Draft, key: str) -> dict[str, Any]:
    """Return `{key: value}` with the first value of the scenario's sweep over a key; else {}."""
    axes = (draft.data.get(axis) or {} for axis in AXES)
    swept = next((axis[key] for axis in axes if isinstance(axis, dict) and key in axis), None)
    return {key: swept[0]} if isinstance(swept, list) and swept else {}


def freed(draft: Draft, key: str, scenario: Scenario) -> Iterator[tuple[str, Any]]:
    """Yield changes of other settings, as (dotted key, value), that let `key` have any value.

    A stated global batch size limits the micro-batch size. It is therefore unset (None), and the
    gradient accumulation is fixed as in `scenario`. For other keys nothing is yielded.
    """
    if key == MICRO_BATCH and draft.get(TOTAL) is not None:
        yield TOTAL, None
        yield "train.gradient_accumulation", scenario.train.gradient_accumulation


FITS = finding_words("fits", "does not fit", untested="failed")
"""Words for the verdicts on whether a value fits."""


def fit_view(report: FitReport) -> Report:
    """Return a printable report with the answer and a row for each value, the smallest first."""
    rows = sorted(report.points, key=lambda point: point.value)
    section = Section(
        title=report.scenario,
        headline=report.answer,
        tables=[Table(_columns(report), rows)],
        notes=[*report.notes, *map(_reason, (p for p in rows if p.reason))],
    )
    return Report([section], report, Table(FLAT, rows))


def _columns(report: FitReport) -> list[Column]:
    at_a_rate = any(point.offered_rate is not None for point in report.points)
    latency = Column("median request", reader("request_seconds.median"), unit="ms",
                     form=milliseconds, kind="number")  # fmt: skip
    return [
        Column(report.key, reader("value"), form="{:,}".format, kind="number"),
        Column("outcome", reader("outcome"), form=FITS.__getitem__, kind="word"),
        *([latency] if at_a_rate else []),
        Column("speed", reader("tokens_per_second"), "", "tokens/s", rate_interval, "number"),
        Column("memory", reader("peak_memory_bytes"), "", "peak", size, "number"),
        Column("run", _source, kind="name", rank=1),
    ]


def _source(point: FitPoint) -> str:
    if not point.run_id:
        return "not run"
    return f"{point.run_id} (stored already)" if point.stored else point.run_id


def _reason(point: FitPoint) -> str:
    return f"{point.value:,} {FITS[point.outcome]}: {point.reason}"


FLAT = columns_of(FitPoint)
"""CSV columns of `fit`."""
