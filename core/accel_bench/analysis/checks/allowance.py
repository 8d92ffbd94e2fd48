"""Tolerances of the distance between two runs, by rules and by declarations of plugins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from accel_bench.analysis.checks.declared import declared_tolerances, other_training
from accel_bench.analysis.checks.verdict_rules import Pair, limit_of
from accel_bench.analysis.statistics.verdict import Training
from accel_bench.analysis.wording import join_names, percent


class Allowance(NamedTuple):
    """Tolerance for the distance of two runs in their loss, change of weights or output."""

    of: str
    tolerance: float
    """Largest relative distance of equivalent runs."""

    usual: float
    """Tolerance without any declaration of a plugin."""

    maximum: float
    """Largest tolerance that a plugin's declaration can justify."""

    plugins: tuple[str, ...] = ()
    """Plugins that declare the tolerance; empty for the usual one."""

    other_training: str = ""
    """Declared difference in what is trained, which rules out equivalence; empty without one."""

    @property
    def by_design(self) -> str:
        """Reason why a declaration cannot excuse a distance above `usual`; empty if it can."""
        if self.other_training or self.tolerance <= self.maximum:
            return self.other_training
        return f"{percent(self.maximum)} is the most that counts as the same training"

    @property
    def words(self) -> str:
        """Tolerance and its declaring plugins in words: `2 % allowed by bitsandbytes`."""
        return allowed_words(self.tolerance, self.plugins)

    def verdict(self, difference: float) -> Training:
        """Return the verdict on a distance: `equivalent`, `different by design` or `different`."""
        if difference > self.tolerance:
            return "different"
        by_design = self.other_training or difference > self.usual
        return "different by design" if by_design else "equivalent"

    def excuses(self, difference: float) -> bool:
        """Return whether a plugin's declaration excuses a distance above the usual tolerance. A
        distance of updates or outputs must not exceed `maximum`. For losses, whose distance alone
        shows little, the declared tolerance itself must not exceed `maximum`."""
        if self.other_training or not self.usual < difference <= self.tolerance:
            return False
        return (self.tolerance if self.of == "loss" else difference) <= self.maximum


def allowed_words(tolerance: float, plugins: Sequence[str]) -> str:
    """Return a tolerance in words: `2 % allowed by bitsandbytes`; without plugins `2 % allowed`."""
    by = f" by {join_names(plugins)}" if plugins else ""
    return f"{percent(tolerance)} allowed{by}"


def allowance(of: str, pair: Pair) -> Allowance:
    """Return the tolerance of the figure `of` (`loss`, `update` or `output`) for two runs: the
    largest tolerance that a plugin declares, else the usual one."""
    usual, maximum = (limit_of(figure, pair) for figure in (of, f"declared {of}"))
    declared = declared_tolerances(of, *pair)
    largest = max(declared.values(), default=usual)
    names = tuple(name for name, value in declared.items() if value == largest)
    return Allowance(of, largest, usual, maximum, names, other_training(*pair))
