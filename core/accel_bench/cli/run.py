"""`accel-bench run`: measure the stacks of scenarios and compare them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Many = list[str]


def run(  # noqa: PLR0913, PLR0917 - one parameter for each option of the command
    files: Annotated[
        list[str] | None,
        typer.Argument(help="Scenario files, folders of them, or names of shipped scenarios."),
    ] = None,
    plugin: Annotated[
        Many | None, typer.Option(help="Add a stack with this plugin; A+B for both in that order.")
    ] = None,
    only: Annotated[
        Many | None, typer.Option(help="Run only this stack, beside the baseline.")
    ] = None,
    set_: Annotated[
        Many | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a dotted key.")
    ] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Rounds.")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=2, help="Train with this many seeds and compare the losses at the end."),
    ] = None,
    timeout: Annotated[float | None, typer.Option(min=0.001, help="Seconds for one run.")] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"] | None, typer.Option(help="Where to run.")
    ] = None,
    results: Annotated[
        Path,
        typer.Option(envvar="ACCEL_BENCH_RESULTS", metavar="DIR", help="Where results are kept."),
    ] = Path("accel_bench_results"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Do not run complete rounds again.")
    ] = False,
    retries: Annotated[int, typer.Option(min=0, help="Tries after a run that was lost.")] = 0,
    no_baseline: Annotated[
        bool, typer.Option("--no-baseline", help="Leave the baseline out.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and start nothing.")
    ] = False,
    max_runs: Annotated[int, typer.Option(min=1, help="Refuse a plan with more runs.")] = 1000,
    allow_env: Annotated[
        bool, typer.Option("--allow-env", help="Let scenarios set any environment variable.")
    ] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let models bring code of their own.")
    ] = False,
    output: Annotated[
        Literal["table", "json", "csv", "markdown"], typer.Option("--format", help="How to print.")
    ] = "table",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Measure acceleration stacks side by side and compare them.

    Without a file it runs the shipped quickstart. The baseline always runs too, unless
    --no-baseline.
    """
    from accel_bench.cli.request import Request, parse_overrides
    from accel_bench.plan import Wishes

    short = {
        "measure.repeats": repeats,
        "measure.timeout_seconds": timeout,
        "resources.device": device,
    }
    wishes = Wishes(
        plugins=tuple(plugin or ()),
        only=tuple(only or ()),
        overrides=parse_overrides(set_ or [], short),
        seeds=seeds or 0,
        no_baseline=no_baseline,
        allow_environment=allow_env,
        trust_remote_code=trust_remote_code,
        max_runs=max_runs,
    )
    request = Request(
        files=tuple(files or ("quickstart",)),
        wishes=wishes,
        results=results,
        resume=resume,
        retries=retries,
        dry_run=dry_run,
        output=output,
        quiet=quiet,
    )
    raise typer.Exit(request.carry_out())
