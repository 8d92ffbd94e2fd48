"""`accel-bench ab`: compare training commands, and any others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from accel_bench.analysis.schema import Summary
from accel_bench.cli.options import CompareOption, MeasureOptions, Names, takes
from accel_bench.cli.output import form_of_output, print_text
from accel_bench.cli.request import Invocation, plan_request, run_plans
from accel_bench.cli.run import parse_rounds
from accel_bench.errors import ScenarioError
from accel_bench.report.formats import render
from accel_bench_ab.scenario import CommandSettings, NamedCommand
from accel_bench_ab.session import plan_commands


@dataclass(frozen=True, kw_only=True)
class AbOptions(MeasureOptions):
    """Options of `ab`."""

    commands: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND -- COMMAND", help="Commands, each behind a `--`."),
    ]
    rounds: Annotated[
        str | None,
        typer.Option(metavar="N|auto", help="Rounds; auto adds some while a verdict is open."),
    ] = None
    steps: Annotated[
        int, typer.Option(min=0, help="End a command after so many measured steps.")
    ] = 0
    metric: Annotated[
        Names,
        typer.Option(metavar="NAME=REGEX|json:PATH", help="A figure that the command prints."),
    ] = None
    compare: CompareOption = None


@takes(AbOptions)
def ab(options: AbOptions) -> int:
    """Compare any commands, in fresh processes and in turns; the first is the baseline."""
    commands = split_commands(options.commands)
    settings = CommandSettings(steps=options.steps, compare=options.compare)
    request = plan_request(options, {"measure.rounds": parse_rounds(options.rounds)})
    invoked = Invocation(options)
    plan = plan_commands(commands, settings, invoked, request)

    def show(summaries: Sequence[Summary]) -> None:
        print_text(render(summaries, form_of_output(options.output)).rstrip("\n"))

    return run_plans([plan], invoked, show)


def split_commands(words: Sequence[str]) -> list[NamedCommand]:
    """Return the commands between `--`. Raises ScenarioError for fewer than two."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == "--":
            parts.append([])
        else:
            parts[-1].append(word)
    found = [part for part in parts if part]
    if len(found) < 2:
        raise ScenarioError("ab compares two commands or more: accel-bench ab -- A ... -- B ...")
    return [NamedCommand(chr(ord("A") + place), part) for place, part in enumerate(found)]
