"""How far may two runs be apart? By the rules, and by what plugins declare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from accel_bench.analysis.checks.declared import declared_tolerances, other_training
from accel_bench.analysis.checks.verdict_rules import Pair, limit_of
from accel_bench.analysis.statistics.verdict import Training
from accel_bench.analysis.wording import join_names, percent


class Allowance(NamedTuple):
    """How far two runs may be apart in their loss, update or output."""

    of: str
    tolerance: float
    """Relative distance that is allowed."""

    usual: float
    """What is allowed where no plugin declares anything."""

    maximum: float
    """The most that a declaration excuses."""

    plugins: tuple[str, ...] = ()
    """Plugins that declare the tolerance; empty for the usual one."""

    other_training: str = ""
    """What else is trained, so that the runs are not equivalent however near."""

    @property
    def by_design(self) -> str:
        """Why no declaration excuses a distance beyond the usual one; empty where one does."""
        if self.other_training or self.tolerance <= self.maximum:
            return self.other_training
        return f"{percent(self.maximum)} is the most that counts as the same training"

    @property
    def words(self) -> str:
        """The tolerance and who declares it: `2 % allowed by bitsandbytes`."""
        return allowed_words(self.tolerance, self.plugins)

    def verdict(self, difference: float) -> Training:
        """Return the word for a distance; a usual one needs no excuse, whatever is declared."""
        if difference > self.tolerance:
            return "different"
        by_design = self.other_training or difference > self.usual
        return "different by design" if by_design else "equivalent"

    def excuses(self, difference: float) -> bool:
        """Return whether a declaration makes up for a distance beyond the usual one.

        A loss near the baseline's shows little: what is declared counts in its place.
        """
        if self.other_training or not self.usual < difference <= self.tolerance:
            return False
        return (self.tolerance if self.of == "loss" else difference) <= self.maximum


def allowed_words(tolerance: float, plugins: Sequence[str]) -> str:
    """Return `2 % allowed by bitsandbytes`; without a plugin where none declares it."""
    by = f" by {join_names(plugins)}" if plugins else ""
    return f"{percent(tolerance)} allowed{by}"


def allowance(of: str, pair: Pair) -> Allowance:
    """Return the largest tolerance of the plugins in which two runs differ, else the usual one."""
    usual, maximum = (limit_of(figure, pair) for figure in (of, f"declared {of}"))
    declared = declared_tolerances(of, *pair)
    largest = max(declared.values(), default=usual)
    names = tuple(name for name, value in declared.items() if value == largest)
    return Allowance(of, largest, usual, maximum, names, other_training(*pair))
