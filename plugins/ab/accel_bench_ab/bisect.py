"""`accel-bench bisect`: find the change that made something slower."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import split
from typing import Annotated

import typer

from accel_bench.analysis.statistics.verdict import MINIMUM_ROUNDS
from accel_bench.cli.options import PlanOptions, parse_fraction, takes
from accel_bench.cli.output import print_aside, print_report
from accel_bench.cli.request import Invocation, plan_request, single_draft
from accel_bench.documents.escaping import plain
from accel_bench.documents.presets import find_presets
from accel_bench.errors import ScenarioError, WorkerError
from accel_bench.runner.interrupted import open_results
from accel_bench_ab.bisect_commits import CommitHistory
from accel_bench_ab.bisect_history import History
from accel_bench_ab.bisect_packages import PackageHistory
from accel_bench_ab.bisect_report import bisect_report, bisect_view
from accel_bench_ab.bisect_rounds import BisectRounds
from accel_bench_ab.bisect_search import Bisection
from accel_bench_ab.bisect_subject import CommandSubject, ScenarioSubject, Subject, is_scenario
from accel_bench_ab.command import ObserverOptions, settings_of
from accel_bench_ab.plugin import digests_of
from accel_bench_ab.session import counted_by, see
from accel_bench_ab.variants import two_sides


@dataclass(frozen=True, kw_only=True)
class BisectOptions(ObserverOptions, PlanOptions):
    """Command-line options of `accel-bench bisect`."""

    ends: Annotated[
        str,
        typer.Argument(
            metavar="GOOD..BAD", help="Two commits, or two lock files: OLD.txt..NEW.txt."
        ),
    ]
    words: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND | SCENARIO", help="A command, or a scenario."),
    ]
    build: Annotated[
        str, typer.Option(metavar="COMMAND", help="Run this in each work tree first.")
    ] = ""
    floor: Annotated[
        str, typer.Option(metavar="FRACTION", help="Smallest effect that counts: 2% or 0.02.")
    ] = "2%"
    rounds: Annotated[
        int, typer.Option(min=MINIMUM_ROUNDS, help="Most rounds of one comparison.")
    ] = 80
    stack: Annotated[str, typer.Option(help="The stack of the scenario; else the baseline.")] = ""
    max_runs: Annotated[
        int,
        typer.Option(min=1, help="Stop before more runs in all; a larger number goes on."),
    ] = 1000


@takes(BisectOptions)
def bisect(options: BisectOptions) -> int:
    """Find the change between a good and a bad version that made something slower.

    The versions are commits by first parent, each in a work tree of its own, or the packages
    between two lock files, one changed after the other. Versions between the ends are measured in
    the same rounds as both ends. Fresh rounds confirm the answer. The same command resumes a
    stopped search.

    Exits with 0 for an answer: a change, several, or none. Exits with 5 if the search is undecided,
    or if versions that could not be measured hide the change.
    """
    floor = parse_fraction(options.floor, "--floor")
    history = read_history(options)
    invoked = Invocation(options)
    subject = _subject(options, history, invoked)
    notify = _silent if options.quiet else print_aside
    versions = history.versions
    notify(plain(f"{len(versions)} versions from {versions[0].name} to {versions[-1].name}"))
    if options.dry_run:
        return 0
    answered = False
    try:
        with open_results(options.results, write=True) as store:
            with invoked.sessions(store) as new_session:
                rounds = BisectRounds(
                    history,
                    subject,
                    Bisection(len(versions), floor, options.rounds),
                    store,
                    new_session,
                    lambda line: notify(plain(line)),
                    options.max_runs,
                )
                report = bisect_report(rounds, rounds.search())
        print_report(bisect_view(report), options.output)
        answered = not report.exit_code
    finally:
        history.close(answered)
    return report.exit_code


def read_history(options: BisectOptions) -> History:
    """Return the history between the two ends in `options.ends`: commits or lock files.

    Raises ScenarioError unless both ends are commits of the current repository, or both are
    existing lock files, and for a build command with an open quotation.
    """
    try:
        good, bad = two_sides(options.ends, "", paths=True)
    except ScenarioError as error:
        raise ScenarioError(
            f"{options.ends}: expected GOOD..BAD: two commits, or two lock files"
        ) from error
    files = [Path(end).is_file() for end in (good, bad)]
    if all(files):
        if options.build:
            raise ScenarioError("--build belongs to commits; pip builds packages")
        return PackageHistory(Path(good), Path(bad))
    if any(files):
        other = bad if files[0] else good
        raise ScenarioError(f"{options.ends}: there is no file {other!r}")
    try:
        build = split(options.build)
    except ValueError as error:
        raise ScenarioError(f"--build {options.build}: {error}") from error
    return CommitHistory(good, bad, build, Path.cwd())


def _counted(subject: CommandSubject, history: History) -> CommandSubject:
    """Return the command with the unit in which its work is counted: tokens, steps or whole runs.

    A short run of the command at both ends of the history shows what can be counted.
    """
    known = history.versions
    ready = {known[index].name: history.prepare(index, True) for index in (0, len(known) - 1)}
    for version, made in ready.items():
        _refuse_uncommitted(subject.command, history, version, made.folder or Path())
    looking = replace(subject, settings=replace(subject.settings, steps=0))
    try:
        seen = see(looking.plan(ready, 1), subject.invoked)
    except WorkerError as error:
        raise ScenarioError(f"an end cannot be measured: {error}") from error
    settings = counted_by(seen, subject.settings)
    unit = "runs by wall time" if settings.by == "wall" else settings.by
    print_aside(f"counted in {unit}, as seen at both ends")
    return replace(subject, settings=settings)


def _refuse_uncommitted(words: Sequence[str], history: History, version: str, folder: Path) -> None:
    """Raise ScenarioError if a version's work tree lacks a file that the command names.

    `words` are the words of the command, `folder` is the work tree, and `version` is the version's
    name.
    """
    for word in filter(history.decides_on, words):
        if os.path.isfile(word) and not (folder / word).exists():
            raise ScenarioError(
                f"{version} has no {word}, which is not committed there: take a later good "
                "commit, or give the file's full path to run it as it is at each version"
            )


def _subject(options: BisectOptions, history: History, invoked: Invocation) -> Subject:
    """Return the command or the scenario in `options.words`, which is run at each version.

    Raises ScenarioError for options that do not apply, such as `--stack` with a command.
    """
    words: Sequence[str] = options.words
    compared = {"measure.compare": options.compare}
    if not is_scenario(words, [*find_presets("scenarios")]):
        if options.stack:
            raise ScenarioError("--stack belongs to a scenario, and a command was given")
        settings = settings_of(options)
        known = digests_of(words, Path()).items()
        files = {name: digest for name, digest in known if not history.decides_on(name)}
        subject = CommandSubject(words, settings, plan_request(options, {}), invoked, repr(files))
        looks = options.by == "auto" and not (options.no_observe or options.dry_run)
        return _counted(subject, history) if looks else subject
    with redirect_stdout(sys.stderr):
        draft = single_draft(words[0], "bisect")
        request = plan_request(options, compared)
    only = (options.stack,) if options.stack else ()
    plan = invoked.plan(draft, replace(request, only=only, build_environments=False))
    return ScenarioSubject(draft, options.stack or plan.baseline, request, invoked)


def _silent(line: str) -> None:
    """Accept and ignore a progress line."""
