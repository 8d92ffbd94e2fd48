"""`accel-bench run`: measure the stacks of scenarios and compare them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import typer

from accel_bench.analysis.race import race_looks
from accel_bench.analysis.schema import Summary
from accel_bench.analysis.statistics.sequential import GATE_CODES
from accel_bench.analysis.statistics.verdict import MINIMUM_ROUNDS
from accel_bench.analysis.summary import exit_code, judge_row
from accel_bench.cli.options import (
    CompareOption,
    MeasureOptions,
    Names,
    parse_fraction,
    parse_seconds,
    takes,
)
from accel_bench.cli.output import form_of_output, print_aside, print_text
from accel_bench.cli.request import Invocation, plan_request, run_plans
from accel_bench.documents.escaping import plain
from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.planning.plan import Plan, PlanRequest
from accel_bench.planning.sizes import plan_with_sizes
from accel_bench.report.formats import render
from accel_bench.runner.benchmark import WITHIN
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.find import find_drafts
from accel_bench.scenario.sweep import is_excluded


@dataclass(frozen=True, kw_only=True)
class RunCommandOptions(MeasureOptions):
    """Options of `run`."""

    files: Annotated[
        Names,
        typer.Argument(help="Scenario files, folders of them, or names of shipped scenarios."),
    ] = None
    only: Annotated[Names, typer.Option(help="Run [SCENARIO/]STACK alone, with the baseline.")] = (
        None
    )
    tag: Annotated[
        Names, typer.Option(help="Run only the sweep point with this tag; * is any text.")
    ] = None
    reference_point: Annotated[
        str | None,
        typer.Option(metavar="TAG", help="Compare sweep points with this; else the first."),
    ] = None
    rounds: Annotated[
        str | None,
        typer.Option(metavar="N|auto", help="Rounds; auto adds some while a verdict is open."),
    ] = None
    within: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time for rounds that auto adds; else 3min.")
    ] = None
    seeds: Annotated[
        int | None,
        typer.Option(min=2, help="Train with this many seeds and compare the losses at the end."),
    ] = None
    family: Annotated[
        str | None,
        typer.Option(help="Run each model of the catalog of this family, such as text-encoder."),
    ] = None
    repeat_round: Annotated[
        int | None,
        typer.Option(min=1, help="With --resume: measure a round again that a slow run spoils."),
    ] = None
    no_baseline: Annotated[bool, typer.Option("--no-baseline", help="Leave the baseline out.")] = (
        False
    )
    race: Annotated[
        bool,
        typer.Option("--race", help="Drop stacks that are surely not the best after 5, 10, 20 ..."),
    ] = False
    compare: CompareOption = None
    fail_if_slower: Annotated[
        str | None,
        typer.Option(metavar="FRACTION", help="Exit with 4 for a stack slower by more, 5 if open."),
    ] = None
    section: Annotated[
        Names, typer.Option(help="Show this section of another distribution as well.")
    ] = None
    interleave: Annotated[
        bool,
        typer.Option("--interleave", help="Run each round of all sweep points before the next."),
    ] = False
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Print where the time goes and what each stack is."),
    ] = False


@takes(RunCommandOptions)
def run(options: RunCommandOptions) -> int:
    """Measure acceleration stacks side by side and compare them.

    Without a file it runs the shipped quickstart; with --plugin, only its baseline and that plugin.
    The baseline always runs too, unless --no-baseline is given.
    """
    if options.repeat_round and not options.resume:
        raise ScenarioError(
            f"--repeat-round {options.repeat_round} needs --resume: the other rounds stay as stored"
        )
    within = WITHIN if options.within is None else parse_seconds(options.within, "--within")
    judge = _judge(options)
    request = run_request(options)
    with redirect_stdout(sys.stderr):  # what a plugin prints is no part of the document
        drafts = _chosen_drafts(find_drafts(options.files or ["quickstart"]), request)
    with Invocation(options, within=within).allocated(drafts, request) as invoked:
        return _plan_and_run(drafts, request, options, invoked, judge)


def _chosen_drafts(drafts: Sequence[Draft], request: PlanRequest) -> list[Draft]:
    """Return the scenarios that have a stack to run under `--only`. Raises ScenarioError if
    `--only` names an unknown scenario."""
    names = [str(draft.get("name")) for draft in drafts]
    for name in request.only:
        scenario = name.rpartition("/")[0]
        if scenario and scenario not in names:
            raise ScenarioError(
                f"--only {name}: no scenario is called {scenario!r}{did_you_mean(scenario, names)}"
            )
    both = zip(names, drafts, strict=True)
    return [draft for name, draft in both if not request.leaves_out(name)]


def _judge(options: RunCommandOptions) -> Callable[[Sequence[Summary]], int]:
    """Return the function that computes the command's exit code from summaries. Raises
    ScenarioError for `--fail-if-slower` without a baseline."""
    if options.fail_if_slower is None:
        return exit_code
    if options.no_baseline:
        raise ScenarioError("--fail-if-slower needs the baseline; leave --no-baseline out")
    floor = parse_fraction(options.fail_if_slower, "--fail-if-slower")
    return partial(_gated_code, floor=floor)


def run_request(options: RunCommandOptions) -> PlanRequest:
    """Return the planner's request for the options of `accel-bench run`."""
    request = plan_request(
        options,
        {"measure.rounds": parse_rounds(options.rounds), "measure.compare": options.compare},
        only=tuple(options.only or ()),
        seeds=options.seeds or 0,
        family=options.family or "",
        no_baseline=options.no_baseline,
        build_environments=not options.dry_run,
        tags=tuple(options.tag or ()),
        reference_point=options.reference_point or "",
        race=options.race,
        sections=tuple(options.section or ()),
    )
    # Who names a plugin and no file wants that one beside the baseline of the quickstart.
    added = () if options.files else request.plugins
    return replace(request, only=(*request.only, *added))


def parse_rounds(text: str | None) -> int | str | None:
    """Return the number of rounds, `auto`, or None for None. Raises ScenarioError for others."""
    if text is None or text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise ScenarioError(f"--rounds {text!r} is neither a number from 1 nor auto")
    return int(text)


def _plan_and_run(
    drafts: Sequence[Draft],
    request: PlanRequest,
    options: RunCommandOptions,
    invoked: Invocation,
    judge: Callable[[Sequence[Summary]], int],
) -> int:
    """Plan all scenarios, run the plans, and return the exit code that `judge` computes."""
    tries = not options.dry_run
    with redirect_stdout(sys.stderr):
        plans = [plan_with_sizes(draft, invoked.machine, request, tries) for draft in drafts]
    if request.race:
        _refuse_idle_race(plans)
    if options.fail_if_slower is not None:
        _refuse_idle_gate(plans)
    if options.within is not None and not any(plan.adds_rounds for plan in plans):
        raise ScenarioError("--within is the time for rounds that auto adds: give --rounds auto")

    def show(summaries: Sequence[Summary]) -> None:
        print_text(render(summaries, form_of_output(options.output), options.verbose).rstrip("\n"))

    again = {"repeat_round": options.repeat_round - 1} if options.repeat_round else {}
    return run_plans(plans, invoked, show, judge, interleave=options.interleave, **again)


def _gated_code(summaries: Sequence[Summary], floor: float) -> int:
    """Return the exit code of `--fail-if-slower`, and print why a stack failed. `floor` is the
    fraction by which a stack may be slower than the baseline."""
    codes = set()
    for summary in summaries:
        for row in summary.experiments:
            if row.stack != summary.baseline and not is_excluded(row.reasons):
                outcome, reason = judge_row(row, summary.baseline, floor)
                codes.add(GATE_CODES[outcome])
                if outcome != "passed":
                    print_aside(plain(reason))
    nothing_judged = GATE_CODES["inconclusive"]
    return exit_code(summaries) or min(codes - {0}, default=0 if codes else nothing_judged)


def _refuse_idle_gate(plans: Sequence[Plan]) -> None:
    """Raise ScenarioError if `--fail-if-slower` is given and only the baseline would run."""
    stacks = (
        (planned.experiment.stack.name, plan.baseline) for plan in plans for planned in plan.planned
    )
    if all(name == baseline for name, baseline in stacks):
        raise ScenarioError(
            "--fail-if-slower compares stacks with the baseline, and there is only the baseline"
        )


def _refuse_idle_race(plans: Sequence[Plan]) -> None:
    """Raise ScenarioError if `--race` is given with too few stacks or rounds to drop a stack."""
    for plan in plans:
        rounds = plan.rounds
        if plan.request.no_baseline:
            raise ScenarioError(
                "--race needs the baseline: what trains otherwise than it may drop no stack; leave "
                "--no-baseline out"
            )
        if not race_looks(rounds):
            auto = " at first, since they are auto" * plan.adds_rounds
            raise ScenarioError(
                f"--race drops stacks after {MINIMUM_ROUNDS}, {2 * MINIMUM_ROUNDS}, "
                f"{4 * MINIMUM_ROUNDS} ... rounds, and there are {rounds}{auto}; give more, "
                f"such as --rounds {4 * MINIMUM_ROUNDS}"
            )
