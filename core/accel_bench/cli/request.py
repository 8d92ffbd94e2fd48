"""What commands that run experiments share: from their options to plans, sessions, an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from typing import Any

import typer

from accel_bench.analysis.schema import Summary
from accel_bench.analysis.summary import exit_code
from accel_bench.cli.dry_run import print_plan
from accel_bench.cli.options import PlanOptions, WorkOptions
from accel_bench.cli.output import print_aside, print_text
from accel_bench.cli.progress import make_reporter
from accel_bench.documents.escaping import plain
from accel_bench.documents.load import parse_value
from accel_bench.documents.redaction import Redactor
from accel_bench.errors import NothingToRunError, ScenarioError
from accel_bench.launcher import Allocation
from accel_bench.machine.info import Machine, read_machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.planning.request import split_trackers
from accel_bench.result import Status
from accel_bench.runner.allocation import allocated, machine_of
from accel_bench.runner.artifacts import log_end
from accel_bench.runner.benchmark import WITHIN, Benchmark, Measured, session_maker
from accel_bench.runner.benchmark import run_plans as run_plans_in_sessions
from accel_bench.runner.session import Reporter, Session
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.find import find_drafts
from accel_bench.store.database import Store


@dataclass(frozen=True)
class Invocation:
    """One call of a command: its options, this machine, and processes that its launcher keeps."""

    options: PlanOptions
    machine: Machine = field(default_factory=read_machine)
    allocation: Allocation | None = None

    within: float = WITHIN
    """Seconds for rounds that `auto` adds."""

    @contextmanager
    def allocated(self, drafts: Sequence[Draft], request: PlanRequest) -> Iterator[Invocation]:
        """Yield the same with the processes that the launcher of these scenarios keeps.

        Raises typer.Exit where the launcher has run the program elsewhere, with its exit code.
        """
        dry_run = self.options.dry_run
        with allocated(drafts, self.machine, request, sys.argv, dry_run) as allocation:
            if allocation is not None and allocation.exit_code is not None:
                raise typer.Exit(allocation.exit_code)
            machine = machine_of(allocation, self.machine)
            yield replace(self, machine=machine, allocation=allocation)

    def plan(self, draft: Draft, request: PlanRequest) -> Plan:
        """Return the plan; what a plugin prints is no part of the document."""
        with redirect_stdout(sys.stderr):
            return make_plan(draft, self.machine, request)

    def show(self, plans: Sequence[Plan]) -> None:
        """Print what would run."""
        print_plan(plans, self.options.results, self.options.output)

    @contextmanager
    def sessions(self, store: Store) -> Iterator[Callable[..., Session]]:
        """Show progress, and yield what makes sessions as `session_maker` says; stdout is stderr
        meanwhile."""
        benchmark = self.benchmark()
        with benchmark.progress() as reporter:
            yield session_maker(benchmark, store, reporter)

    def benchmark(self) -> Benchmark:
        """Return what plans are run with; stdout is stderr while they run."""
        options = self.options

        @contextmanager
        def progress() -> Iterator[Reporter]:
            with redirect_stdout(sys.stderr), closing(make_reporter(options.quiet)) as reporter:
                yield reporter

        return Benchmark(
            results=options.results,
            machine=self.machine,
            allocation=self.allocation,
            command=tuple(sys.argv),
            retries=options.retries,
            resume=getattr(options, "resume", False),
            within=self.within,
            progress=progress,
        )


def run_plans(
    plans: Sequence[Plan],
    invoked: Invocation,
    show: Callable[[Sequence[Summary]], None],
    code: Callable[[Sequence[Summary]], int] = exit_code,
    **session: Any,
) -> int:
    """Run the plans and show their summaries, or print the plans alone with `--dry-run`.

    `show` prints what was measured, and `code` returns the exit code for it; `session` are settings
    of the sessions. Raises NothingToRunError where everything is skipped.
    """
    options = invoked.options
    nothing_runs = not any(plan.runnable for plan in plans)
    if options.dry_run:
        invoked.show(plans)
    elif nothing_runs:
        show([plan.summarize([]) for plan in plans])
    if nothing_runs:
        raise NothingToRunError(plans[0].nothing)
    if options.dry_run:
        return 0
    for plan in plans:
        if plan.nothing:
            print_aside(f"not run: {plain(plan.nothing)}")
    ended: list[Measured] = []

    def show_all(measured: Measured) -> None:
        ended.append(measured)
        show(measured.summaries)
        if options.output == "table":
            print_failures(measured.store, measured.sessions)
            results = Redactor.of_this_process().redact(options.results)
            listing = f"accel-bench results list --results {results}"
            print_text(f"\nResults: {measured.store.folder}\n  {listing}")

    run_plans_in_sessions(plans, replace(invoked.benchmark(), session=session), show_all)
    return code(ended[0].summaries)


def plan_request(options: WorkOptions, short: Mapping[str, Any], **command: Any) -> PlanRequest:
    """Return the request to the planner; `short` are values of dotted keys that have options of
    their own, and `command` is what one command alone requests."""
    short = {
        **short,
        "measure.timeout_seconds": options.timeout,
        "resources.device": options.device,
    }
    stacks, trackers = split_trackers(options.plugin or ())
    return PlanRequest(
        plugins=stacks,
        trackers=trackers,
        overrides=parse_overrides(options.set_ or [], short),
        allow_environment=options.allow_env,
        trust_remote_code=options.trust_remote_code,
        force=options.force,
        oversubscribe=options.oversubscribe,
        max_runs=getattr(options, "max_runs", PlanRequest.max_runs),
        **command,
    )


def one_draft(scenario: str, command: str) -> Draft:
    """Return the draft of one scenario. Raises ScenarioError for a folder of several."""
    with redirect_stdout(sys.stderr):  # what a plugin prints is no part of the document
        drafts = find_drafts((scenario,))
    if len(drafts) != 1:
        raise ScenarioError(f"{command} takes one scenario, and {scenario!r} holds several")
    return drafts[0]


def parse_overrides(
    assignments: Sequence[str], short: Mapping[str, Any]
) -> tuple[tuple[str, Any], ...]:
    """Parse `key=value` texts; the short forms come after them. Raises ScenarioError."""
    parsed = []
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ScenarioError(f"--set {assignment}: expected KEY=VALUE, such as measure.steps=50")
        parsed.append((key.strip(), parse_value(text, f"--set {key.strip()}")))
    return (*parsed, *((key, value) for key, value in short.items() if value is not None))


def print_failures(store: Store, sessions: Sequence[Session]) -> None:
    """Print of each failed run its log's path, and its last lines or the reasons that say all.

    A worker that was ended with the program has not failed, whatever it was doing.
    """
    shown: set[str] = set()
    last: list[str] | None = None
    for session in sessions:
        for result in store.results(session=session.id):
            ended = result.status.completed or result.status is Status.INTERRUPTED
            calls = result.experiment.scenario.calls_alone
            ended = ended or (calls and result.status is Status.OOM)  # that is an answer
            if ended or result.experiment.id in shown:
                continue
            shown.add(result.experiment.id)
            lines = log_end(result) or list(result.reasons)
            typer.echo(f"\n{plain(result.experiment.stack.name)}: {result.status.value}; log in")
            typer.echo(f"  {plain(str(store.folder / result.folder))}")
            for line in lines if lines != last else ["(as above)"]:
                typer.echo(f"  | {plain(line)}")
            last = lines
