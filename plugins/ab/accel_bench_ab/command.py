"""`accel-bench ab`: compare training commands, and any other commands."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import typer
import yaml

from accel_bench.analysis.quantity import QUANTITIES
from accel_bench.analysis.schema import Summary
from accel_bench.analysis.wording import join_names
from accel_bench.cli.options import CompareOption, MeasureOptions, Names, parse_seconds, takes
from accel_bench.cli.output import form_of_output, print_aside, print_text
from accel_bench.cli.request import Invocation, plan_request, run_plans
from accel_bench.cli.run import parse_rounds
from accel_bench.documents.escaping import plain, printable
from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.planning.plan import PlanRequest
from accel_bench.report.formats import render
from accel_bench.runner.benchmark import WITHIN
from accel_bench_ab.figures import JSON, OWN_METRICS
from accel_bench_ab.scenario import CommandSettings, NamedCommand
from accel_bench_ab.session import (
    commands_draft,
    counted_by,
    in_their_dtypes,
    plan_commands,
    see,
)
from accel_bench_ab.variants import compared_commands


@dataclass(frozen=True, kw_only=True)
class ObserverOptions:
    """Options of `accel-bench ab` and `bisect`: how a command is observed, and its figures."""

    by: Annotated[
        Literal["auto", "tokens", "steps", "wall"],
        typer.Option(help="Count tokens, optimizer steps or whole runs; auto looks at them first."),
    ] = "auto"
    steps: Annotated[
        int, typer.Option(min=0, metavar="N", help="End a command after N measured steps.")
    ] = 0
    metric: Annotated[
        Names,
        typer.Option(
            metavar="NAME=WHERE",
            help="A figure of a command's own: a REGEX of its output, or json:[FILE#]PATH.",
        ),
    ] = None
    higher: Annotated[
        Names, typer.Option(metavar="NAME", help="A metric of which more is better.")
    ] = None
    compare: CompareOption = None
    no_observe: Annotated[
        bool, typer.Option("--no-observe", help="Leave the observer out; compare by wall time.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class AbOptions(ObserverOptions, MeasureOptions):
    """Command-line options of `accel-bench ab`."""

    commands: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND -- COMMAND", help="Commands, each behind a `--`."),
    ]
    vary: Annotated[
        Names,
        typer.Option(metavar="NAME=A,B", help="Run commands with each value for their {NAME}."),
    ] = None
    ref: Annotated[
        str | None,
        typer.Option(metavar="OLD..NEW", help="Run in work trees of two revisions, by git."),
    ] = None
    env: Annotated[
        str | None,
        typer.Option(
            metavar="OLD..NEW", help="Run in two environments: their folders, or pip's lock files."
        ),
    ] = None
    rounds: Annotated[
        str | None,
        typer.Option(metavar="N|auto", help="Rounds; auto adds some while a verdict is open."),
    ] = None
    within: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time for rounds that auto adds; else 3min.")
    ] = None
    save: Annotated[
        typer.FileTextWrite | None,
        typer.Option(
            metavar="FILE", help="Write the scenario, for `run` and `gate`; run no rounds."
        ),
    ] = None


@takes(AbOptions)
def ab(options: AbOptions) -> int:
    """Compare training commands in fresh processes that take turns; the first is the baseline.

    The commands are not changed: an observer in their processes sees the steps of torch's
    optimizers, and their tokens, losses and weights. The output names what the observer cannot see.
    Any command can be compared by wall time.
    """
    if "--" in sys.argv and sys.argv[-len(options.commands) - 1 :] != ["--", *options.commands]:
        raise ScenarioError(  # The parser has dropped a `--` between two commands.
            "each command stands behind a `--`, the first one too: accel-bench ab -- A ... -- B ..."
        )
    request = plan_request(options, {"measure.rounds": parse_rounds(options.rounds)})
    within = WITHIN if options.within is None else parse_seconds(options.within, "--within")
    invoked = Invocation(options, within=within)
    if options.save is not None and options.ref is not None:
        raise ScenarioError(
            "--save cannot name the work trees of --ref, which go with the session; make lasting "
            "ones by `git worktree add`, and give their commands"
        )
    with compared_commands(
        options.commands, options.vary or (), options.ref, options.env
    ) as commands:
        return _compare(commands, options, invoked, request)


def _compare(
    commands: Sequence[NamedCommand], options: AbOptions, invoked: Invocation, request: PlanRequest
) -> int:
    """Run the commands and print their comparison, or save their scenario; return the exit code."""
    settings, commands = _looked_at(commands, settings_of(options), options, invoked, request)
    if options.save is not None:
        draft = commands_draft(commands, settings)
        draft.override(request.overrides)
        options.save.write(printable(yaml.safe_dump(draft.data, sort_keys=False)))
        return 0
    plan = plan_commands(commands, settings, invoked, request)

    def show(summaries: Sequence[Summary]) -> None:
        print_text(render(summaries, form_of_output(options.output)).rstrip("\n"))

    return run_plans([plan], invoked, show)


def settings_of(options: ObserverOptions) -> CommandSettings:
    """Return the settings shared by all commands, from the options.

    Raises ScenarioError for an invalid `--metric`, and for options that contradict each other.
    """
    figures: dict[str, str] = {}
    for text in options.metric or ():
        name, equals, where = text.partition("=")
        if not (equals and name.isidentifier() and where):
            raise ScenarioError(f"--metric {text}: expected NAME=REGEX or NAME=json:PATH")
        if name in {*figures, *QUANTITIES, *OWN_METRICS}:
            raise ScenarioError(f"--metric {text}: {name} has another meaning already; rename it")
        try:
            re.compile("" if where.startswith(JSON) else where)
        except re.error as error:
            raise ScenarioError(f"--metric {text}: no regular expression: {error}") from error
        figures[name] = where
    if options.no_observe and options.by in ("tokens", "steps"):
        raise ScenarioError(f"--by {options.by} counts what is observed: leave --no-observe out")
    if options.steps and (options.by == "wall" or options.no_observe):
        raise ScenarioError("--steps counts steps that are seen: leave --by wall and --no-observe")
    for name in options.higher or ():
        if name not in figures:
            raise ScenarioError(f"--higher {name} is no --metric{did_you_mean(name, figures)}")
    return CommandSettings(
        by="wall" if options.by == "auto" else options.by,
        steps=options.steps,
        figures=figures,
        higher=options.higher or (),
        observe=not options.no_observe,
        compare=options.compare,
    )


def _looked_at(
    commands: Sequence[NamedCommand],
    settings: CommandSettings,
    options: AbOptions,
    invoked: Invocation,
    request: PlanRequest,
) -> tuple[CommandSettings, Sequence[NamedCommand]]:
    """Return the settings and commands, completed by what a short run of each command shows.

    The settings get the unit in which all commands can be counted. Each command gets the dtypes
    that were observed in it.
    """
    if options.by != "auto" or options.no_observe:
        return settings, commands
    looking = replace(settings, steps=0)
    if options.dry_run:
        return looking, commands
    plan = plan_commands(commands, looking, invoked, request)
    print_aside(
        f"a look at the first steps of {join_names([command.name for command in commands])}"
    )
    seen = see(plan, invoked)
    for name, facts in seen.items():
        for what, reason in facts["unseen"].items():
            print_aside(plain(f"{name}: {what} not seen: {reason}"))
    return counted_by(seen, settings), in_their_dtypes(commands, seen)
