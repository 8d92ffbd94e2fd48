"""Plan of one scenario: experiments to run, and experiments to skip with reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from accel_bench.store.database import Store


@dataclass(frozen=True)
class MemoryNeed:
    """Least memory of an experiment; activations, caches and code come on top."""

    parameters: int

    parts: Mapping[str, float]
    """Bytes by purpose, such as weights: of one device, or on a CPU of all ranks together."""

    available_bytes: int | None
    """Total memory of the smallest device, used or not; None without such a device."""

    @property
    def total_bytes(self) -> float:
        """Sum of the bytes over all purposes."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """True if the least memory is within the device's total memory, used or not."""
        return self.available_bytes is None or self.total_bytes <= self.available_bytes

    def describe(self) -> str:
        """Return text like `at least 696 GiB of memory (174 GiB weights + ...) of 46.7e9
        parameters`."""
        parts = " + ".join(f"{size(value)} {what}" for what, value in self.parts.items())
        listed = f" ({parts})" if len(self.parts) > 1 else f" for {next(iter(self.parts))}"
        many = self.parameters >= 1e8
        number = f"{self.parameters / 1e9:.3g}e9" if many else f"{self.parameters:,}"
        return f"at least {size(self.total_bytes)} of memory{listed} of {number} parameters"


@dataclass(frozen=True)
class Planned:
    """Experiment of a plan, with its active plugins."""

    experiment: Experiment
    active: ActivePlugins

    skipped: tuple[str, ...] = ()
    """Reasons to skip the experiment; empty for an experiment that will run."""

    need: MemoryNeed | None = None
    """Least memory of the experiment; null if unknown."""

    on_host: bool = False
    """True if the ranks share the host's memory and cores."""

    environment: Environment | None = None
    """Python environment of the experiment; null for the environment of this program."""

    open_sizes: tuple[str, ...] = ()
    """Keys with the value `auto` that are planned with a placeholder."""

    @property
    def interpreter(self) -> Interpreter | None:
        """Python interpreter of the environment; None for the interpreter of this program."""
        return self.environment.interpreter if self.environment else None

    @property
    def command(self) -> tuple[str, ...]:
        """Command of the environment's interpreter; empty for the interpreter of this program."""
        return self.interpreter.command if self.interpreter else ()

    def machine(self, machine: Machine) -> Machine:
        """Return the machine with the versions of the experiment's environment."""
        return self.interpreter.on(machine) if self.interpreter else machine


@dataclass(frozen=True)
class Plan:
    """Plan of one scenario: all its experiments, in order."""

    file: ScenarioFile
    """Scenario file with the changes of the command line."""

    planned: tuple[Planned, ...]
    """Experiments in the order of sweep points, at each point in the order of stacks."""

    request: PlanRequest

    notices: tuple[str, ...] = ()
    """Sentences for the user, such as a setting added for a plugin, or a tracker left out."""

    trackers: ActivePlugins | None = None
    """Trackers, which log the runs in addition to the store; null without any."""

    look_rounds: int = 0
    """Total number of rounds if rounds are added for open verdicts; 0 for a first plan."""

    @property
    def baseline(self) -> str:
        """Name of the stack with which the other stacks are compared."""
        return self.file.baseline_name()

    @property
    def open_sizes(self) -> dict[str, tuple[str, ...]]:
        """Keys with the value `auto` that are planned with a placeholder, by sweep point."""
        return {row.experiment.point: row.open_sizes for row in self.planned if row.open_sizes}

    @property
    def summaries(self) -> list[PlannedSummary]:
        """Experiments without secrets, with reasons to skip them, as the analysis reads them."""
        return [
            Redactor.of_this_process(planned.experiment.scenario.environment).redact_model(
                PlannedSummary(experiment=planned.experiment, skipped=planned.skipped)
            )
            for planned in self.planned
        ]

    def summarize(self, results: Sequence[Result], stopped: StopReason = BY_THE_USER) -> Summary:
        """Return the comparison of the stacks; `stopped` states why later runs are missing."""
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
        """Experiments that are not skipped."""
        return [planned for planned in self.planned if not planned.skipped]

    @property
    def single(self) -> Planned:
        """The plan's only experiment. Raises ScenarioError if there are more, or none can run."""
        if self.nothing:
            raise ScenarioError(self.nothing)
        if len(self.planned) > 1:
            swept = ", ".join({key: None for row in self.planned for key in row.experiment.sweep})
            raise ScenarioError(
                f"scenario {self.file.name!r} sweeps over {swept}, and one point is searched at a "
                "time; choose it with --set KEY=VALUE"
            )
        return self.planned[0]

    @property
    def rounds(self) -> int:
        """Number of rounds of each stack; for `auto`, the number before rounds are added."""
        rounds = self.file.measure.rounds
        return (self.look_rounds or MINIMUM_ROUNDS) if rounds == "auto" else rounds

    @property
    def adds_rounds(self) -> bool:
        """True if rounds are added while a verdict is inconclusive (`measure.rounds: auto`)."""
        return self.file.measure.rounds == "auto"

    @property
    def runs(self) -> int:
        """Number of runs in all rounds."""
        return len(self.runnable) * self.rounds

    def of_open(self, summary: Summary, rounds: int, last: Plan) -> Plan:
        """Return a plan of `rounds` rounds in total for the stacks with inconclusive verdicts.

        The plan keeps their baselines. Stacks outside of the `last` plan stay out, even if rounds
        of other stacks have made their verdict inconclusive again.
        """
        looked_at = {id(row) for row in last.planned}
        left = [
            planned
            for planned, row in zip(self.planned, summary.experiments, strict=True)
            if row.verdict == "inconclusive" and row.rounds < rounds and id(planned) in looked_at
        ]
        if not left:
            return replace(self, planned=())
        points = {row.experiment.point for row in left}
        beside = (row for row in self.runnable if row.experiment.stack.name == self.baseline)
        kept = {id(row) for row in (*left, *beside) if row.experiment.point in points}
        chosen = tuple(row for row in self.planned if id(row) in kept)
        names = join_names([row.experiment.stack.name for row in left], most=5)
        notice = f"the verdict is open for {names}: {count(rounds, 'round')} in all"
        return replace(self, planned=chosen, notices=(notice,), look_rounds=rounds)

    def seconds(self, store: Store | None) -> float | None:
        """Return the estimated seconds of all rounds, from the median duration of stored runs.

        Return None if an experiment has no stored run, since nothing else shows its speed here.
        """
        durations: dict[str, list[float]] = {row.experiment.id: [] for row in self.runnable}
        with suppress(StoreError):
            for result in store.results(experiment_ids=[*durations]) if store else ():
                if result.status.completed:
                    durations[result.experiment.id].append(result.seconds)
        if not all(durations.values()):
            return None
        one_round = sum(median(durations[row.experiment.id]) for row in self.runnable)
        return one_round * self.rounds

    @property
    def nothing(self) -> str:
        """Reasons why no experiment can run here, as one text; empty if any can."""
        reasons = {reason for planned in self.planned for reason in planned.skipped}
        return "" if self.runnable else f"nothing can run here: {'; '.join(sorted(reasons))}"


def scenario_of(planned: Planned) -> dict[str, Any]:
    """Return the content of a scenario file with one experiment alone, which keeps its id."""
    experiment = planned.experiment
    work = experiment.scenario.model_dump(mode="json", exclude_none=True)
    uses = [use.model_dump(mode="json") for use in experiment.stack.uses]
    named = {}
    if chosen := planned.environment:
        named = {"environments": {chosen.name: chosen.settings.model_dump(exclude_defaults=True)}}
    return {**work, **named, "stacks": {experiment.stack.name: {"use": uses}}}
