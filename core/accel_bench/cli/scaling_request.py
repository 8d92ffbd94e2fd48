"""One `accel-bench scaling` from its options to its exit code."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from typing import Any

from accel_bench.analysis.scaling import BATCH, SIZES, project
from accel_bench.analysis.schema import Summary
from accel_bench.cli.output import print_report
from accel_bench.cli.request import Command, find_drafts, plan_request, run_plans
from accel_bench.cli.scaling import ScalingOptions
from accel_bench.errors import ScenarioError
from accel_bench.machine.info import Machine, read_machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan, resolve_request
from accel_bench.planning.resolve import ResolvedFile
from accel_bench.report.views.scaling import scaling_report
from accel_bench.runner.allocation import allocated, machine_of
from accel_bench.scenario.draft import Draft


def run_scaling(options: ScalingOptions) -> int:
    """Plan, run, and print the scaling; return the exit code."""
    parse_counts(options.project, "--project")
    machine = read_machine()
    with redirect_stdout(sys.stderr):  # what a plugin prints is no part of the document
        drafts = find_drafts((options.scenario,))
        if len(drafts) != 1:
            raise ScenarioError(f"scaling takes one scenario; {options.scenario!r} holds several")
        request = scaling_request(drafts[0], machine, options)
    with allocated(drafts, machine, request, sys.argv, options.dry_run) as allocation:
        if allocation is not None and allocation.exit_code is not None:
            return allocation.exit_code
        machine = machine_of(allocation, machine)
        with redirect_stdout(sys.stderr):
            plan = make_plan(drafts[0], machine, request)
        show = partial(_show, options, _projected(options, plan))
        return run_plans([plan], Command(options, machine, allocation, show, {"interleave": True}))


def _show(options: ScalingOptions, projected: Sequence[int], summaries: Sequence[Summary]) -> None:
    """Print the scaling, with estimates for these numbers of devices."""
    done = [
        one.model_copy(update={"scaling": tuple(project(s, projected) for s in one.scaling)})
        for one in summaries
    ]
    print_report(scaling_report(done), options.output)


def _projected(options: ScalingOptions, plan: Plan) -> list[int]:
    """Return the numbers of `--project`, none of which is measured. Raises ScenarioError."""
    counts = parse_counts(options.project, "--project")
    largest = max(planned.experiment.scenario.world_size for planned in plan.planned)
    if counts and min(counts) <= largest:
        raise ScenarioError(
            f"--project {options.project}: {min(counts)} is not more than the {largest} devices "
            "that are measured; name larger numbers"
        )
    return counts


def parse_counts(text: str | None, where: str) -> list[int]:
    """Parse `1,2,4`, whole numbers above 0 that grow. Raises ScenarioError."""
    words = [] if text is None else text.split(",")
    counts = [int(word) for word in words if word.strip().isdecimal()]
    if len(counts) < len(words) or 0 in counts or counts != sorted(set(counts)):
        raise ScenarioError(f"{where} {text}: expected numbers that grow, such as 1,2,4")
    return counts


def scaling_request(draft: Draft, machine: Machine, options: ScalingOptions) -> PlanRequest:
    """Return the request for all numbers of devices. Raises ScenarioError."""
    request = plan_request(
        options,
        {"measure.rounds": options.rounds},
        only=tuple(options.only or ()),
        build_environments=not options.dry_run,
    )
    counts = {
        key: found
        for key, text in (("devices", options.devices), ("nodes", options.nodes))
        if (found := parse_counts(text, f"--{key}"))
    }
    file = resolve_request(draft, request)
    axes = {*file.scenario.sweep, *file.scenario.zip}
    if not counts and not SIZES & axes:
        raise ScenarioError("name the numbers of devices: --devices 1,2,4, or --nodes 1,2")
    overrides = [(f"sweep.resources.{key}", found) for key, found in counts.items()]
    if not BATCH & axes:
        overrides += _batch(file, machine, counts, options.strong)
    elif options.strong:
        raise ScenarioError("--strong keeps a batch that the scenario sweeps; leave one of them")
    return replace(request, overrides=(*request.overrides, *overrides))


def _batch(
    file: ResolvedFile, machine: Machine, counts: Mapping[str, list[int]], strong: bool
) -> list[tuple[str, Any]]:
    """Return overrides that keep the batch which the file has with its own number of devices.

    With a global batch the micro batch is divided, unless only the accumulation can be.
    """
    if not counts and not strong:
        return []  # The file sweeps devices itself, and says what stays.
    scenario = next(file.points(machine.device)).scenario
    train, resources = scenario.train, scenario.resources
    kept = {
        "micro_batch_size": train.micro_batch_size,
        "gradient_accumulation": train.gradient_accumulation,
    }
    left_out = "global_batch_size"
    if strong:
        devices = counts.get("devices", [resources.devices])
        nodes = counts.get("nodes", [resources.nodes])
        worlds = [one * other for one in devices for other in nodes]
        total = train.global_batch_size
        by_micro = all(total % (train.gradient_accumulation * world) == 0 for world in worlds)
        by_rounds = all(total % (train.micro_batch_size * world) == 0 for world in worlds)
        keeps_micro = by_rounds and not by_micro
        left_out = "gradient_accumulation" if keeps_micro else "micro_batch_size"
        kept = {key: value for key, value in kept.items() if key != left_out}
        kept["global_batch_size"] = total
    set_by_file = file.is_set(f"train.{left_out}")
    taken_back: list[tuple[str, Any]] = [(f"train.{left_out}", None)] if set_by_file else []
    return [*((f"train.{key}", value) for key, value in kept.items()), *taken_back]
