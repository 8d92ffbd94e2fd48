"""`accel-bench gate`: does a stack pass, being no slower than another?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

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
    plugin: Annotated[
        Many | None, typer.Option(help="Add a stack with this plugin; A+B for both in that order.")
    ] = None,
    set_: Annotated[
        Many | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a dotted key.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Pairs at the first look; else 5 or what it says.")
    ] = None,
    max_pairs: Annotated[
        int | None,
        typer.Option(min=1, help="Add pairs until it is settled, but no more than this in all."),
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
        bool, typer.Option("--resume", help="Count pairs that are already stored.")
    ] = False,
    retries: Annotated[int, typer.Option(min=0, help="Tries after a run that was lost.")] = 0,
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
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write JUnit XML for a CI system too.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write Markdown for a summary too.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Run two stacks side by side and fail when one is slower than the other by more than a floor.

    Exits with 0 when the stack passes, 1 when a run failed or is invalid, 4 when it is slower or
    its loss is different, 5 when that is open, saying how many more pairs would settle it.

    Each look at the pairs, the first and those after --max-pairs or --resume has added some, spends
    its share of the error rates, so that looking often raises no more false alarms: at most 0.5 %.
    """
    from accel_bench.cli.gate_request import GateRequest, parse_share
    from accel_bench.cli.request import parse_overrides
    from accel_bench.plan import Wishes

    short = {
        "baseline": against,
        "measure.timeout_seconds": timeout,
        "resources.device": device,
    }
    wishes = Wishes(
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
        wishes=wishes,
        repeats=repeats,
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
    raise typer.Exit(request.carry_out())
