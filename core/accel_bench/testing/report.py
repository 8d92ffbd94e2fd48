"""What `check_plugin` found: a clause of the contract each, proven, violated or not provable
here."""

from __future__ import annotations

from typing import Literal

from accel_bench.documents.base import Frozen

Outcome = Literal["proven", "violated", "unproven"]
"""What may be said about a clause."""

RUN = "runs"
"""Name of the clause without which no other one can be tried: the plugin trains here."""


class Clause(Frozen):
    """One clause of the contract, and how it went."""

    name: str
    """Short name, such as `light import`."""

    outcome: Outcome
    """`unproven` is neither good nor bad: it could not be tried here, or is not claimed."""

    sentence: str
    """What was proven, or what is wrong and how to mend it, or why nothing could be said."""

    def __str__(self) -> str:
        return f"{self.outcome:9} {self.name}: {self.sentence}"


class CheckReport(Frozen):
    """All clauses of one plugin, in the order in which they were tried."""

    plugin: str
    """Name of the plugin."""

    clauses: tuple[Clause, ...]
    """What was tried; one name can stand there several times, such as for several dtypes."""

    @property
    def proven(self) -> tuple[Clause, ...]:
        """What holds here."""
        return self._of("proven")

    @property
    def unproven(self) -> tuple[Clause, ...]:
        """What could not be tried here, each with the reason."""
        return self._of("unproven")

    @property
    def violated(self) -> tuple[Clause, ...]:
        """What does not hold."""
        return self._of("violated")

    @property
    def ran(self) -> bool:
        """Whether the plugin trained at all: else nothing that needs a run is proven."""
        return any(clause.name == RUN for clause in self.proven)

    def __str__(self) -> str:
        counts = (len(self.violated), len(self.proven), len(self.unproven))
        head = "plugin {!r}: {} violated, {} proven, {} unproven".format(self.plugin, *counts)
        ordered = (*self.violated, *self.unproven, *self.proven)
        return "\n".join([head, *(f"  {clause}" for clause in ordered)])

    def _of(self, outcome: Outcome) -> tuple[Clause, ...]:
        return tuple(clause for clause in self.clauses if clause.outcome == outcome)


def proven(name: str, sentence: str) -> Clause:
    """A clause that holds."""
    return Clause(name=name, outcome="proven", sentence=sentence)


def violated(name: str, sentence: str) -> Clause:
    """A clause that does not hold: the sentence names the culprit and the way out."""
    return Clause(name=name, outcome="violated", sentence=sentence)


def unproven(name: str, sentence: str) -> Clause:
    """A clause about which nothing can be said here, and why."""
    return Clause(name=name, outcome="unproven", sentence=sentence)
