"""`accel-bench scaling`: speed-up and efficiency of a scenario's stacks over devices and nodes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import typer

from accel_bench.analysis.schema import Summary
from accel_bench.cli.options import MeasureOptions, Names, takes
from accel_bench.cli.output import print_report
from accel_bench.cli.request import Invocation, plan_request, run_plans, single_draft
from accel_bench.errors import ScenarioError
from accel_bench.machine.info import Machine
from accel_bench.planning.activation import activate_points
from accel_bench.planning.plan import Plan
from accel_bench.planning.request import PlanRequest
from accel_bench.planning.resolve import ResolvedFile, chosen_points, resolve_request
from accel_bench.plugins.loading import restored_environment
from accel_bench.plugins.manager import try_apart
from accel_bench.scenario.batches import KEYS
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.sweep import Point
from accel_bench_report.sweep import NAME, Sweep
from accel_bench_report.tables.scaling import BATCH, SIZES, project
from accel_bench_report.tables.scaling_view import scaling_report


@dataclass(frozen=True, kw_only=True)
class ScalingOptions(MeasureOptions):
    """Command-line options of `accel-bench scaling`."""

    scenario: Annotated[str, typer.Argument(help="A scenario file, or a shipped scenario's name.")]
    devices: Annotated[
        str | None, typer.Option(metavar="1,2,4", help="Devices on each node, in turn.")
    ] = None
    nodes: Annotated[str | None, typer.Option(metavar="1,2", help="Nodes, in turn.")] = None
    strong: Annotated[
        bool,
        typer.Option("--strong", help="Keep the global batch; else each device keeps its batch."),
    ] = False
    project: Annotated[
        str | None,
        typer.Option(metavar="8,64", help="Estimate the speed at these numbers of devices."),
    ] = None
    only: Annotated[Names, typer.Option(help="Run only this stack, beside the baseline.")] = None
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds.")] = None


@takes(ScalingOptions)
def scaling(options: ScalingOptions) -> int:
    """Measure a scenario on more and more devices: speed-up, efficiency and elapsed time.

    Weak scaling keeps each device's batch, and --strong the global batch. Without --devices and
    --nodes the scenario sweeps `resources.devices` or `resources.nodes` itself. All numbers of
    devices are measured in each round, and compared in pairs. --resume shows stored results again.
    """
    parse_counts(options.project, "--project")
    here = Invocation(options)
    draft = single_draft(options.scenario, "scaling")
    with redirect_stdout(sys.stderr):  # what a plugin prints is no part of the document
        request = scaling_request(draft, here.machine, options)
    with here.allocated([draft], request) as invoked:
        plan = invoked.plan(draft, request)
        show = partial(_show, options, _projected(options, plan))
        return run_plans([plan], invoked, show, interleave=True)


def _show(options: ScalingOptions, projected: Sequence[int], summaries: Sequence[Summary]) -> None:
    """Print the scaling tables, with estimates for the projected numbers of devices."""
    done = []
    for summary in summaries:
        swept: Sweep = summary.sections.get(NAME, Sweep())
        scalings = tuple(project(scaling, projected) for scaling in swept.scaling)
        sections = {**summary.sections, NAME: Sweep(points=swept.points, scaling=scalings)}
        done.append((summary.model_copy(update={"sections": sections}), scalings))
    print_report(scaling_report(done), options.output)


def _projected(options: ScalingOptions, plan: Plan) -> list[int]:
    """Return the numbers of devices given by `--project`, to estimate without measuring.

    Raises ScenarioError unless all are larger than the measured numbers.
    """
    counts = parse_counts(options.project, "--project")
    largest = max(planned.experiment.scenario.world_size for planned in plan.planned)
    if counts and min(counts) <= largest:
        raise ScenarioError(
            f"--project {options.project}: {min(counts)} is not more than the {largest} devices "
            "that are measured; name larger numbers"
        )
    return counts


def parse_counts(text: str | None, where: str) -> list[int]:
    """Return the increasing positive integers in text such as `1,2,4`; an empty list for None.

    Raises ScenarioError for other text; `where` is the option that its message names.
    """
    words = [] if text is None else text.split(",")
    counts = [int(word) for word in words if word.strip().isdecimal()]
    if len(counts) < len(words) or 0 in counts or counts != sorted(set(counts)):
        raise ScenarioError(f"{where} {text}: expected numbers that grow, such as 1,2,4")
    return counts


def scaling_request(draft: Draft, machine: Machine, options: ScalingOptions) -> PlanRequest:
    """Return the request for a plan with all numbers of devices.

    Raises ScenarioError if neither options nor scenario name numbers of devices, or if `--strong`
    is given and the scenario sweeps a batch size.
    """
    request = plan_request(
        options,
        {"measure.rounds": options.rounds},
        only=tuple(options.only or ()),
        build_environments=not options.dry_run,
    )
    counts = {
        key: sizes
        for key, text in (("devices", options.devices), ("nodes", options.nodes))
        if (sizes := parse_counts(text, f"--{key}"))
    }
    file = resolve_request(draft, request)
    axes = {*file.scenario.sweep, *file.scenario.zip}
    if not counts and not SIZES & axes:
        raise ScenarioError("name the numbers of devices: --devices 1,2,4, or --nodes 1,2")
    overrides = [(f"sweep.resources.{key}", sizes) for key, sizes in counts.items()]
    request = replace(request, overrides=(*request.overrides, *overrides))
    batch: list[tuple[str, Any]] = []
    if BATCH & axes and options.strong:
        raise ScenarioError("--strong keeps a batch that the scenario sweeps; leave one of them")
    if options.strong:
        batch = _strong(file, draft, machine, request)
    elif counts and not BATCH & axes:  # Else the file says itself what stays.
        batch = _overrides(file, _batch(file, machine), "global_batch_size")
    return replace(request, overrides=(*request.overrides, *batch))


@restored_environment()
def _with_groups_of_plugins(file: ResolvedFile, points: Sequence[Point]) -> list[Point]:
    """Return the sweep points with the numbers of data-parallel groups that their plugins state."""
    work = partial(_activated, file, points)
    try_apart((use for point in points for use in point.uses), work)
    return work()


def _activated(file: ResolvedFile, points: Sequence[Point]) -> list[Point]:
    return [active.point for active in activate_points(file, points, {})]


def _batch(file: ResolvedFile, machine: Machine) -> dict[str, int]:
    """Return the batch sizes of a scenario file by name, at the number of devices that it sets."""
    (point,) = _with_groups_of_plugins(file, [next(file.points(machine.device))])
    return {key: getattr(point.scenario.train, key) for key in KEYS}


def _strong(
    file: ResolvedFile, draft: Draft, machine: Machine, request: PlanRequest
) -> list[tuple[str, Any]]:
    """Return overrides that keep the file's global batch at every number of devices.

    With more data-parallel groups the micro-batch is smaller. If its size would not stay whole,
    fewer micro-batches are accumulated instead.
    """
    kept = _batch(file, machine)
    unset = [(f"train.{key}", None) for key in KEYS if file.is_set(f"train.{key}")]
    sized = resolve_request(draft, replace(request, overrides=(*request.overrides, *unset)))
    points = _with_groups_of_plugins(sized, chosen_points(sized, request, machine.device))
    groups = {point.scenario.data_parallel for point in points}

    def divides(key: str) -> bool:
        return all(kept["global_batch_size"] % (kept[key] * number) == 0 for number in groups)

    keeps_micro = divides("micro_batch_size") and not divides("gradient_accumulation")
    return _overrides(file, kept, "gradient_accumulation" if keeps_micro else "micro_batch_size")


def _overrides(file: ResolvedFile, kept: Mapping[str, int], left_out: str) -> list[tuple[str, Any]]:
    """Return overrides, pairs of a dotted key and a value, that set two of the three batch sizes.

    `kept` has the sizes by key without `train.`. A further override unsets the third size,
    `left_out`, if the file sets it.
    """
    taken_back = [(f"train.{left_out}", None)] if file.is_set(f"train.{left_out}") else []
    return [*((f"train.{key}", kept[key]) for key in KEYS if key != left_out), *taken_back]
