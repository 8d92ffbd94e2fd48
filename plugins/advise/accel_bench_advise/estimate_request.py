"""One `accel-bench estimate` from its options to its exit code."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing, redirect_stdout, suppress
from typing import Any

import typer

from accel_bench.catalog.hardware import named_hardware
from accel_bench.catalog.prices import read_prices
from accel_bench.cli.output import print_report, print_text
from accel_bench.cli.request import parse_overrides
from accel_bench.errors import AccelBenchError, NothingToRunError, ScenarioError
from accel_bench.machine.info import Machine, read_machine
from accel_bench.planning.duration import recent_results
from accel_bench.planning.plan import Plan, Planned, PlanRequest, make_plan
from accel_bench.result import Result
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.find import find_drafts
from accel_bench.store.database import open_store
from accel_bench_advise.estimate import EstimateOptions
from accel_bench_advise.estimates.lengths import read_lengths, summarize_lengths
from accel_bench_advise.estimates.schema import Estimate, EstimateDocument, LengthSummary
from accel_bench_advise.estimates.simulator import Simulator
from accel_bench_advise.estimates.stacks import Estimator
from accel_bench_advise.estimates.target import machine_with, target_of
from accel_bench_advise.estimates.view import estimate_report

MOST_DEVICES = 1024
"""Devices that a machine of the table is taken to have: as many as a scenario wants."""

LENGTH = "data.sequence_length"
"""Key that a file of lengths sets."""

NOT_FITTING = 1
"""Exit code of `--fits` where something does not fit."""


def run_estimate(options: EstimateOptions) -> int:
    """Plan the scenario for the device, estimate each of its experiments, and print them.

    Returns the exit code. Raises AccelBenchError where nothing can be estimated.
    """
    if options.gpu and options.fits:
        raise ScenarioError("--fits names the device already; leave --gpu out")
    if options.tokens is not None and not 0 < options.tokens < float("inf"):
        raise ScenarioError(f"--tokens must be a positive number, not {options.tokens}")
    (draft,) = _one(find_drafts([options.file]))
    lengths = _lengths(options, draft)
    document = _estimate(options, draft, lengths)
    if options.fits and options.output == "table":
        print_text("\n".join(one.answer or one.problem for one in document.estimates))
    else:
        print_report(estimate_report(document), options.output)
    if problems := [one.problem for one in document.estimates if one.problem]:
        if len(problems) == len(document.estimates):
            raise NothingToRunError(problems[0])
    failing = any(one.memory and one.memory.fit == "does not fit" for one in document.estimates)
    return NOT_FITTING if options.fits and failing else 0


def _estimate(
    options: EstimateOptions, draft: Draft, lengths: LengthSummary | None
) -> EstimateDocument:
    here = read_machine()
    name = options.gpu or options.fits
    chosen = named_hardware(name) if name else None
    machine = machine_with(here, chosen, MOST_DEVICES) if chosen else here
    plan = _plan(options, draft, machine, _length_setting(lengths))

    def replan(planned: Planned, changed: dict[str, Any]) -> Planned:
        again = _plan(options, draft, machine, {**_length_setting(lengths), **changed})
        experiment = planned.experiment
        for other in again.planned:
            same = other.experiment.stack.name == experiment.stack.name
            kept = {key: value for key, value in experiment.sweep.items() if key not in changed}
            if same and other.experiment.sweep == kept:
                return other
        raise AccelBenchError("no such experiment with these settings")

    with closing(Simulator(options.trust_remote_code)) as simulator:
        estimator = Estimator(
            simulator,
            target_of(here, chosen),
            _stored(options.results),
            read_prices(),
            options.tokens or lengths,
            replan,
            limits=not options.no_limits,
        )
        estimates = tuple(_each(estimator, plan))
    return EstimateDocument(for_tokens=options.tokens, lengths=lengths, estimates=estimates)


def _each(estimator: Estimator, plan: Plan) -> list[Estimate]:
    """Estimate each experiment; the terminal shows which one, since each takes seconds."""
    found = []
    for number, planned in enumerate(plan.planned, start=1):
        if sys.stderr.isatty():
            stack = planned.experiment.stack.name
            typer.echo(f"simulating {number} of {len(plan.planned)}: {stack}", err=True)
        found.append(estimator.estimate(planned))
    return found


def _plan(
    options: EstimateOptions, draft: Draft, machine: Machine, changed: dict[str, Any]
) -> Plan:
    """Return the plan for a machine of such devices, however little memory they have."""
    request = PlanRequest(
        plugins=tuple(options.plugin or ()),
        only=tuple(options.only or ()),
        no_baseline=bool(options.only),
        overrides=(*parse_overrides(options.set_ or [], {}), *changed.items()),
        trust_remote_code=options.trust_remote_code,
        force=True,
        oversubscribe=True,
        build_environments=False,
    )
    with redirect_stdout(sys.stderr):  # what a plugin prints is no part of the document
        return make_plan(draft, machine, request)


def _one(drafts: list[Draft]) -> list[Draft]:
    if len(drafts) != 1:
        raise ScenarioError("estimate takes one scenario; name one of the folder's files")
    return drafts


def _lengths(options: EstimateOptions, draft: Draft) -> LengthSummary | None:
    """Summarize the file of lengths. Raises ScenarioError where a length is swept or set too."""
    if options.lengths is None:
        return None
    swept = draft.data.get("sweep") or {}
    changed = [key for key, _ in parse_overrides(options.set_ or [], {})]
    for where, keys in (("the scenario's sweep", swept), ("--set", changed)):
        if any(key in (LENGTH, f"sweep.{LENGTH}") for key in keys):
            raise ScenarioError(
                f"--lengths chooses {LENGTH}, which {where} gives too; leave one of the two out"
            )
    return summarize_lengths(read_lengths(options.lengths))


def _length_setting(lengths: LengthSummary | None) -> dict[str, Any]:
    return {LENGTH: lengths.sequence_length} if lengths else {}


def _stored(place: str) -> list[Result]:
    """Return the newest stored results; none where there is no store."""
    with ExitStack() as stack, suppress(AccelBenchError):
        return recent_results(stack.enter_context(open_store(place, write=False)))
    return []
