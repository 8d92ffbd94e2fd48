"""Measurement of `bisect`'s rounds in ordinary sessions, and the state to resume a search.

The state contains the ids of each comparison's sessions, and the skipped versions. The rounds are
read from the store, so that a killed search resumes after the last complete round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field, ValidationError

from accel_bench.analysis.aggregate import collect_experiments
from accel_bench.analysis.quantity import Quantity
from accel_bench.analysis.wording import count, join_names
from accel_bench.documents.base import Frozen
from accel_bench.documents.canonical import digest
from accel_bench.documents.files import read_text, write_atomically
from accel_bench.errors import AccelBenchError, ScenarioError, StoreError, WorkerError
from accel_bench.result import Result
from accel_bench.runner.artifacts import log_end
from accel_bench.runner.session import Session
from accel_bench.store.database import Store
from accel_bench_ab.bisect_history import History, Prepared, VersionError
from accel_bench_ab.bisect_search import (
    BisectAnswer,
    Bisection,
    Comparing,
    Costs,
    MoreRounds,
)
from accel_bench_ab.bisect_subject import Subject

FOLDER = "bisect"
"""Name of the folder with the states of searches, inside the results folder."""

MOST_BYTES = 1 << 24
"""Maximum bytes of the file with a search's state."""


class BisectSession(Frozen):
    """A session of a search, with the versions that it compares."""

    kind: str
    versions: tuple[int, ...] = Field(strict=False)
    id: str


class BisectState(Frozen):
    """State of a search: its sessions and skipped versions."""

    sessions: tuple[BisectSession, ...] = Field((), strict=False)
    skipped: dict[str, str] = Field(default_factory=dict)
    """Reasons for skipping versions, by their index in the history."""


@dataclass
class BisectRounds:
    """Runner of a search, which measures the rounds that the search algorithm requests."""

    history: History
    subject: Subject
    bisection: Bisection
    store: Store
    new_session: Callable[..., Session]
    notify: Callable[[str], object]

    most_runs: int
    """Maximum total number of runs."""

    seconds: float = 0.0
    """Seconds of all runs so far."""

    runs: int = 0
    """Number of runs so far, failed ones included."""

    quantity: Quantity = field(default_factory=Quantity)
    """Compared quantity."""

    _state: BisectState = field(default_factory=BisectState)

    def __post_init__(self) -> None:
        key = digest([*self.history.identity, "", *self.subject.identity,
                      repr(self.bisection.floor)], 24)  # fmt: skip
        self.path = Path(self.store.folder) / FOLDER / f"{key}.json"
        if self.path.exists():
            text = read_text(self.path, MOST_BYTES, StoreError, "; is it a state of bisect?")
            try:
                self._state = BisectState.model_validate_json(text)
            except ValidationError as error:
                raise StoreError(f"{self.path}: no state of this bisect; remove it") from error
            self.bisection.skipped |= {int(k): why for k, why in self._state.skipped.items()}
            for session in self._state.sessions:
                self._read(Comparing(session.kind, session.versions), session.id)  # type: ignore[arg-type]
            self.notify(f"goes on after {count(self.runs, 'run')} ({self.path})")

    def search(self) -> BisectAnswer:
        """Measure rounds until there is an answer, or `most_runs` is reached; return the answer."""
        while isinstance(more := self.bisection.next(), MoreRounds):
            left = (self.most_runs - self.runs) // len(more.comparing.versions)
            if left < 1:
                reason = (
                    f"--max-runs {self.most_runs} allows no more; the same command with a larger "
                    "one goes on"
                )
                last, first = self.bisection.known if self.bisection.sides else (None, None)
                return BisectAnswer("inconclusive", last, first, reason=reason)
            self._measure(more._replace(rounds=min(left, more.rounds)))
        return more

    def _measure(self, more: MoreRounds) -> None:
        """Measure the requested rounds in a new session, or skip a version that cannot be run."""
        versions = more.comparing.versions
        ready = {}
        for version in versions:
            try:
                ready[self._name(version)] = self._prepare(version)
            except VersionError as error:
                self._skip(version, str(error))
                return
        is_new = not self.bisection.rounds.get(more.comparing)
        rounds = 1 if is_new and not all(map(self._has_run, versions)) else more.rounds
        plan = self.subject.plan(ready, rounds)
        for planned in plan.planned:
            if planned.skipped:
                name = self.subject.version_of(planned.experiment)
                self._skip(self._place(name, versions), "; ".join(planned.skipped))
                return
        session = self.new_session(interleave=True)
        made = BisectSession(kind=more.comparing.kind, versions=versions, id=session.id)
        self._keep(sessions=(*self._state.sessions, made))
        self.notify(self._announcement(more.comparing, rounds))
        session.run_plan(plan)
        if not self._read(more.comparing, session.id):
            self._blame(versions, session.id)

    def _prepare(self, version: int) -> Prepared:
        ready = self.history.prepare(version, self.subject.needs_environment)
        if not self.subject.needs_environment:
            try:
                self.subject.plan({self._name(version): ready}, 1)
            except ScenarioError as error:
                raise VersionError(str(error)) from error
        return ready

    def _read(self, comparing: Comparing, session: str) -> bool:
        """Add a stored session's complete rounds to the search; return whether there are any."""
        results = self.store.results(session=session)
        self.runs += len(results)
        self.seconds += sum(result.seconds for result in results)
        complete = [*self._complete(comparing, results)]
        for costs in complete:
            self.bisection.add(comparing, costs)
        return bool(complete)

    def _complete(self, comparing: Comparing, results: Sequence[Result]) -> Iterator[Costs]:
        costs: dict[int, Mapping[tuple[str, int], float]] = {}
        places = {self._name(version): version for version in comparing.versions}
        for row in collect_experiments(results):
            if row.usable and row.quantity.obstacle:
                raise ScenarioError(f"{row.name}: {row.quantity.obstacle}")
            if row.usable:
                self.quantity = row.quantity.without_costs
                costs[places[self.subject.version_of(row.planned.experiment)]] = row.quantity.costs
        if set(costs) == set(comparing.versions):
            shared = set.intersection(*(set(by_round) for by_round in costs.values()))
            for key in sorted(shared):
                yield {place: by_round[key] for place, by_round in costs.items()}

    def _blame(self, versions: Sequence[int], session: str) -> None:
        """Skip the version whose run was the first to fail in a session of `versions`.

        Raises ScenarioError if this version is an end, WorkerError if it was measured before or
        cannot be compared, and AccelBenchError if no run failed.
        """
        results = self.store.results(session=session)
        failed = [result for result in results if not result.status.completed]
        for run in failed:
            name = self.subject.version_of(run.experiment)
            place = self._place(name, versions)
            why = " | ".join([*run.reasons, *list(log_end(run))[-2:]])[-400:]
            if self._has_run(place):
                raise WorkerError(
                    f"a run of {name} ended as {run.status.value}: {why}; the log is in "
                    f"{self.store.folder / run.folder}. The same command goes on from here"
                )
            self._skip(place, f"its run ended as {run.status.value}: {why}")
            return
        for row in collect_experiments(results):
            if not row.usable:
                name = self.subject.version_of(row.planned.experiment)
                raise WorkerError(f"{name} cannot be compared: it {row.how_it_ended}")
        raise AccelBenchError(f"session {session} has no complete round; the same command goes on")

    def _skip(self, version: int, reason: str) -> None:
        if version in (0, self.bisection.versions - 1):
            raise ScenarioError(
                f"{self._name(version)}, the {'bad' if version else 'good'} end, cannot be "
                f"measured: {reason}"
            )
        self.bisection.skipped[version] = reason
        self._keep(skipped={**self._state.skipped, str(version): reason})
        self.notify(f"{self._name(version)} is skipped: {reason}")

    def _keep(self, **changes: object) -> None:
        self._state = self._state.model_copy(update=changes)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, self._state.model_dump_json(indent=1))

    def _has_run(self, version: int) -> bool:
        return any(version in costs for own in self.bisection.rounds.values() for costs in own)

    def _place(self, name: str, versions: Sequence[int]) -> int:
        return next(version for version in versions if self._name(version) == name)

    def _name(self, version: int) -> str:
        return self.history.versions[version].name

    def _announcement(self, comparing: Comparing, rounds: int) -> str:
        good, *others = map(self._name, comparing.versions)
        title = ""
        if comparing.kind == "probe":
            title = f" ({self.history.versions[comparing.versions[1]].title})"
        known = len(self.bisection.rounds.get(comparing, ()))
        more = f"{count(rounds, 'more round' if known else 'round')} of"
        return f"{comparing.kind}: {more} {join_names(others)}{title} beside {good}"
