"""One `accel-bench fit` from its options to its exit code."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any

from accel_bench.analysis.wording import settings
from accel_bench.cli.dry_run import print_plan
from accel_bench.cli.output import print_aside, print_report
from accel_bench.cli.request import new_sessions, one_draft, plan_request
from accel_bench.launcher import Allocation
from accel_bench.machine.info import Machine, read_machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.runner.allocation import allocated, machine_of
from accel_bench.runner.unfinished import open_results
from accel_bench.scenario.draft import Draft
from accel_bench_search.fit import FitOptions
from accel_bench_search.fit_search import FitSearch, first_swept, freed, start_of
from accel_bench_search.fit_view import fit_view
from accel_bench_search.fitting import SearchRange
from accel_bench_search.trial import TrialRunner


def run_fit(options: FitOptions) -> int:
    """Search, print the answer and every try, and return the exit code."""
    draft = one_draft(options.scenario, "fit")
    machine = read_machine()
    request = plan_request(options, {}, no_baseline=True)
    with allocated([draft], machine, request, sys.argv, options.dry_run) as allocation:
        if allocation is not None and allocation.exit_code is not None:
            return allocation.exit_code
        machine = machine_of(allocation, machine)
        return _search(options, draft, machine, allocation)


def _search(
    options: FitOptions, draft: Draft, machine: Machine, allocation: Allocation | None
) -> int:
    request = _request(options, draft, machine)

    def plan_with(changes: Mapping[str, Any]) -> Plan:
        short = {"measure.rounds": 1, **changes}
        overrides = (*request.overrides, *short.items())
        with redirect_stdout(sys.stderr):
            return make_plan(draft, machine, replace(request, overrides=overrides))

    experiment = plan_with(first_swept(draft, options.vary)).single.experiment
    scenario = experiment.scenario
    start = options.first or start_of(scenario, options.vary)
    start = min(start, options.most or start)
    kept = dict(freed(request, draft, options.vary, scenario))
    if options.dry_run:
        plan = plan_with({**kept, options.vary: start})
        print_plan([plan], machine, options.results, options.output)
        return 0
    where = SearchRange(start=start, most=options.most, step=options.step)
    with open_results(options.results, write=True) as store:
        with new_sessions(options, store, machine, allocation) as new_session:
            report = FitSearch(
                TrialRunner(store, machine, new_session, options.again),
                lambda changes: plan_with({**kept, **changes}),
                scenario.name,
                experiment.stack.name,
                options.vary,
                where,
                options.rounds,
                options.force,
                lambda line: None if options.quiet else print_aside(line),
            ).search()
    if kept:
        note = f"train.global_batch_size is left open for the search: {settings(kept)}"
        report = report.model_copy(update={"notes": (note, *report.notes)})
    print_report(fit_view(report), options.output)
    return report.exit_code


def _request(options: FitOptions, draft: Draft, machine: Machine) -> PlanRequest:
    """Return the request for the one stack; memory that is surely short is looked at by value."""
    request = replace(plan_request(options, {}, no_baseline=True), force=True)
    if options.stack is None:
        baseline = make_plan(draft, machine, replace(request, no_baseline=False)).baseline
        return replace(request, only=(baseline,))
    return replace(request, only=(options.stack,))
