"""`accel-bench estimate`: memory, speed and cost of a scenario before anything is rented."""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from accel_bench.cli.options import AnswerOptions, Names, takes

NOT_FITTING = 1
"""Exit code of `--fits` if an experiment does not fit."""


@dataclass(frozen=True, kw_only=True)
class EstimateOptions(AnswerOptions):
    """Command-line options of `accel-bench estimate`."""

    file: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="A scenario file, or a shipped scenario.")
    ] = "quickstart"
    gpu: Annotated[
        str | None, typer.Option(help="Device of `catalog devices`; else what this machine has.")
    ] = None
    fits: Annotated[
        str | None,
        typer.Option(
            metavar="GPU",
            help="Answer in words whether it fits there; exit code 1 if not.",
        ),
    ] = None
    lengths: Annotated[
        Path | None,
        typer.Option(help="File with the length of each sample: its 95th percentile is taken."),
    ] = None
    tokens: Annotated[
        float | None,
        typer.Option(help="Tokens to train on, with padding, such as 1.2e9: adds hours."),
    ] = None
    only: Annotated[Names, typer.Option(help="Estimate only this stack.")] = None
    plugin: Annotated[Names, typer.Option(help="Add a stack with this plugin; A+B for both.")] = (
        None
    )
    set_: Annotated[
        Names, typer.Option("--set", metavar="KEY=VALUE", help="Change a dotted key.")
    ] = None
    no_limits: Annotated[
        bool,
        typer.Option("--no-limits", help="Leave out the largest batch and the longest context."),
    ] = False


@takes(EstimateOptions)
def estimate(options: EstimateOptions) -> int:
    """Estimate memory, speed and money of a scenario on a device, by simulating its step.

    Nothing is allocated, downloaded or measured: the step runs on tensors without content. All
    figures are marked as estimated, and never stored among measured results.
    """
    from accel_bench.catalog.hardware import named_hardware
    from accel_bench.cli.output import print_report, print_text
    from accel_bench.cli.request import parse_overrides, single_draft
    from accel_bench.errors import AccelBenchError, NothingToRunError, ScenarioError
    from accel_bench.machine.info import read_machine
    from accel_bench.planning.plan import PlanRequest
    from accel_bench.scenario.sweep import LENGTH
    from accel_bench.store.database import open_store
    from accel_bench_advise.estimates.estimator import Estimator
    from accel_bench_advise.estimates.lengths import lengths_instead_of
    from accel_bench_advise.estimates.schema import EstimateDocument
    from accel_bench_advise.estimates.simulator import Simulator
    from accel_bench_advise.estimates.speed import recent_results
    from accel_bench_advise.estimates.view import estimate_report
    from accel_bench_advise.price_table import read_prices

    if options.gpu and options.fits:
        raise ScenarioError("--fits names the device already; leave --gpu out")
    if options.tokens is not None and not 0 < options.tokens < float("inf"):
        raise ScenarioError(f"--tokens must be a positive number, not {options.tokens}")
    draft, name = single_draft(options.file, "estimate"), options.gpu or options.fits
    overrides, lengths = parse_overrides(options.set_ or [], {}), None
    if options.lengths:
        lengths = lengths_instead_of(options.lengths, draft, overrides)
        overrides = (*overrides, (LENGTH, lengths.sequence_length))
    request = PlanRequest(
        plugins=tuple(options.plugin or ()),
        only=tuple(options.only or ()),
        no_baseline=bool(options.only),
        overrides=overrides,
        trust_remote_code=options.trust_remote_code,
    )
    with ExitStack() as stack:
        store = None
        with suppress(AccelBenchError):
            store = stack.enter_context(open_store(options.results, write=False))
        estimator = Estimator(
            stack.enter_context(closing(Simulator(options.trust_remote_code))),
            draft,
            request,
            read_machine(),
            recent_results(store),
            read_prices(),
            options.tokens or lengths,
            named_hardware(name) if name else None,
            limits=not options.no_limits,
        )
        estimates = tuple(estimator.estimate(planned) for planned in estimator.plan().planned)
    if options.fits and options.output == "table":
        print_text("\n".join(row.answer or row.problem for row in estimates))
    else:
        document = EstimateDocument(for_tokens=options.tokens, lengths=lengths, estimates=estimates)
        print_report(estimate_report(document), options.output)
    if estimates and all(row.problem for row in estimates):
        raise NothingToRunError(estimates[0].problem)
    failing = any(row.memory and row.memory.fit == "does not hold" for row in estimates)
    return NOT_FITTING if options.fits and failing else 0
