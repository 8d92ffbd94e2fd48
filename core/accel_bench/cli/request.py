"""Common parts of commands that run experiments: plans, sessions and exit codes from options."""

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
    """One call of a command: options, this machine, and machines that the launcher allocated."""

    options: PlanOptions
    machine: Machine = field(default_factory=read_machine)
    allocation: Allocation | None = None

    within: float = WITHIN
    """Seconds in which `measure.rounds: auto` may add rounds."""

    @contextmanager
    def allocated(self, drafts: Sequence[Draft], request: PlanRequest) -> Iterator[Invocation]:
        """Let the scenarios' launcher allocate machines, and yield a call that uses them. Raises
        typer.Exit, with the program's exit code, if the launcher has run the program elsewhere."""
        dry_run = self.options.dry_run
        with allocated(drafts, self.machine, request, sys.argv, dry_run) as allocation:
            if allocation is not None and allocation.exit_code is not None:
                raise typer.Exit(allocation.exit_code)
            machine = machine_of(allocation, self.machine)
            yield replace(self, machine=machine, allocation=allocation)

    def plan(self, draft: Draft, request: PlanRequest) -> Plan:
        """Return the plan of a scenario; redirect to stderr anything that plugins print."""
        with redirect_stdout(sys.stderr):
            return make_plan(draft, self.machine, request)

    def show(self, plans: Sequence[Plan]) -> None:
        """Print the plans in the command's format."""
        print_plan(plans, self.options.results, self.options.output)

    @contextmanager
    def sessions(self, store: Store) -> Iterator[Callable[..., Session]]:
        """Show progress in the `with` block; yield a function that makes the command's sessions."""
        benchmark = self.benchmark()
        with benchmark.progress() as reporter:
            yield session_maker(benchmark, store, reporter)

    def benchmark(self) -> Benchmark:
        """Return the settings with which the command runs its plans."""
        options = self.options

        @contextmanager
        def progress() -> Iterator[Reporter]:
            with (
                redirect_stdout(sys.stderr),
                closing(make_reporter(options.quiet, options.progress)) as reporter,
            ):
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
    """Run the plans, show their summaries and return the exit code; with `--dry-run` only print
    plans. `show` prints the summaries, `code` computes the exit code from them, and `session` holds
    fields of `Session`. Raises NothingToRunError if every experiment is skipped."""
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
    for nothing in filter(None, (plan.nothing for plan in plans)):
        print_aside(f"not run: {plain(nothing)}")
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
    """Return the planner's request for a command's options. `short` has the values of options that
    stand for one dotted key, such as `--rounds`, by this key. `command` has further fields of the
    request."""
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


def single_draft(scenario: str, command: str) -> Draft:
    """Return the draft of one scenario. Raises ScenarioError if the file or folder `scenario` holds
    several; the message begins with `command`."""
    with redirect_stdout(sys.stderr):  # what a plugin prints is no part of the document
        drafts = find_drafts((scenario,))
    if len(drafts) != 1:
        raise ScenarioError(f"{command} takes one scenario, and {scenario!r} holds several")
    return drafts[0]


def parse_overrides(
    assignments: Sequence[str], short: Mapping[str, Any]
) -> tuple[tuple[str, Any], ...]:
    """Return (key, value) pairs of the texts `KEY=VALUE`, then those of `short`, except values of
    None. Raises ScenarioError for a text of another form."""
    parsed = []
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ScenarioError(f"--set {assignment}: expected KEY=VALUE, such as measure.steps=50")
        parsed.append((key.strip(), parse_value(text, f"--set {key.strip()}")))
    return (*parsed, *((key, value) for key, value in short.items() if value is not None))


def print_failures(store: Store, sessions: Sequence[Session]) -> None:
    """Print the log's path of each experiment that failed in the sessions, and the log's last lines
    or the reasons. A run that was interrupted with the program has not failed."""
    shown: set[str] = set()
    last: list[str] | None = None
    for session in sessions:
        for result in store.results(session=session.id):
            ended = result.status.completed or result.status is Status.INTERRUPTED
            if result.status is Status.OOM and result.experiment.scenario.calls_alone:
                continue  # that is an answer
            if ended or result.experiment.id in shown:
                continue
            shown.add(result.experiment.id)
            lines = log_end(result) or list(result.reasons)
            typer.echo(f"\n{plain(result.experiment.stack.name)}: {result.status.value}; log in")
            typer.echo(f"  {plain(str(store.folder / result.folder))}")
            for line in lines if lines != last else ["(as above)"]:
                typer.echo(f"  | {plain(line)}")
            last = lines
