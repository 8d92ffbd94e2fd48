"""Clauses of the contract, each proven, violated or not provable here, and the report of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

from accel_bench.documents.base import Frozen

RUN = "runs"
"""Name of the clause without which no other one can be tried: the plugin trains here."""


class Clause(Frozen):
    """One clause of the contract, and how it went."""

    name: str
    """Short name, such as `light import`."""

    outcome: Literal["proven", "violated", "unproven"]
    """`unproven` is neither good nor bad: it could not be tried here, or is not claimed."""

    sentence: str
    """What was proven, or what is wrong and how to mend it, or why it could not be tried."""

    def __str__(self) -> str:
        return f"{self.outcome:9} {self.name}: {self.sentence}"


Step: TypeAlias = tuple[str, Callable[[], Iterable[Clause]]]
"""A name, and what tries the clause of that name, and those beside it."""


class CheckReport(Frozen):
    """All clauses of one plugin, in the order in which they were tried."""

    plugin: str
    """Name of the plugin."""

    clauses: tuple[Clause, ...]
    """What was tried; one name can stand there several times, such as for several dtypes."""

    @property
    def proven(self) -> tuple[Clause, ...]:
        """What holds here."""
        return tuple(clause for clause in self.clauses if clause.outcome == "proven")

    @property
    def unproven(self) -> tuple[Clause, ...]:
        """What could not be tried here, each with the reason."""
        return tuple(clause for clause in self.clauses if clause.outcome == "unproven")

    @property
    def violated(self) -> tuple[Clause, ...]:
        """What does not hold."""
        return tuple(clause for clause in self.clauses if clause.outcome == "violated")

    @property
    def ran(self) -> bool:
        """True if the plugin trained at all: else nothing that needs a run is proven."""
        return any(clause.name == RUN for clause in self.proven)

    def __str__(self) -> str:
        head = (
            f"plugin {self.plugin!r}: {len(self.violated)} violated, {len(self.proven)} proven, "
            f"{len(self.unproven)} unproven"
        )
        ordered = (*self.violated, *self.unproven, *self.proven)
        return "\n".join([head, *(f"  {clause}" for clause in ordered)])


def proven(name: str, sentence: str) -> Clause:
    """Return a clause that holds."""
    return Clause(name=name, outcome="proven", sentence=sentence)


def violated(name: str, sentence: str) -> Clause:
    """Return a clause that does not hold: the sentence names the culprit and the way out."""
    return Clause(name=name, outcome="violated", sentence=sentence)


def unproven(name: str, sentence: str) -> Clause:
    """Return a clause that could not be tried here, and why."""
    return Clause(name=name, outcome="unproven", sentence=sentence)


def judged(name: str, problems: Iterable[str], otherwise: str) -> list[Clause]:
    """Return a violated clause for each problem; a proven one with `otherwise` without any."""
    return [violated(name, text) for text in problems] or [proven(name, otherwise)]
