"""`accel-bench run`: measure the stacks of scenarios and compare them."""

from __future__ import annotations

from typing import Annotated

import typer

from accel_bench.cli import options

Many = list[str]


def run(  # noqa: PLR0913, PLR0917 - one parameter for each option of the command
    files: Annotated[
        list[str] | None,
        typer.Argument(help="Scenario files, folders of them, or names of shipped scenarios."),
    ] = None,
    plugin: options.Plugins = None,
    only: Annotated[
        Many | None, typer.Option(help="Run only this stack, beside the baseline.")
    ] = None,
    set_: options.Overrides = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds.")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=2, help="Train with this many seeds and compare the losses at the end."),
    ] = None,
    timeout: options.Timeout = None,
    device: options.Device = None,
    results: options.Results = options.DEFAULT_RESULTS,
    resume: Annotated[
        bool, typer.Option("--resume", help="Do not run complete rounds again.")
    ] = False,
    retries: options.Retries = 0,
    no_baseline: Annotated[
        bool, typer.Option("--no-baseline", help="Leave the baseline out.")
    ] = False,
    dry_run: options.DryRun = False,
    max_runs: options.MaxRuns = 1000,
    allow_env: options.AllowEnv = False,
    trust_remote_code: options.TrustRemoteCode = False,
    output: options.Output = "table",
    quiet: options.Quiet = False,
) -> None:
    """Measure acceleration stacks side by side and compare them.

    Without a file it runs the shipped quickstart. The baseline always runs too, unless
    --no-baseline.
    """
    from accel_bench.cli.request import Request, parse_overrides
    from accel_bench.planning.plan import PlanRequest

    short = {
        "measure.rounds": rounds,
        "measure.timeout_seconds": timeout,
        "resources.device": device,
    }
    plan_request = PlanRequest(
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
        plan_request=plan_request,
        results=results,
        resume=resume,
        retries=retries,
        dry_run=dry_run,
        output=output,
        quiet=quiet,
    )
    raise typer.Exit(request.execute())
