"""Execution of one sweep point: caches are filled, then missing rounds are run and stored."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from accel_bench.analysis.aggregate import PlannedSummary, collect_runs, replaced_rounds
from accel_bench.analysis.race import ENDS_A_STACK, race_point
from accel_bench.analysis.too_large import too_large
from accel_bench.documents.redaction import Redactor
from accel_bench.errors import StoreUnavailableError, UnreadableResultError
from accel_bench.job import PREPARE
from accel_bench.planning.plan import Plan, Planned
from accel_bench.result import Result, Status
from accel_bench.runner.artifacts import record_result, record_start, repeat_command, run_folder
from accel_bench.runner.attempt import make_attempt, run_attempt
from accel_bench.runner.concurrent_points import PartLostError, first_place
from accel_bench.runner.interrupted import attempt_in_progress, save_pending_result
from accel_bench.runner.update_files import PendingUpdates
from accel_bench.runner.williams_design import williams_rounds
from accel_bench.scenario.experiment import Experiment
from accel_bench.store.records import redact_result

if TYPE_CHECKING:
    from accel_bench.runner.session import Session


class NodesChangedError(Exception):
    """Error for an allocation whose nodes were replaced after caches were filled on them."""


class SweepPointRun:
    """Execution of the stacks of one sweep point, in the rounds that are missing in the store."""

    def __init__(
        self, session: Session, plan: Plan, planned: Sequence[Planned], replaces: str = ""
    ) -> None:
        """Find the missing rounds; `replaces` is a session of which `repeat_round` is run again."""
        self._stacks = {item.experiment.stack.name: item for item in planned}
        self._session = session
        self._plan = plan
        self._stored = session.earlier([item.experiment.id for item in planned])
        self._dropped: set[str] = set()
        self._raced = self._dropped_by_race()
        # None lets round 1 find the warm-up.
        self._warmup = max(filter(None, map(_warmup_steps, self._stored)), default=None)
        self._found = 0
        measure = plan.file.measure
        again = session.repeat_round if replaces else None
        self._replaces = {} if again is None else {again: replaces}
        self.place = first_place(session.allocation)
        """Part of the allocation on which the point runs."""
        self.stop: threading.Event | None = None
        """Event that is set when the session ends; None for a point in the main thread."""
        self._done: set[int] = set()
        self._attempts: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._nodes: tuple[str, ...] = ()
        needed = [item.experiment for name, item in self._stacks.items() if name not in self._raced]
        missing = missing_rounds(self._stored, needed, plan.rounds)
        numbers = sorted({*missing, *self._replaces})
        most = max(plan.rounds, *(number + 1 for number in numbers), 1)
        order = williams_rounds(list(self._stacks), most, measure.seed)
        self.rounds: dict[int, list[str]] = {number: order[number] for number in numbers}
        compared = len(self._stacks) > 1 and plan.baseline in self._stacks
        self._changes = PendingUpdates(plan.baseline, measure.exact_update_bytes if compared else 0)

    def run_point(self) -> None:
        """Prepare every stack, then run the missing rounds.

        Raises PartLostError if its part of the allocation is lost. Another part then runs the whole
        round again, since the runs of a round share their machines.
        """
        self.prepare()
        for number in [number for number in self.rounds if number not in self._done]:
            self.run_round(number)
            self._done.add(number)

    def prepare(self) -> None:
        """Fill the caches of all stacks if a round is missing; repeat this on replaced nodes."""
        ready = not self.rounds
        self._drop_too_large()
        while not ready:
            self._nodes = self._nodes_now()
            with contextlib.suppress(NodesChangedError):
                for name, planned in self._stacks.items():
                    if name not in self._raced and name not in self._dropped:
                        self._prepare(planned)
                ready = True

    def run_round(self, number: int) -> None:
        """Run the round `number`, from 0; prepare and run it again whole if nodes are replaced."""
        self._drop_too_large()
        while not self._run_stacks(number):
            self.prepare()
        self._warmup = self._warmup or self._found or None
        before = self._raced
        self._raced = {**self._dropped_by_race(), **before}
        for name in [name for name in self._raced if name not in before]:
            self._session.reporter.on_drop(self._stacks[name], self._raced[name])

    def _drop_too_large(self) -> None:
        """Drop the stacks that have run out of memory at a smaller sweep point than this one."""
        for name, planned in self._stacks.items():
            reason = too_large(planned.experiment, self._session.out_of_memory)
            if reason and name not in self._dropped:
                self._dropped.add(name)
                self._session.reporter.on_drop(planned, reason)

    def _dropped_by_race(self) -> dict[str, str]:
        """Return the stacks that `--race` drops from further rounds, by name, with the reasons."""
        if not self._plan.request.race:
            return {}
        ids = [planned.experiment.id for planned in self._stacks.values()]
        own = self._session.store.results(session=self._session.id, experiment_ids=ids)
        results = [*self._stored, *own]
        rows = [
            collect_runs(PlannedSummary(experiment=planned.experiment), results, 0)
            for planned in self._stacks.values()
        ]
        drops = race_point(rows, self._plan.baseline, self._plan.rounds)
        return {drop.stack: drop.reason for drop in drops}

    def _run_stacks(self, number: int) -> bool:
        """Run the stacks of a round; return whether the allocation's nodes stayed the same."""
        try:
            for position, name in enumerate(self.rounds.get(number, ())):
                if name not in self._dropped and name not in self._raced:
                    self._run(self._stacks[name], number, position)
        except NodesChangedError:
            return False
        finally:
            self._changes.close()
        return number not in self.rounds or self._nodes_now() == self._nodes

    def _prepare(self, planned: Planned) -> None:
        """Fill a stack's caches in an untimed attempt; drop the stack if that fails."""
        if not planned.active.implements("prepare_experiment"):
            return
        self._check_place()
        if not self._attempt(planned, "prepare", 0, 0, PREPARE).status.completed:
            self._dropped.add(planned.experiment.stack.name)

    def _run(self, planned: Planned, number: int, position: int) -> None:
        """Run one stack in a round; repeat transient failures up to `Session.retries` times."""
        rounds = self._plan.rounds
        key = _run_key(planned, "measure", number)
        # What failed before the nodes were replaced counts too: a stack may be what kills them.
        while self._failed[key] <= self._session.retries:
            self._check_place()
            attempt = self._attempts[key]
            again = f", attempt {attempt + 1}" if attempt else ""
            what = f"round {number + 1} of {rounds}{again}"
            result = self._attempt(planned, "measure", number, position, what)
            if result.status.completed:
                if self._plan.file.measure.warmup == "auto":
                    # The largest of round 1 becomes that of all stacks.
                    self._found = max(self._found, _warmup_steps(result))
                return
            self._failed[key] += 1
            if result.status.repeatable or self._failed[key] > self._session.retries:
                if result.status is Status.OOM:
                    self._session.out_of_memory.append(planned.experiment)
                if result.status in ENDS_A_STACK:
                    self._dropped.add(planned.experiment.stack.name)
                return

    def _attempt(
        self,
        planned: Planned,
        purpose: Literal["prepare", "measure"],
        number: int,
        position: int,
        what: str,
    ) -> Result:
        """Run the ranks of an experiment once, store and return the result. `number` is the round
        from 0, `position` the place in its order, `what` the attempt's name for the reporter."""
        session = self._session
        session.reporter.on_start(planned, what)
        root = session.store.folder
        key = _run_key(planned, purpose, number)
        attempt = self._attempts[key]
        self._attempts[key] += 1
        name = _folder_name(planned.experiment, purpose, number, position, attempt)
        folder = self._folder(planned, name)
        command = repeat_command(folder, root, self._plan.request)
        record_start(folder, planned, command)
        shared = self.stop is not None
        made = make_attempt(
            root,
            folder,
            session.id,
            planned.machine(session.machine),
            purpose=purpose,
            experiment=planned.experiment,
            interpreter=planned.command,
            warmup=self._warmup,
            round=number,
            attempt=attempt,
            trust_remote_code=self._plan.request.trust_remote_code,
            update_bytes=self._changes.room(root, shared) if purpose == "measure" else 0,
            observers=self._plan.request.observers if purpose == "measure" else (),
        )
        stored: list[Result] = []

        def keep(result: Result) -> Result:
            changed = self._changes.add(made.job.update_path(), result, shared)
            return self._keep(folder, changed, purpose, stored)

        try:
            with attempt_in_progress(folder):
                result = run_attempt(
                    replace(
                        made,
                        position=position,
                        command=command,
                        allocation=self.place,
                        stop=self.stop,
                    ),
                    planned.active,
                    lambda progress: session.reporter.on_progress(planned, what, progress),
                    keep,
                )
        except KeyboardInterrupt:
            for run in stored:
                session.reporter.on_result(planned, what, run)
            raise
        finally:
            for run in stored:
                session.trackers.record(run)
        session.reporter.on_result(planned, what, result)
        return result

    def _folder(self, planned: Planned, name: str) -> Path:
        """Create and return the folder `name` for an attempt, in the folder of its sweep point."""
        redactor = Redactor.of_this_process(planned.experiment.scenario.environment)
        tag = redactor.redact(planned.experiment.tag)  # a swept variable may be a secret
        return run_folder(self._session.store.folder, self._session.id, name, tag)

    def _check_place(self) -> None:
        """Raise KeyboardInterrupt if the session has ended, NodesChangedError for replaced nodes.
        Outside the main thread, raise PartLostError if the allocation's part is lost."""
        ready = getattr(self.place, "is_ready", lambda: True)()
        if self.stop is not None and self.stop.is_set():
            raise KeyboardInterrupt
        if self.stop is not None and not ready:
            raise PartLostError
        if self._nodes_now() != self._nodes:
            raise NodesChangedError

    def _nodes_now(self) -> tuple[str, ...]:
        """Return the names of the nodes of the allocation's part; empty without an allocation."""
        return tuple(getattr(self.place, "node_names", tuple)())

    def _keep(self, folder: Path, result: Result, purpose: str, added: list[Result]) -> Result:
        """Store a run or failed preparation and add it to `added`; return it without secrets."""
        if purpose == "measure":
            own = {"replaces": self._replaces.get(result.round, "")}
            result = result.model_copy(update={**own, "provenance": self._session.repeats})
        if purpose == "measure" or not result.status.completed:
            try:
                stored = self._add(result)
            except StoreUnavailableError as error:
                raise save_pending_result(folder, result, error) from error
            added.append(stored)
        else:
            stored = redact_result(result)
        if folder.is_dir():  # it may have been removed while the run went on
            record_result(folder, stored)
        return stored

    def _add(self, result: Result) -> Result:
        """Store and return a result, without its measurements if these could not be read back."""
        try:
            with self._session.writing:
                return self._session.store.add(result)
        except UnreadableResultError as error:
            status = Status.INVALID if result.status.completed else result.status
            reason = f"{error}; what its ranks measured stays in their files in {result.folder}"
            reasons = (*result.reasons, reason)
            short = {"status": status, "reasons": reasons, "ranks": (), "metrics": ()}
            with self._session.writing:
                return self._session.store.add(result.model_copy(update=short))


def missing_rounds(
    stored: Sequence[Result], needed: Sequence[Experiment], rounds: int
) -> list[int]:
    """Return the numbers of the rounds to run until `rounds` are complete, the lowest first.

    A round is complete if each `needed` experiment has a completed run in it, all in one session.
    """
    by_round: dict[tuple[str, int], set[tuple[str, str]]] = {}
    replaced = replaced_rounds(stored)
    for result in stored:
        key = (result.session, result.round)
        if result.status.completed and key not in replaced:
            by_round.setdefault(key, set()).add(_name(result.experiment))
    every = {*map(_name, needed)}
    complete = [number for (_, number), names in by_round.items() if names >= every]
    missing = [number for number in range(rounds) if number not in complete]
    return missing[: max(0, rounds - len(complete))]


def _name(experiment: Experiment) -> tuple[str, str]:
    # Two stacks that do the same have the same id: an A/A comparison needs their names too.
    return experiment.id, experiment.stack.name


def _run_key(planned: Planned, purpose: str, number: int) -> str:
    """Return the key of a run or preparation at its sweep point, the same for all its attempts."""
    return f"{purpose} {number} {planned.experiment.stack.name}"


def _folder_name(
    experiment: Experiment, purpose: str, number: int, position: int, attempt: int
) -> str:
    """Return a folder name that sorts in the order of the rounds: `01-2-baseline-0123456789ab`."""
    order = "prepare" if purpose == "prepare" else f"{number + 1:02}-{position + 1}"
    again = f"-attempt{attempt + 1}" if attempt else ""
    return f"{order}-{experiment.stack.name}-{experiment.id}{again}"


def _warmup_steps(result: Result) -> int:
    return max((len(rank.window.warmup) for rank in result.ranks if rank.window), default=0)
