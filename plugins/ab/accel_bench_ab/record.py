"""What the observer left behind: the steps of each process, and of a command's ranks as one run."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

ROW = struct.Struct("=qqqqqdqq")
"""One step in a file of steps, as `observer/watch.py` writes it."""

NO_PROCESS = "no process of it loaded torch where the observer could see it"
"""Why there are no steps if the observer has left nothing."""


class Step(NamedTuple):
    """One optimizer step, of one rank or of all ranks together."""

    ended: float
    """Seconds by the system's monotonic clock."""

    processed: int
    """Tokens with padding; -1 for not seen."""

    real: int
    supervised: int
    sequences: int

    loss: float
    """Sum of the tensors whose backward pass the step took; NaN for not seen."""

    passes: int
    """Number of backward passes."""

    @property
    def counted(self) -> bool:
        """True if the tokens of the step were seen."""
        return self.processed >= 0


@dataclass(frozen=True)
class ProcessRecord:
    """What one process has been seen to do."""

    facts: dict[str, Any]
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True)
class Observed:
    """What a command has been seen to do, over all of its ranks."""

    ranks: list[ProcessRecord] = field(default_factory=list)
    """Ranks that took the steps, in order; empty if no steps were seen."""

    steps: list[Step] = field(default_factory=list)
    """Steps of all ranks together; empty if not seen."""

    steps_unseen: str = ""
    """Reason why there are no steps."""

    tokens_unseen: str = ""
    """Reason why the tokens of the steps are not known."""

    loss_unseen: str = ""
    """Reason why the losses of the steps are not known."""

    @property
    def unseen(self) -> dict[str, str]:
        """Reasons by what was not seen."""
        known = {"steps": self.steps_unseen, "tokens": self.tokens_unseen, "loss": self.loss_unseen}
        return {what: reason for what, reason in known.items() if reason}


def read_processes(folder: Path) -> list[ProcessRecord]:
    """Return the processes that left a record, in the order in which they began."""
    found = []
    for path in sorted(folder.glob("*.json")):
        facts = json.loads(path.read_text(encoding="utf8"))
        steps = path.with_suffix(".steps")
        found.append(ProcessRecord(facts, read_steps(steps) if steps.exists() else []))
    return sorted(found, key=lambda one: int(one.facts["began"]))


def read_steps(path: Path) -> list[Step]:
    """Return the steps that have ended, of a file that may still be written."""
    whole = path.read_bytes()
    steps = []
    for row in ROW.iter_unpack(whole[: len(whole) // ROW.size * ROW.size]):
        if row[-1] != 1:
            break
        steps.append(Step(row[0] / 1e9, *row[1:7]))
    return steps


def observe(folder: Path) -> Observed:
    """Return what the ranks of a command did, or the reason why that was not seen."""
    processes = read_processes(folder)
    reason = next((one.facts["steps_unseen"] for one in processes if one.facts["steps_unseen"]), "")
    ranks = [one for one in processes if one.steps]
    if reason or not ranks:
        return _nothing(reason or _why_no_steps(processes))
    ranks.sort(key=lambda one: int(one.facts["rank"]))
    numbers = [int(one.facts["rank"]) for one in ranks]
    world = {int(one.facts["world_size"]) for one in ranks}
    if numbers != [*range(len(ranks))] or world != {len(ranks)}:
        return _nothing(
            "the processes that took optimizer steps are not the ranks of one job (RANK "
            f"{', '.join(map(str, numbers))} of WORLD_SIZE {', '.join(map(str, sorted(world)))})"
        )
    tokens = next((one.facts["tokens_unseen"] for one in ranks if one.facts["tokens_unseen"]), "")
    loss = next((one.facts["loss_unseen"] for one in ranks if one.facts["loss_unseen"]), "")
    steps = [*map(_together, zip(*(one.steps for one in ranks), strict=False))]
    if not tokens and not all(step.counted for step in steps):
        tokens = "some steps were of no batch of tokens from a DataLoader"
    return Observed(ranks, steps, "", tokens, loss)


def _nothing(reason: str) -> Observed:
    return Observed([], [], reason, reason, reason)


def _why_no_steps(processes: Sequence[ProcessRecord]) -> str:
    passes = sum(int(one.facts["backward_passes"]) for one in processes)
    if passes:
        return f"{passes:,} backward passes and no step of an optimizer of torch"
    return NO_PROCESS


def _together(ranks: Sequence[Step]) -> Step:
    """Return a step of all ranks: its tokens add up, and its loss is the mean of theirs."""
    if len(ranks) == 1:
        return ranks[0]
    counted = all(step.counted for step in ranks)

    def total(name: str) -> int:
        return sum(getattr(step, name) for step in ranks) if counted else -1

    return Step(
        ended=max(step.ended for step in ranks),
        processed=total("processed"),
        real=total("real"),
        supervised=total("supervised"),
        sequences=total("sequences"),
        loss=math.fsum(step.loss for step in ranks) / len(ranks),
        passes=sum(step.passes for step in ranks),
    )
