"""The document of `results convergence`: curves, what a loss took, the best rate, stability."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from accel_bench.analysis.metrics.hourly_rate import HourlyRate
from accel_bench.analysis.schema import Document, StackRow
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.statistics.verdict import Comparison, Direction, Finding
from accel_bench.documents.base import Frozen

LossKind: TypeAlias = Literal["validation", "training"]
"""Loss on held-out samples, or where there is none the training loss, smoothed over 5 steps."""

SOONER: Mapping[Direction, str] = {"better": "sooner", "worse": "later"}
"""Words for a better and a worse time; all others are `inconclusive`."""


class CurvePoint(Frozen):
    """One point of the learning curve of several runs: medians of what was used."""

    steps: float
    """Optimizer steps."""

    tokens: float
    """Real tokens of all devices."""

    seconds: float
    """Seconds of these steps."""

    usd: float | None
    """Dollars for these seconds; null without a price."""

    loss: float | None
    """Mean over runs; null where one of them has none."""

    low: float | None = None
    """Lower end of its 95 % bootstrap interval over seeds; null with one seed."""

    high: float | None = None
    """Upper end."""


class ToLoss(Comparison):
    """What it took to reach a loss: medians over runs with 95 % bootstrap intervals.

    The comparison is that of the seconds, over pairs of seeds or, with one seed, of rounds.
    """

    loss: float
    """The loss."""

    reached: int
    """Runs that reached it."""

    runs: int
    """Runs with a curve. One that did not reach it took longer than any that did."""

    steps: Interval | None = None
    """Optimizer steps; null where fewer than half of the runs reached the loss. An upper end is
    null where it is not known."""

    tokens: Interval | None = None
    """Real tokens."""

    seconds: Interval | None = None
    """Seconds of steps."""

    usd: Interval | None = None
    """Dollars; null without a price."""

    is_baseline: bool = False
    """True if the others are compared with it; it has no ratio, and so no verdict."""

    @property
    def verdict_word(self) -> str:
        """The verdict as people read it: `sooner`, `later`, or why there is none."""
        if not self.reached:
            return "not reached"
        return "baseline" if self.is_baseline else SOONER.get(self.verdict, "inconclusive")


class Stability(Frozen):
    """How alike trainings with other seeds end."""

    seeds: int
    """Seeds that were trained with."""

    diverged: int
    """Seeds with a run whose loss was not finite, or ended higher than it began."""

    mean: float | None = None
    """Mean of the losses at the end, of the seeds that did not diverge."""

    lowest: float | None = None
    """Lowest of them."""

    highest: float | None = None
    """Highest of them."""

    standard_deviation: Interval | None = None
    """Of them, with its 95 % chi-squared interval; null with fewer than three seeds."""


class MemoryGrowth(Frozen):
    """How memory changes with the steps after the measured window."""

    verdict: Finding
    """Verdict on the statement that it grows."""

    kind: Literal["allocated", "rss"] | None = None
    """Tensors on a GPU, or resident memory of the process."""

    bytes_per_step: Interval | None = None
    """Slope, with its 95 % interval; that of the rank and run where it is steepest."""

    steps: int = 0
    """Steps that it is made of."""

    runs: int = 0
    """Runs that were read."""

    growing: int = 0
    """Runs in which memory grows."""

    reason: str = ""
    """Why it was not tested."""


class EvaluationSpeed(Frozen):
    """How fast held-out samples are evaluated, over runs, in the last evaluation of each."""

    samples: int
    """Samples of an evaluation."""

    samples_per_second: Interval | None
    tokens_per_second: Interval | None
    """Real tokens."""

    first_samples_per_second: Interval | None
    """Samples per second before training."""


class ExperimentLearning(StackRow):
    """How a stack learned at one sweep point, over all of its seeds and rounds."""

    scenario: str
    experiments: tuple[str, ...]
    """Ids, one for each seed."""

    runs: int
    """Runs with a curve."""

    loss_kind: LossKind
    usd_per_hour: float | None
    """Dollars for an hour of all machines; null without a price."""

    curve: tuple[CurvePoint, ...]
    to_loss: ToLoss | None
    """Null where no loss was asked for."""

    stability: Stability
    memory_growth: MemoryGrowth
    evaluation: EvaluationSpeed | None
    """Null where nothing was evaluated."""

    notes: tuple[str, ...] = ()


class RateLearning(Frozen):
    """A learning rate, and the loss at the end with it."""

    learning_rate: float
    loss: float | None
    """Mean over seeds after the same number of steps; null where a seed diverged."""

    low: float | None = None
    high: float | None = None
    """Ends of its 95 % bootstrap interval; null with one seed."""

    seeds: int
    diverged: int


class BestLearningRate(StackRow):
    """The learning rate with the lowest loss, of experiments that differ in the rate alone.

    It is not among the swept values.
    """

    scenario: str
    loss_kind: LossKind
    steps: int
    """Steps after which losses are compared."""

    best: float | None
    """The rate with the lowest mean loss; null where every rate diverged."""

    verdict: Finding
    """Verdict on the statement that it is the best: it holds where t bounds on its differences from
    all others, paired by seed, exclude 0."""

    at_end: bool
    """True if it is the smallest or largest that was tried, so that one beyond may be better."""

    rates: tuple[RateLearning, ...]


class ConvergenceDocument(Document):
    """What `accel-bench results convergence --format json` prints."""

    tariff: HourlyRate | None
    loss: float | None
    """The loss that was asked for."""

    experiments: tuple[ExperimentLearning, ...]
    learning_rates: tuple[BestLearningRate, ...]
