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


class GroupedSummary(Document):
    """Stored experiments summarized by setting."""

    experiments: int
    """How many there are."""

    by: tuple[KeySummary, ...]
    """A summary for each key."""
