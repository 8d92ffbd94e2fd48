"""Document of `run --format json`: one `Summary` for each scenario."""

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
    """Base of the documents that commands print as JSON."""

    schema_version: int = SCHEMA_VERSION
    """Version of the document's schema."""


class StepSeconds(Frozen):
    """Seconds of one optimizer step on the slowest rank, as medians over runs."""

    p50: float
    """Median over runs of each run's median."""

    p90: float
    """Median over runs of each run's 90th percentile."""

    p95: float
    """Median over runs of each run's 95th percentile."""

    p99: float
    """Median over runs of each run's 99th percentile, which for few steps is nearly the maximum."""

    spread: float | None
    """Standard deviation of the runs' medians over their mean; 0.01 is 1 %, null with one run."""


class Rates(Frozen):
    """Speeds of all devices together, as medians with 95 % intervals over runs."""

    tokens_per_hour: Interval | None
    """Real tokens per hour."""

    samples_per_second: Interval | None
    """Samples of the data per second."""

    steps_per_second: Interval | None
    """Optimizer steps per second."""


class LossEnds(Frozen):
    """First and last loss of the first completed run; all runs share their seeds.

    The last step is the last one that all stacks of the sweep point took, whatever the lengths of
    their warm-ups, so that losses of different stacks are comparable.
    """

    last_step: int
    """Number of the last step, from 0, warm-up included."""

    first: float | None
    """Loss of step 0; null if it is not finite."""

    last: float | None
    """Loss of step `last_step`; null if it is not finite."""


class StackRow(Frozen):
    """Base of a document's rows about one stack at a sweep point."""

    stack: str
    """Name of the stack."""

    sweep: dict[str, JsonValue]
    """Values of the swept keys, without seeds in a row over several seeds."""

    tag: str = ""
    """Name of the sweep point; empty without a sweep, or for a row over several points."""

    apart: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings that distinguish the row from others with the same stack and sweep point."""


class ExperimentRow(StackRow):
    """Row of a document about one experiment; its figures are null without a completed run."""

    experiment_id: str
    """Id of the experiment."""

    status: Status
    """Final status of the experiment."""

    runs: int
    """Number of completed runs, which the figures come from."""

    mode: Literal["train", "inference"] = "train"
    """Kind of the measured work: training, or answers to requests."""

    counts: str = TOKENS
    """Plural noun for the elements counted as tokens, such as `images`; `calls` for operations."""

    tokens_per_second: Interval | None
    """Real tokens per second of all devices, with a 95 % interval over runs."""


class ExperimentFigures(ExperimentRow):
    """Speed, memory, losses and metrics of one experiment over its completed runs, not compared."""

    reasons: tuple[str, ...]
    """Reasons for a status other than `ok`."""

    failed_audit: tuple[str, ...] = ()
    """Violated invariants of the self-audit that forbid a verdict."""

    quantity: Quantity = Field(default_factory=Quantity)
    """Compared quantity: the speed or, at an arrival rate, the latency, unless `measure.compare`
    names another one."""

    step_seconds: StepSeconds | None
    """Seconds of one optimizer step."""

    rates: Rates | None = None
    """Speed in other units."""

    peak_memory_bytes: int | None
    """Peak bytes per device of the rank that needed most, a median over runs."""

    peak_memory_kind: str | None
    """Kind of measurement of the peak, such as `allocated` or `rss`."""

    offered_rate: float | None = None
    """Requests that arrive per second on each device; null for batches without an arrival rate."""

    saturated: bool = False
    """True if requests piled up in a run, so that latencies grow with its duration."""

    loss: LossEnds | None
    """First and last loss of a run."""

    losses: LossStatistics | None = None
    """Statistics of all steps' losses in the first completed run; null if one is unknown."""

    differs: str
    """Plugins and settings that the stack adds or changes, in one line."""

    metrics: tuple[MetricFigure, ...] = ()
    """Metrics of the plugins that the scenario names."""

    @property
    def request_seconds(self) -> Interval | None:
        """Median latency of requests from arrival to last token, if it is the compared quantity."""
        if self.quantity.name != MEDIAN_LATENCY or self.quantity.value is None:
            return None
        return self.quantity.value.mapped(lambda milliseconds: milliseconds / 1000)

    @property
    def metric_values(self) -> list[str]:
        """Name and value of each metric as text, with the plugin if two share a name."""
        names = Counter(metric.name for metric in self.metrics)
        return [
            f"{metric.plugin}.{metric.name}={metric.value}"
            if names[metric.name] > 1
            else f"{metric.name}={metric.value}"
            for metric in self.metrics
        ]


class SlowRun(Frozen):
    """A run much slower than its stack's other runs, which keeps a verdict open."""

    stack: str
    """Name of the run's stack."""

    session: str
    """Session of the run."""

    round: int
    """Round of the run, from 0; tables and `--repeat-round` count from 1."""

    factor: float
    """Ratio of the run's seconds per token to the median of its stack's runs."""


class ExperimentSummary(StackComparison, ExperimentFigures):
    """Row of a summary: an experiment, and its comparison with the baseline of its sweep point."""

    # Fields stand in the document in the order of the bases, the last one first.

    tokens_per_second_per_device: float | None
    """Real tokens per second of one device."""

    memory: MemoryFigures | None = None
    """Peaks of all kinds of memory, with the rank that needed most, and changes by stage."""

    devices_used: int | None
    """Number of distinct devices that ranks used; on a CPU the number of ranks."""

    plugins: tuple[PluginVersion, ...]
    """Active plugins, in the order of their hooks."""

    evidence: dict[str, JsonValue]
    """Evidence of each plugin on rank 0 of the last completed run."""

    effective: EffectiveConfiguration
    """Effective configuration at the window's start, on rank 0 of the last completed run."""

    tokens: TokenSummary | None = None
    """Token counts of the window in the last completed run."""

    start_up: StartUp | None = None
    """Start-up in seconds, as medians over runs."""

    phases: Phases | None = None
    """Seconds of a step by phase; null if the engine marks no phases."""

    update_cost: UpdateCost | None = None
    """Cost of reading updates for the verdict; null without torch."""

    utilization: Utilization | None = None
    """Utilization of the devices in the run of median speed."""

    other_work: tuple[str, ...] = ()
    """Reasons for `degraded` that concern the computed work and do not apply to the baseline; such
    a row is not recommended."""

    utilization_reason: str = ""
    """Reason why FLOPs are unknown, or the plugin that declares them."""

    slow_runs: tuple[SlowRun, ...] = ()
    """Runs that keep the verdict open and whose rounds may each be repeated once."""

    dropped: str = ""
    """Reason why `--race` dropped the stack before its last round; empty if it did not."""

    repeated_rounds: tuple[int, ...] = ()
    """Rounds, from 0, whose first measurement was replaced by a later one."""

    failed_rounds: dict[Status, int] = Field(default_factory=dict)
    """Number of rounds that did not complete, by status."""


class Summary(Document):
    """Summary of one scenario, with all planned experiments in order."""

    scenario: str
    """Name of the scenario."""

    baseline: str
    """Name of the baseline's stack."""

    experiments: tuple[ExperimentSummary, ...] = ()
    """Rows, one for each experiment."""

    reference: str = ""
    """Tag of the sweep point that other points are compared with; empty for the first."""

    sections: dict[str, Any] = Field(default_factory=dict)
    """Documents of sections, which are further tables, by name."""

    race: RaceSummary | None = None
    """Stacks dropped by `--race` and the runs saved; null without it."""

    notices: tuple[str, ...] = ()
    """Messages of planning: plugins added to every stack, and unknown properties."""

    noise: tuple[str, ...] = ()
    """Messages about load of the host that disturbed some of a session's runs."""
