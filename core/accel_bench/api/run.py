"""Measure the stacks of a scenario from Python, as `accel-bench run` does."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json
from typing_extensions import TypedDict, Unpack

from accel_bench.api.progress import CallbackReporter, RunProgress
from accel_bench.api.results import Results
from accel_bench.api.stored import place_of
from accel_bench.errors import AccelBenchError, NothingToRunError, ScenarioError, did_you_mean
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import Plan, PlanRequest
from accel_bench.planning.request import split_trackers
from accel_bench.planning.sizes import plan_with_sizes
from accel_bench.runner.allocation import allocated, machine_of
from accel_bench.runner.benchmark import Benchmark, Measured, run_plans
from accel_bench.runner.purpose import ask_ranks, plan_stack
from accel_bench.runner.session import Reporter
from accel_bench.scenario.find import ScenarioSource, find_drafts, to_plain
from accel_bench.store.listing import run_columns
from accel_bench.store.schema import RUNS

LOGGER = logging.getLogger("accel_bench")


class RunOptions(TypedDict, total=False):
    """Further options of `accel_bench.run`, with the names of `accel-bench run`'s options."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]

    device: str
    """Type of device on which to run, such as `cuda`."""

    timeout: Annotated[float, Field(gt=0)]
    """Time limit of one run, in seconds."""

    no_baseline: bool
    """True to leave the baseline out."""

    tags: Sequence[str]
    """Tags of the sweep points to run, with `*` for any text."""

    reference_point: str
    """Tag of the sweep point with which other points are compared; the first point by default."""

    seeds: Annotated[int, Field(ge=2)]
    """Number of seeds to train with; the losses at the end are compared."""

    family: str
    """Family of the catalog; all its models run in place of `model.id`."""

    resume: bool
    """True to count complete rounds that are already stored."""

    repeat_round: Annotated[int, Field(ge=1)]
    """Number of a stored round, from 1, to measure again because a run of it was slow; needs
    `resume`."""

    retries: Annotated[int, Field(ge=0)]
    """Number of retries of a run whose failure may be transient."""

    max_runs: Annotated[int, Field(ge=1)]
    """Largest number of runs of a plan; 1,000 by default."""

    within: Annotated[float, Field(gt=0)]
    """Seconds in which `rounds="auto"` may add rounds; 180 by default."""

    force: bool
    """True to run experiments that need more memory than the machine has."""

    oversubscribe: bool
    """True to allow more processes than cores."""

    allow_env: bool
    """True to let scenarios set any environment variable."""

    trust_remote_code: bool
    """True to let models run code of their own."""


def run(  # noqa: PLR0913 - the options that most calls need
    scenario: ScenarioSource,
    *,
    stacks: Sequence[str] | Mapping[str, Any] | None = None,
    plugins: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    results: str | os.PathLike[str] | None = None,
    rounds: int | Literal["auto"] | None = None,
    on_progress: Callable[[RunProgress], object] | None = None,
    **options: Unpack[RunOptions],
) -> Results:
    """Measure the stacks of a scenario side by side, and compare them.

    It does what `accel-bench run` does, by the same code: every run is a fresh process, the rounds
    of the stacks are interleaved, and every run is stored as soon as it has ended. Nothing is
    printed, and torch is not imported into this process.

    `scenario` is a file, a folder of files, the name of a shipped scenario, the content of a file
    as a mapping, or a `Scenario`. `stacks` are names of its stacks to run beside the baseline, or a
    mapping that replaces its stacks. `plugins` adds a stack for each plugin; `a+b` is one stack of
    both plugins in that order. `overrides` changes dotted keys, such as `{"measure.steps": 50}`.
    `results` is a folder or the address of a database, as for `open_store`. `rounds` is short for
    the override `measure.rounds`. `on_progress` is called with a `RunProgress`, one call at a time.
    `options` are the keys of `RunOptions`.

    Ctrl-C ends the run in progress, stores it, and is raised again as KeyboardInterrupt. An
    exception of `on_progress` ends the session in the same way, and is raised again.

    Raises ScenarioError or PluginError for faulty input before anything starts, NothingToRunError
    if everything is skipped, and StoreError if a run cannot be stored. A run that fails raises
    nothing: its row has the status and the reason.
    """
    checked = _check_options(options)
    short = {
        "measure.rounds": rounds,
        "measure.timeout_seconds": checked.get("timeout"),
        "resources.device": checked.get("device"),
    }
    changed = {key: value for key, value in short.items() if value is not None}
    request = _request(stacks, plugins, {**(overrides or {}), **changed}, checked)
    place, machine = place_of(results), read_machine()
    drafts = find_drafts([scenario])
    with allocated(drafts, machine, request, _NoCommand()) as allocation:
        if allocation is not None and allocation.exit_code is not None:
            return _of_another_process(allocation.exit_code, place)
        machine = machine_of(allocation, machine)
        plans = [plan_with_sizes(draft, machine, request) for draft in drafts]
        if not any(plan.runnable for plan in plans):
            raise NothingToRunError(plans[0].nothing)
        reporter = Reporter() if on_progress is None else CallbackReporter(on_progress)
        repeated = checked.pop("repeat_round", None)
        benchmark = Benchmark(
            results=place,
            machine=machine,
            allocation=allocation,
            command=("accel_bench.run", *(draft.source for draft in drafts)),
            session={"repeat_round": repeated - 1} if repeated else {},
            progress=lambda: nullcontext(reporter),
            **_fields_of(Benchmark, checked),
        )
        return _measure(plans, benchmark, reporter)


def run_purpose(
    purpose: str,
    scenario: ScenarioSource,
    *,
    stack: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    trust_remote_code: bool = False,
) -> list[Any]:
    """Call the function of an entry point on each rank of a stack, in fresh processes.

    `purpose` names the function's entry point in the group `accel_bench.purposes`. `stack` is the
    name of a stack of the scenario, by default the baseline's. `overrides` changes dotted keys of
    the scenario. The returned list holds the function's value on each rank, in order of ranks.
    Nothing is measured or stored, and torch is not imported into this process.

    Raises ScenarioError for faulty input, PluginError for an unknown purpose, and WorkerError if a
    rank has failed.
    """
    machine, changes = read_machine(), to_plain(overrides or {}, "overrides")
    (draft, *others) = find_drafts([scenario])
    if others:
        raise ScenarioError(f"a purpose takes one scenario, and {scenario!r} holds several")
    request = PlanRequest(
        overrides=tuple(changes.items()), trust_remote_code=trust_remote_code, notify=LOGGER.info
    )
    planned = plan_stack(draft, machine, request, stack)
    values = ask_ranks(purpose, planned, machine, trust_remote_code=trust_remote_code)
    return [from_json(value) for value in values]


def _fields_of(model: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of `options` whose names are fields of the dataclass `model`."""
    return {field.name: options[field.name] for field in fields(model) if field.name in options}


def _check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the validated keyword options of `run`. Raises TypeError for unknown names,
    ScenarioError for wrong values."""
    known = RunOptions.__annotations__
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known)
            raise TypeError(f"accel_bench.run() has no option {name!r}{hint}")
    try:
        checked = dict(TypeAdapter(RunOptions).validate_python(options))
    except ValidationError as error:
        problems = [f"{problem['loc'][0]}: {problem['msg']}" for problem in error.errors()]
        raise ScenarioError("; ".join(problems)) from None
    if "repeat_round" in checked and not checked.get("resume"):
        raise ScenarioError("repeat_round needs resume=True: the other rounds stay as stored")
    return checked


def _request(
    stacks: Sequence[str] | Mapping[str, Any] | None,
    plugins: Sequence[str],
    overrides: Mapping[str, Any],
    options: Mapping[str, Any],
) -> PlanRequest:
    """Return the planner's request for arguments of `run`, and for its keyword arguments
    `options`."""
    for name, value in (("stacks", stacks), ("plugins", plugins)):
        if isinstance(value, str):
            raise ScenarioError(f"{name}: expected a list of names, such as [{value!r}]")
    changes = to_plain(overrides, "overrides")
    if isinstance(stacks, Mapping):
        changes["stacks"] = to_plain(stacks, "stacks")
    named = () if stacks is None or isinstance(stacks, Mapping) else tuple(stacks)
    added, trackers = split_trackers(plugins)
    return PlanRequest(
        plugins=added,
        trackers=trackers,
        only=named,
        overrides=tuple(changes.items()),
        allow_environment=options.get("allow_env", False),
        notify=LOGGER.info,
        **_fields_of(PlanRequest, options),
    )


def _measure(plans: Sequence[Plan], benchmark: Benchmark, reporter: Reporter) -> Results:
    """Run the plans and return their results, raising an exception of `on_progress` again."""
    ended: list[Results] = []

    def keep(measured: Measured) -> None:
        ids = {result.session for result in measured.results}
        counted = {result.run_id for result in measured.results}
        rows = run_columns(measured.store, [RUNS.c.session.in_(sorted(ids))])
        own = [row for row in rows if row["run_id"] in counted]
        ended.append(Results(measured.summaries, measured.results, own, measured.store.folder))

    try:
        run_plans(plans, benchmark, keep)
    except KeyboardInterrupt:
        raised = getattr(reporter, "raised", None)
        if raised is None:
            raise
        raise raised from None
    return ended[0]


def _of_another_process(exit_code: int, place: str) -> Results:
    """Return empty results, since another process has measured. `exit_code` is the exit code of
    that process, `place` the results folder. Raises AccelBenchError if the code is not 0."""
    if exit_code:
        raise AccelBenchError(f"the process that measures ended with exit code {exit_code}")
    return Results((), (), (), Path(place))


class _NoCommand(Sequence[str]):
    """Placeholder for the program's command-line arguments, which a call from Python does not have.
    A launcher that would start the command again elsewhere gets a ScenarioError when it reads
    them."""

    def _refusal(self) -> ScenarioError:
        return ScenarioError(
            "the launcher runs the command of the program again elsewhere, and a call from Python "
            "has none; use `accel-bench run`, or call it where the launcher has started it"
        )

    def __len__(self) -> int:
        raise self._refusal()

    def __getitem__(self, index: Any) -> Any:
        raise self._refusal()
