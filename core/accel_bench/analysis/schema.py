"""The document that `run --format json` prints: one `Summary` for each scenario."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from pydantic import Field

from accel_bench.analysis.checks.training_verdict import StackComparison
from accel_bench.analysis.metrics.breakdown import Phases, StartUp, UpdateCost
from accel_bench.analysis.metrics.memory import MemoryFigures
from accel_bench.analysis.metrics.offered_load import MEDIAN_LATENCY
from accel_bench.analysis.metrics.plugin_metrics import MetricFigure
from accel_bench.analysis.metrics.throughput import LossStatistics, TokenSummary
from accel_bench.analysis.metrics.utilization import Utilization
from accel_bench.analysis.quantity import Quantity
from accel_bench.analysis.race import RaceSummary
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.effective import EffectiveConfiguration
from accel_bench.result import PluginVersion, Status
from accel_bench.scenario.experiment import SCHEMA_VERSION
from accel_bench.scenario.uses import TOKENS


class Document(Frozen):
    """What a command prints as JSON."""

    schema_version: int = SCHEMA_VERSION
    """Version of the document's form."""


class StepSeconds(Frozen):
    """Seconds of one optimizer step, the slowest rank's: medians over runs."""

    p50: float
    """Median over runs of each run's median."""

    p90: float
    """Median over runs of each run's 90th percentile."""

    p95: float
    """Median over runs of each run's 95th percentile."""

    p99: float
    """Median over runs of each run's 99th percentile; of few steps nearly their maximum."""

    spread: float | None
    """Spread across processes: standard deviation of the runs' medians over their mean.

    0.01 is 1 %; null with one run.
    """


class Rates(Frozen):
    """Speeds of all devices together, with 95 % intervals over runs."""

    tokens_per_hour: Interval | None
    """Real tokens in an hour."""

    samples_per_second: Interval | None
    """Samples of the data."""

    steps_per_second: Interval | None
    """Optimizer steps."""


class LossEnds(Frozen):
    """Both ends of the loss curve, in the first completed run; all runs share their seeds.

    The last step is one that all stacks of the sweep point took, so that losses that stand below
    one another are of the same step, also where warm-ups had different lengths.
    """

    last_step: int
    """Number of the step of `last`, from 0, warm-up included."""

    first: float | None
    """Loss of step 0; null when it was not finite."""

    last: float | None
    """Loss of that step; null when it was not finite."""


class StackRow(Frozen):
    """Base of a row of a document about a stack at a sweep point: what it is called."""

    stack: str
    """Name of the stack."""

    sweep: dict[str, JsonValue]
    """Values of the swept keys; seeds are left out where a row is of several."""

    tag: str = ""
    """Name of the sweep point; empty if nothing is swept, or the row is of several points."""

    apart: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings that tell it apart from others whose stack and sweep point are called the same."""


class ExperimentRow(StackRow):
    """An experiment in a document. Null where there is no completed run, never 0."""

    experiment_id: str
    """Identity of the experiment."""

    status: Status
    """How the experiment ended."""

    runs: int
    """Completed runs: those that the numbers come from."""

    mode: Literal["train", "inference"] = "train"
    """What was measured: training, or answers to requests."""

    counts: str = TOKENS
    """What is counted as tokens, such as `images`; `calls` where nothing is trained."""

    tokens_per_second: Interval | None
    """Real tokens per second, global, with a 95 % interval over runs."""


class ExperimentFigures(ExperimentRow):
    """What one experiment measured over all its rounds, whatever it is compared with."""

    reasons: tuple[str, ...]
    """Why the status is not `ok`."""

    disowned: tuple[str, ...] = ()
    """Broken invariants of the self-audit for which no verdict rests on the figures."""

    quantity: Quantity = Field(default_factory=Quantity)
    """Compared quantity: the speed, unless `measure.compare` names another one, or requests arrive
    at a rate."""

    step_seconds: StepSeconds | None
    """Seconds of one optimizer step."""

    rates: Rates | None = None
    """The speed in other units."""

    peak_memory_bytes: int | None
    """Largest of all ranks, per device; median over runs."""

    peak_memory_kind: str | None
    """How the peak was measured, in the words of the metric."""

    offered_rate: float | None = None
    """Requests that arrived per second on each device; null where the next ones are asked for when
    the last are answered."""

    saturated: bool = False
    """True if requests piled up in a run, so that latencies say how long was measured."""

    loss: LossEnds | None
    """Loss at both ends of the run."""

    losses: LossStatistics | None = None
    """Losses of all steps of the first completed run; null where one of them is not known."""

    differs: str
    """What the stack adds and changes, in one line."""

    metrics: tuple[MetricFigure, ...] = ()
    """Metrics of the plugins that the scenario names."""

    @property
    def request_seconds(self) -> Interval | None:
        """Latency of the median request, from its arrival to its last token, if it is compared."""
        if self.quantity.name != MEDIAN_LATENCY or self.quantity.value is None:
            return None
        return self.quantity.value.mapped(lambda milliseconds: milliseconds / 1000)

    @property
    def metric_values(self) -> list[str]:
        """Name and value of each metric, for one cell; with the plugin where two share a name."""
        names = Counter(one.name for one in self.metrics)
        return [
            f"{one.plugin}.{one.name}={one.value}"
            if names[one.name] > 1
            else f"{one.name}={one.value}"
            for one in self.metrics
        ]


class SlowRun(Frozen):
    """A run that took far longer than its stack's others, so that a comparison stays open."""

    stack: str
    """Name of the stack, or of the baseline."""

    session: str
    """Session in which it ran."""

    round: int
    """Its round, from 0; on the screen and in `--repeat-round` it counts from 1."""

    factor: float
    """Its seconds per token over the median of its stack's runs."""


class ExperimentSummary(StackComparison, ExperimentFigures):
    """One row: an experiment, and its comparison with the baseline of the same sweep point."""

    # Fields stand in the document in the order of the bases, the last one first.

    tokens_per_second_per_device: float | None
    """Real tokens per second, per device."""

    memory: MemoryFigures | None = None
    """Every way in which memory was measured, with the rank that needed most, and its stages."""

    devices_used: int | None
    """Distinct devices that ranks really used; on a CPU the number of ranks."""

    plugins: tuple[PluginVersion, ...]
    """Plugins that were active, in order."""

    evidence: dict[str, JsonValue]
    """What each plugin shows for having acted: rank 0 of the last completed run."""

    effective: EffectiveConfiguration
    """What really held when the clock started: rank 0 of the last completed run."""

    tokens: TokenSummary | None = None
    """Tokens of the window, counted in three ways: of the last completed run."""

    start_up: StartUp | None = None
    """What a run pays once, in seconds: medians over runs."""

    phases: Phases | None = None
    """Time of a step by phase; null where the engine marks no phases."""

    update_cost: UpdateCost | None = None
    """What the update verdict cost; null without torch."""

    utilization: Utilization | None = None
    """How much of its devices it used: the run of median speed."""

    other_work: tuple[str, ...] = ()
    """Reasons for `degraded` that concern what was computed, and that the baseline does not share:
    such a row is not recommended."""

    utilization_reason: str = ""
    """Why FLOPs are not known, or why they are those that a plugin declares."""

    slow_runs: tuple[SlowRun, ...] = ()
    """Runs that keep an open verdict open; each round of them may be measured again, once."""

    dropped: str = ""
    """Why it ran no more rounds with `--race`; empty where it ran all of them."""

    repeated_rounds: tuple[int, ...] = ()
    """Rounds, from 0, that were measured again; what they measured before does not count."""

    failed_rounds: dict[Status, int] = Field(default_factory=dict)
    """Number of rounds by how they ended; without those that completed."""


class Summary(Document):
    """One scenario: every planned experiment, in the order of the plan."""

    scenario: str
    """Name of the scenario."""

    baseline: str
    """Stack that the others are compared with."""

    experiments: tuple[ExperimentSummary, ...] = ()
    """Rows."""

    reference: str = ""
    """Tag of the sweep point that the others are compared with; empty for the first."""

    sections: dict[str, Any] = Field(default_factory=dict)
    """Documents of further tables, by the names of the entry points that make them."""

    race: RaceSummary | None = None
    """What `--race` has dropped and saved; null without it."""

    notices: tuple[str, ...] = ()
    """What planning added to every stack, and what it could not know."""

    noise: tuple[str, ...] = ()
    """Load of the host that disturbed some runs more than the others of their session."""
