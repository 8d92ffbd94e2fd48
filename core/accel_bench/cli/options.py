"""Dataclasses of command-line options, whose fields typer shows as parameters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_type_hints

import typer

from accel_bench.cli.output import AnyFormat, as_events
from accel_bench.documents.program import DEFAULT_RESULTS, RESULTS
from accel_bench.errors import ScenarioError

__all__ = [
    "DEFAULT_RESULTS",
    "CompareOption",
    "MeasureOptions",
    "Names",
    "PlanOptions",
    "ResultsOption",
    "Where",
    "WorkOptions",
    "parse_fraction",
    "parse_seconds",
    "takes",
]

WORK, LIMITS, OUTPUT = "Work", "Limits", "Output"
"""Titles above options of many commands."""

ResultsOption: TypeAlias = Annotated[
    str,
    typer.Option(
        envvar=RESULTS,
        metavar="DIR",
        help="Folder or database of results (help formats).",
        rich_help_panel=OUTPUT,
    ),
]
TrustRemoteCode: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code", help="Let models bring code of their own.", rich_help_panel=LIMITS
    ),
]
CompareOption: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="METRIC", help="Judge this figure or metric instead of the speed."),
]
Names: TypeAlias = list[str] | None
WHERE = "Only runs for which it holds, such as 'status = ok and train.micro_batch_size >= 4'."
"""Help text of options that take a condition, with an example."""

Where: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="CONDITION", help="Only runs for which it holds, as in `results list`."),
]


@dataclass(frozen=True, kw_only=True)
class WorkOptions:
    """Options of commands that plan a scenario's runs: its changes, the device and limits."""

    plugin: Annotated[
        Names,
        typer.Option(help="Add a stack with this plugin; A+B for both.", rich_help_panel=WORK),
    ] = None
    set_: Annotated[
        Names,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a dotted key.", rich_help_panel=WORK
        ),
    ] = None
    timeout: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds for one run.", rich_help_panel=LIMITS)
    ] = None
    device: Annotated[
        str | None,
        typer.Option(help="Where to run: auto, cpu, cuda, rocm, mps ...", rich_help_panel=WORK),
    ] = None
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Run what needs more memory than there is.", rich_help_panel=LIMITS
        ),
    ] = False
    oversubscribe: Annotated[
        bool,
        typer.Option(
            "--oversubscribe", help="Allow more processes than cores.", rich_help_panel=LIMITS
        ),
    ] = False
    allow_env: Annotated[
        bool,
        typer.Option(
            "--allow-env",
            help="Let scenarios set any environment variable.",
            rich_help_panel=LIMITS,
        ),
    ] = False
    trust_remote_code: TrustRemoteCode = False
    output: AnyFormat = "table"


@dataclass(frozen=True, kw_only=True)
class PlanOptions(WorkOptions):
    """Options of all commands that run experiments."""

    results: ResultsOption = DEFAULT_RESULTS
    retries: Annotated[
        int, typer.Option(min=0, help="Tries after a run that was lost.", rich_help_panel=LIMITS)
    ] = 0
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the plan and start nothing.", rich_help_panel=OUTPUT),
    ] = False
    max_runs: Annotated[
        int, typer.Option(min=1, help="Refuse a plan with more runs.", rich_help_panel=LIMITS)
    ] = 1000
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show no progress.", rich_help_panel=OUTPUT)
    ] = False
    progress: Annotated[
        Literal["text", "json"],
        typer.Option(help="Progress on stderr.", rich_help_panel=OUTPUT),
    ] = "text"


@dataclass(frozen=True, kw_only=True)
class MeasureOptions(PlanOptions):
    """Options of commands that measure stacks and compare them, `run` and `gate`."""

    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Count complete rounds that are stored.", rich_help_panel=WORK
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """Options of commands that compute from a model and from stored runs, without starting runs."""

    trust_remote_code: TrustRemoteCode = False
    results: ResultsOption = DEFAULT_RESULTS
    output: AnyFormat = "table"


def split_names(texts: Names) -> list[str]:
    """Return the names in an option's values; a value can hold several names, with commas
    between."""
    return [name.strip() for text in texts or () for name in text.split(",") if name.strip()]


OptionsT = TypeVar("OptionsT")


def takes(
    model: type[OptionsT],
) -> Callable[[Callable[[OptionsT], int | None]], Callable[..., None]]:
    """Return a decorator that makes a typer command, with the fields of `model` as parameters. The
    decorated function gets an instance of `model` and returns the exit code; None means 0."""

    def decorate(function: Callable[[OptionsT], int | None]) -> Callable[..., None]:
        def command(**values: Any) -> None:
            as_events.set(values.get("progress") == "json")
            raise typer.Exit(function(model(**values)) or 0)

        command.__doc__ = function.__doc__
        command.__dict__["__signature__"] = _signature(model)
        return command

    return decorate


def _signature(model: type[Any]) -> inspect.Signature:
    """Return a function signature with the model's fields as parameters, inherited fields last."""
    hints = get_type_hints(model, include_extras=True)
    own = inspect.get_annotations(model)
    given = inspect.signature(model).parameters.values()
    return inspect.Signature(
        [
            parameter.replace(annotation=hints[parameter.name])
            for parameter in sorted(given, key=lambda parameter: parameter.name not in own)
        ]
    )


SECONDS = {"s": 1, "min": 60, "h": 3600}
"""Seconds of each unit of time on the command line."""


def parse_seconds(text: str, where: str) -> float:
    """Return the seconds of a time such as `90s`, `3min` or `1.5 h`. Raises ScenarioError for
    anything else; `where` names the option in its message."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h)", text.strip())
    if match is None:
        raise ScenarioError(f"{where} {text!r} is no time; write it as 90s, 3min or 1.5h")
    return float(match[1]) * SECONDS[match[2]]


def parse_fraction(text: str, where: str) -> float:
    """Return the fraction that a text states, such as 0.01 for `1%` or `0.01`. Raises ScenarioError
    unless it is between 0 and 1; `where` names the option in its message."""
    number, percent, rest = text.strip().partition("%")
    try:
        fraction = float(number) / (100 if percent else 1)
    except ValueError:
        fraction = 0.0
    if rest or not 0 < fraction < 1:
        raise ScenarioError(
            f"{where} {text!r} is no fraction above 0 and below 100 %; write 1% or 0.01"
        )
    return fraction
