"""`accel-bench gate`: does a stack pass, being no slower than another?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from accel_bench.cli import options

Many = list[str]


def gate(  # noqa: PLR0913, PLR0917 - one parameter for each option of the command
    scenario: Annotated[str, typer.Argument(help="A scenario file, or a shipped scenario's name.")],
    stack: Annotated[str, typer.Option(help="The stack that wants to pass.")],
    against: Annotated[
        str | None, typer.Option(help="The stack it is held against; else the baseline.")
    ] = None,
    floor: Annotated[
        str, typer.Option(metavar="SHARE", help="Slow-down that is allowed: 1% or 0.01.")
    ] = "1%",
    plugin: options.Plugins = None,
    set_: options.Overrides = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Pairs at the first look; else 5 or what it says.")
    ] = None,
    max_pairs: Annotated[
        int | None,
        typer.Option(min=1, help="Add pairs until it is settled, but no more than this in all."),
    ] = None,
    timeout: options.Timeout = None,
    device: options.Device = None,
    results: options.Results = options.DEFAULT_RESULTS,
    resume: Annotated[
        bool, typer.Option("--resume", help="Count pairs that are already stored.")
    ] = False,
    retries: options.Retries = 0,
    dry_run: options.DryRun = False,
    max_runs: options.MaxRuns = 1000,
    allow_env: options.AllowEnv = False,
    trust_remote_code: options.TrustRemoteCode = False,
    output: options.Output = "table",
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write JUnit XML for a CI system too.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write Markdown for a summary too.")
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Run two stacks side by side and fail when one is slower than the other by more than a floor.

    Exits with 0 when the stack passes, 1 when a run failed or is invalid, 4 when it is slower or
    its loss is different, 5 when that is open, saying how many more pairs would settle it.

    Each look at the pairs, the first and those after --max-pairs or --resume has added some, spends
    its share of the error rates, so that looking often raises no more false alarms: at most 0.5 %.
    """
    from accel_bench.cli.gate_request import GateRequest, parse_share
    from accel_bench.cli.request import parse_overrides
    from accel_bench.planning.plan import PlanRequest

    short = {
        "baseline": against,
        "measure.timeout_seconds": timeout,
        "resources.device": device,
    }
    plan_request = PlanRequest(
        plugins=tuple(plugin or ()),
        only=(stack,),
        overrides=parse_overrides(set_ or [], short),
        allow_environment=allow_env,
        trust_remote_code=trust_remote_code,
        max_runs=max_runs,
    )
    request = GateRequest(
        scenario=scenario,
        stack=stack,
        floor=parse_share(floor, "--floor"),
        plan_request=plan_request,
        rounds=rounds,
        max_pairs=max_pairs,
        results=results,
        resume=resume,
        retries=retries,
        dry_run=dry_run,
        output=output,
        junit=junit,
        markdown=markdown,
        quiet=quiet,
    )
    raise typer.Exit(request.execute())
