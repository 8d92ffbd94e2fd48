"""Report of a plugin's check, by clauses of the contract: proven, violated or not provable here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

from accel_bench.documents.base import Frozen

RUN = "runs"
"""Name of the clause that the plugin trains at all, on which all other clauses depend."""


class Clause(Frozen):
    """Requirement of the plugin contract, with the outcome of its check."""

    name: str
    """Short name of the requirement, such as `light import`."""

    outcome: Literal["proven", "violated", "unproven"]
    """Outcome of the check; `unproven` means not testable here, or not declared."""

    sentence: str
    """Proven fact, or fault with advice, or reason why the clause is unproven."""

    def __str__(self) -> str:
        return f"{self.outcome:9} {self.name}: {self.sentence}"


CheckStep: TypeAlias = tuple[str, Callable[[], Iterable[Clause]]]
"""Step of a check: a name, and a function that checks the clause of that name and others."""


class CheckReport(Frozen):
    """Outcomes of all clauses checked for one plugin, in the order of the check."""

    plugin: str
    """Name of the plugin."""

    clauses: tuple[Clause, ...]
    """Clauses of the check; a name can occur several times, such as for several dtypes."""

    @property
    def proven(self) -> tuple[Clause, ...]:
        """Clauses that were shown to hold here."""
        return tuple(clause for clause in self.clauses if clause.outcome == "proven")

    @property
    def unproven(self) -> tuple[Clause, ...]:
        """Clauses that could not be tested here, each with the reason."""
        return tuple(clause for clause in self.clauses if clause.outcome == "unproven")

    @property
    def violated(self) -> tuple[Clause, ...]:
        """Clauses that were shown not to hold."""
        return tuple(clause for clause in self.clauses if clause.outcome == "violated")

    @property
    def ran(self) -> bool:
        """True if the plugin has trained; otherwise no clause that needs a run is proven."""
        return any(clause.name == RUN for clause in self.proven)

    def __str__(self) -> str:
        head = (
            f"plugin {self.plugin!r}: {len(self.violated)} violated, {len(self.proven)} proven, "
            f"{len(self.unproven)} unproven"
        )
        ordered = (*self.violated, *self.unproven, *self.proven)
        return "\n".join([head, *(f"  {clause}" for clause in ordered)])


def proven(name: str, sentence: str) -> Clause:
    """Return a clause that was shown to hold. `sentence` states the proven fact."""
    return Clause(name=name, outcome="proven", sentence=sentence)


def violated(name: str, sentence: str) -> Clause:
    """Return a clause that was shown not to hold. `sentence` states the fault and how to mend
    it."""
    return Clause(name=name, outcome="violated", sentence=sentence)


def unproven(name: str, sentence: str) -> Clause:
    """Return a clause that could not be tested here. `sentence` states the reason."""
    return Clause(name=name, outcome="unproven", sentence=sentence)


def judged(name: str, problems: Iterable[str], otherwise: str) -> list[Clause]:
    """Return a violated clause for each problem, or else a proven clause with the sentence
    `otherwise`."""
    return [violated(name, text) for text in problems] or [proven(name, otherwise)]
