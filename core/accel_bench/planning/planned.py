"""The plan of one scenario: its experiments, those to run and those to skip with their reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from accel_bench.analysis.aggregate import BY_THE_USER, PlannedSummary, StopReason
from accel_bench.analysis.schema import Summary
from accel_bench.analysis.statistics.verdict import MINIMUM_ROUNDS
from accel_bench.analysis.summary import summarize
from accel_bench.analysis.wording import count, join_names, size
from accel_bench.documents.redaction import Redactor
from accel_bench.errors import ScenarioError, StoreError
from accel_bench.machine.info import Machine
from accel_bench.planning.activation import Environment
from accel_bench.planning.request import PlanRequest
from accel_bench.plugins.active import ActivePlugins
from accel_bench.plugins.interpreter import Interpreter
from accel_bench.result import Result
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.models import ScenarioFile
from accel_bench.store.database import Store


@dataclass(frozen=True)
class MemoryNeed:
    """The memory that an experiment needs at least: activations, caches and code come on top."""

    parameters: int

    parts: Mapping[str, float]
    """Bytes in the memory of one device, by what they are; of all ranks together on a CPU."""

    available_bytes: int | None
    """All memory of the smallest device, free or not; None where there is no such device."""

    @property
    def total_bytes(self) -> float:
        """Sum of the parts."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Return whether the machine has that much, used or not."""
        return self.available_bytes is None or self.total_bytes <= self.available_bytes

    def describe(self) -> str:
        """Return `at least 696 GiB of memory (174 GiB weights + ...) for 46.7e9 parameters`."""
        parts = " + ".join(f"{size(value)} {what}" for what, value in self.parts.items())
        listed = f" ({parts})" if len(self.parts) > 1 else f" for {next(iter(self.parts))}"
        many = self.parameters >= 1e8
        number = f"{self.parameters / 1e9:.3g}e9" if many else f"{self.parameters:,}"
        return f"at least {size(self.total_bytes)} of memory{listed} of {number} parameters"


@dataclass(frozen=True)
class Planned:
    """One experiment of the plan."""

    experiment: Experiment
    active: ActivePlugins

    skipped: tuple[str, ...] = ()
    """Why it is not run; empty when it is run."""

    need: MemoryNeed | None = None
    """Its memory at least; null where that is not known."""

    on_host: bool = False
    """True if its ranks share the host's memory and cores."""

    environment: Environment | None = None
    """The Python environment that it runs in; null for that of this program."""

    open_sizes: tuple[str, ...] = ()
    """Keys that stand for `auto` and are not worked out."""

    @property
    def interpreter(self) -> Interpreter | None:
        """The Python of that environment."""
        return self.environment.interpreter if self.environment else None

    @property
    def command(self) -> tuple[str, ...]:
        """Command of that Python; empty for the one of this program."""
        return self.interpreter.command if self.interpreter else ()

    def machine(self, machine: Machine) -> Machine:
        """Return this machine with the versions that it runs with."""
        return self.interpreter.on(machine) if self.interpreter else machine


@dataclass(frozen=True)
class Plan:
    """All experiments of one scenario, in order."""

    file: ScenarioFile
    """The scenario as it was written, with the command line's changes."""

    planned: tuple[Planned, ...]
    """Sweep points outermost, within each the stacks in written order."""

    request: PlanRequest

    notices: tuple[str, ...] = ()
    """What was added to the work because a plugin needs it, and trackers that are left out."""

    trackers: ActivePlugins | None = None
    """Plugins that log its runs beside the store; null where there is no tracker."""

    look_rounds: int = 0
    """Rounds in all at a further look at open verdicts; 0 at the first."""

    @property
    def baseline(self) -> str:
        """The stack that the others are compared with."""
        return self.file.baseline_name()

    @property
    def open_sizes(self) -> dict[str, tuple[str, ...]]:
        """Keys that stand for `auto`, by the sweep points where they are not worked out."""
        return {one.experiment.point: one.open_sizes for one in self.planned if one.open_sizes}

    @property
    def summaries(self) -> list[PlannedSummary]:
        """Return the plan as the analysis needs it, without secrets."""
        return [
            Redactor.of_this_process(planned.experiment.scenario.environment).redact_model(
                PlannedSummary(experiment=planned.experiment, skipped=planned.skipped)
            )
            for planned in self.planned
        ]

    def summarize(self, results: Sequence[Result], stopped: StopReason = BY_THE_USER) -> Summary:
        """Return the comparison of the stacks; `stopped` is why later runs are missing."""
        return summarize(
            self.file.name,
            self.baseline,
            self.summaries,
            results,
            self.rounds,
            stopped=stopped,
            reference=self.request.reference_point,
            race=self.request.race,
            sections=self.request.sections,
        )

    @property
    def runnable(self) -> list[Planned]:
        """Return the experiments that are to run."""
        return [planned for planned in self.planned if not planned.skipped]

    @property
    def single(self) -> Planned:
        """Return the only experiment. Raises ScenarioError where there are several, or none."""
        if self.nothing:
            raise ScenarioError(self.nothing)
        if len(self.planned) > 1:
            swept = ", ".join({key: None for one in self.planned for key in one.experiment.sweep})
            raise ScenarioError(
                f"scenario {self.file.name!r} sweeps over {swept}, and one point is searched at a "
                "time; choose it with --set KEY=VALUE"
            )
        return self.planned[0]

    @property
    def rounds(self) -> int:
        """Return the number of rounds; of `auto` those of all stacks, which more may follow."""
        rounds = self.file.measure.rounds
        return (self.look_rounds or MINIMUM_ROUNDS) if rounds == "auto" else rounds

    @property
    def adds_rounds(self) -> bool:
        """True if the number of rounds is `auto`: more may follow while a verdict is open."""
        return self.file.measure.rounds == "auto"

    @property
    def runs(self) -> int:
        """Return the number of runs in all rounds."""
        return len(self.runnable) * self.rounds

    def of_open(self, summary: Summary, rounds: int, last: Plan) -> Plan:
        """Return so many rounds of the stacks whose verdict is open, each beside its baseline.

        Stacks that have as many rounds are left out, and those that the last look left out: the
        rounds of others may reopen a verdict, which would take all of its rounds anew.
        """
        looked_at = {id(one) for one in last.planned}
        left = [
            one
            for one, row in zip(self.planned, summary.experiments, strict=True)
            if row.verdict == "inconclusive" and row.rounds < rounds and id(one) in looked_at
        ]
        if not left:
            return replace(self, planned=())
        points = {one.experiment.point for one in left}
        beside = (one for one in self.runnable if one.experiment.stack.name == self.baseline)
        kept = {id(one) for one in (*left, *beside) if one.experiment.point in points}
        chosen = tuple(one for one in self.planned if id(one) in kept)
        names = join_names([one.experiment.stack.name for one in left], most=5)
        notice = f"the verdict is open for {names}: {count(rounds, 'round')} in all"
        return replace(self, planned=chosen, notices=(notice,), look_rounds=rounds)

    def seconds(self, store: Store | None) -> float | None:
        """Return the seconds of all rounds, each run as long as the median of those stored.

        None where an experiment has none, since nothing else says how fast this machine is.
        """
        found: dict[str, list[float]] = {one.experiment.id: [] for one in self.runnable}
        with suppress(StoreError):
            for result in store.results(experiment_ids=[*found]) if store else ():
                if result.status.completed:
                    found[result.experiment.id].append(result.seconds)
        if not all(found.values()):
            return None
        one_round = sum(median(found[one.experiment.id]) for one in self.runnable)
        return one_round * self.rounds

    @property
    def nothing(self) -> str:
        """Return why nothing can run here; empty when something can."""
        reasons = {reason for planned in self.planned for reason in planned.skipped}
        return "" if self.runnable else f"nothing can run here: {'; '.join(sorted(reasons))}"


def scenario_of(planned: Planned) -> dict[str, Any]:
    """Return a scenario file of this one experiment: running it gives the same id."""
    experiment = planned.experiment
    work = experiment.scenario.model_dump(mode="json", exclude_none=True)
    uses = [use.model_dump(mode="json") for use in experiment.stack.uses]
    named = {}
    if chosen := planned.environment:
        named = {"environments": {chosen.name: chosen.settings.model_dump(exclude_defaults=True)}}
    return {**work, **named, "stacks": {experiment.stack.name: {"use": uses}}}
