"""The document of `results convergence`: curves, time to a loss, best rate, stability."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from accel_bench.analysis.metrics.hourly_rate import HourlyRate
from accel_bench.analysis.schema import Document, StackRow
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.statistics.verdict import Comparison, Direction, Finding
from accel_bench.documents.base import Frozen

LossKind: TypeAlias = Literal["validation", "training"]
"""Kind of loss: on held-out samples, or else the training loss, smoothed over 5 steps."""

SOONER: Mapping[Direction, str] = {"better": "sooner", "worse": "later"}
"""Words for the verdicts on time to a loss; all other verdicts are `inconclusive`."""


class CurvePoint(Frozen):
    """Point of a learning curve: medians over runs of the steps, tokens and time used."""

    steps: float
    """Optimizer steps."""

    tokens: float
    """Real tokens of all devices."""

    seconds: float
    """Seconds of training steps up to the point."""

    usd: float | None
    """Dollars for these seconds; null without a price."""

    loss: float | None
    """Mean loss over runs; null if a run has none."""

    low: float | None = None
    """Lower end of the loss's 95 % bootstrap interval over seeds; null with one seed."""

    high: float | None = None
    """Upper end of that interval; null with one seed."""


class ToLoss(Comparison):
    """Amounts used to reach a loss: medians over runs with 95 % bootstrap intervals.

    The comparison is of the seconds, over pairs of seeds or, with one seed, of rounds.
    """

    loss: float
    """The loss to reach."""

    reached: int
    """Number of runs that reached the loss."""

    runs: int
    """Number of runs with a curve. Runs that missed the loss count as slower than all others."""

    steps: Interval | None = None
    """Optimizer steps; null if fewer than half of the runs reached the loss. An infinite upper end
    is null."""

    tokens: Interval | None = None
    """Real tokens used to reach the loss."""

    seconds: Interval | None = None
    """Seconds of training steps used to reach the loss."""

    usd: Interval | None = None
    """Dollars for these seconds; null without a price."""

    is_baseline: bool = False
    """True for the stack that others are compared with, which has no ratio and no verdict."""

    @property
    def verdict_word(self) -> str:
        """The printed verdict: `sooner`, `later`, or the reason for having none."""
        if not self.reached:
            return "not reached"
        return "baseline" if self.is_baseline else SOONER.get(self.verdict, "inconclusive")


class Stability(Frozen):
    """Spread of the final losses over seeds."""

    seeds: int
    """Number of seeds."""

    diverged: int
    """Number of seeds with a run whose loss was not finite, or ended higher than it began."""

    mean: float | None = None
    """Mean final loss of the seeds that did not diverge."""

    lowest: float | None = None
    """Lowest final loss of these seeds."""

    highest: float | None = None
    """Highest final loss of these seeds."""

    standard_deviation: Interval | None = None
    """Standard deviation of these losses with its 95 % chi-squared interval; null below 3 seeds."""


class MemoryGrowth(Frozen):
    """Growth of memory with the steps after the measured window."""

    verdict: Finding
    """Verdict on the statement that memory grows."""

    kind: Literal["allocated", "rss"] | None = None
    """Kind of memory: tensors on a GPU, or resident memory of the process."""

    bytes_per_step: Interval | None = None
    """Slope of memory with its 95 % interval, of the rank and run with the steepest."""

    steps: int = 0
    """Number of steps of the fitted readings."""

    runs: int = 0
    """Number of tested runs."""

    growing: int = 0
    """Number of runs in which memory grows."""

    reason: str = ""
    """Reason why growth was not tested."""


class EvaluationSpeed(Frozen):
    """Speed of evaluation on held-out samples, over the last evaluation of each run."""

    samples: int
    """Number of samples in one evaluation."""

    samples_per_second: Interval | None
    tokens_per_second: Interval | None
    """Real tokens per second in the last evaluation, global."""

    first_samples_per_second: Interval | None
    """Samples per second in an evaluation before training."""


class ExperimentLearning(StackRow):
    """Learning of a stack at one sweep point, over all seeds and rounds."""

    scenario: str
    experiments: tuple[str, ...]
    """Experiment ids, one for each seed."""

    runs: int
    """Number of runs with a curve."""

    loss_kind: LossKind
    usd_per_hour: float | None
    """Dollars per hour of all machines; null without a price."""

    curve: tuple[CurvePoint, ...]
    to_loss: ToLoss | None
    """Amounts used to reach the loss; null if no loss is given."""

    stability: Stability
    memory_growth: MemoryGrowth
    evaluation: EvaluationSpeed | None
    """Speed of evaluation; null if nothing was evaluated."""

    notes: tuple[str, ...] = ()


class RateLearning(Frozen):
    """A learning rate and its final loss."""

    learning_rate: float
    loss: float | None
    """Mean final loss over seeds after the same number of steps; null if a seed diverged."""

    low: float | None = None
    high: float | None = None
    """Upper end of the loss's 95 % bootstrap interval; null with one seed."""

    seeds: int
    diverged: int


class BestLearningRate(StackRow):
    """The learning rate with the lowest loss, of experiments that differ in learning rate only.

    Its `sweep` has the swept values except learning rates.
    """

    scenario: str
    loss_kind: LossKind
    steps: int
    """Number of steps after which losses are compared."""

    best: float | None
    """Rate with the lowest mean loss; null if every rate diverged."""

    verdict: Finding
    """Verdict on the statement that this rate is the best: `holds` if the t bounds of its
    differences from all other rates, paired by seed, exclude 0."""

    at_end: bool
    """True if the best rate is the smallest or largest tried: a rate beyond may be better."""

    rates: tuple[RateLearning, ...]


class ConvergenceDocument(Document):
    """The JSON document of `accel-bench results convergence`."""

    tariff: HourlyRate | None
    loss: float | None
    """The loss to reach; null if none is given."""

    experiments: tuple[ExperimentLearning, ...]
    learning_rates: tuple[BestLearningRate, ...]
