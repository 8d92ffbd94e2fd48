"""`accel-bench judge`: check that training steps compute what a reference step does, and faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from accel_bench.analysis.schema import Summary
from accel_bench.cli.options import MeasureOptions, takes
from accel_bench.cli.output import print_report
from accel_bench.cli.request import Invocation, plan_request, run_plans
from accel_bench.scenario.find import find_drafts
from accel_bench_judge.document import judge_report
from accel_bench_judge.scenario import judge_scenario
from accel_bench_judge.view import judged_report


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(MeasureOptions):
    """Command-line options of `accel-bench judge`."""

    reference: Annotated[
        Path, typer.Argument(help="A file with make_model, make_batch, make_optimizer and step.")
    ]
    candidates: Annotated[
        list[Path], typer.Argument(metavar="CANDIDATE", help="Files with a step of their own.")
    ]
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each file.")] = 5
    steps: Annotated[int, typer.Option(min=1, help="Measured steps of a run.")] = 10
    fewer_flops: Annotated[
        bool,
        typer.Option("--fewer-flops", help="Allow fewer counted FLOPs, if the update is the same."),
    ] = False


@takes(JudgeOptions)
def judge(options: JudgeOptions) -> int:
    """Judge training steps of others against a reference step.

    Each run draws fresh weights and batches. The candidate computes in a confined process, which is
    stopped between the steps. All its losses and weights are compared with the reference's, which
    another process computes.

    Exits with 0 when every candidate does the same work and is faster, 1 when one is refused or a
    run failed, 4 when one is not faster, 5 when this is undecided.
    """
    invoked = Invocation(options)
    scenario = judge_scenario(
        options.reference,
        options.candidates,
        steps=options.steps,
        rounds=options.rounds,
        fewer_flops=options.fewer_flops,
    )
    request = plan_request(options, {})
    plans = [invoked.plan(draft, request) for draft in find_drafts([scenario])]
    reference = str(options.reference)

    def show(summaries: Sequence[Summary]) -> None:
        print_report(judged_report(judge_report(summaries[0], reference)), options.output)

    def code(summaries: Sequence[Summary]) -> int:
        return judge_report(summaries[0], reference).exit_code

    return run_plans(plans, invoked, show, code)
