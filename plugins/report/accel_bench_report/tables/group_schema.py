"""The document of `accel-bench results summary`: experiments by one setting after another."""

from __future__ import annotations

from accel_bench.analysis.schema import Document
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.documents.base import Frozen, JsonValue


class Group(Frozen):
    """Experiments that have one value of a key."""

    value: JsonValue
    """The value; null where it is not known."""

    experiments: int
    """How many there are."""

    counts: dict[str, int]
    """Experiments that were measured, and the others by their word, such as `OOM`."""

    slowest: float | None
    """Least tokens per second of a measured one."""

    fastest: float | None
    """Most tokens per second of a measured one."""

    smallest_peak_bytes: int | None
    """Least peak of memory of a measured one, per device."""

    largest_peak_bytes: int | None
    """Largest peak of memory."""

    times_as_fast: Interval | None
    """Speed over that of experiments with the first value and all else equal: the geometric mean,
    with a 95 % t interval over those pairs; of one pair its own interval."""

    pairs: int
    """Pairs of experiments that differ in this key alone, with equal versions of plugins."""

    ambiguous: int = 0
    """Experiments without a pair, since several that ran in no common session would fit."""

    lowest_loss: int
    """Comparisons, all else being equal, in which this value has the lowest loss at the end."""

    of_losses: int
    """Comparisons in which it has one, and another value too; none where the key changes the model
    or the data, whose losses do not compare."""


class KeySummary(Frozen):
    """All experiments by the values of one key: each is in exactly one group."""

    key: str
    """Dotted key."""

    groups: tuple[Group, ...]
    """One for each value, in order; of stacks the sessions' baseline comes first."""


class RateLoss(Frozen):
    """A learning rate, and the loss to which it leads."""

    learning_rate: float
    """The rate."""

    loss: float | None
    """Mean loss of the last steps that all rates took, mean over seeds; null where a run failed."""

    low: float | None = None
    """Lower end of its 95 % t interval over seeds; null with one seed."""

    high: float | None = None
    """Upper end."""

    seeds: int
    """Seeds with which it was trained."""

    word: str = ""
    """How it ended, where there is no loss."""


class BestRate(Frozen):
    """The learning rate with the lowest loss at the end, all else being equal."""

    model: str
    """Name of the model."""

    device: str | None
    """Device on which it ran."""

    others: dict[str, JsonValue]
    """Other keys in which rows of this table differ."""

    best: RateLoss
    """The rate with the lowest loss."""

    rates: tuple[RateLoss, ...]
    """All that were tried, in order."""

    steps: int
    """Steps after which the losses are compared, warm-up included."""

    separated: bool
    """True if its interval lies below those of all others; False where seeds give none."""

    at_end: bool
    """True if it is the smallest or the largest that was tried, so that one beyond may be better.
    """


class GroupedSummary(Document):
    """Stored experiments summarized by setting."""

    experiments: int
    """How many there are."""

    by: tuple[KeySummary, ...]
    """A summary for each key."""

    best_rates: tuple[BestRate, ...] = ()
    """Best learning rates by model and hardware; empty where no two differ in the rate alone."""
