"""Reader of the observer's files: steps of each process, and of all ranks of a command together."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

ROW = struct.Struct("=qqqqdqq")
"""Binary format of a row in a file of steps, as written by `observer/watching/steps.py`."""

NO_PROCESS = "no process of it loaded torch where the observer could see it"
"""Reason for missing steps if no process was observed."""


class Step(NamedTuple):
    """One optimizer step, of one rank or of all ranks together."""

    ended: float
    """End of the step, in seconds of the system's monotonic clock."""

    processed: int
    """Number of tokens with padding; -1 if unobserved."""

    real: int
    supervised: int

    loss: float
    """Sum of the losses of the step's backward passes; NaN if unobserved."""

    passes: int
    """Number of backward passes."""

    @property
    def counted(self) -> bool:
        """True if the tokens of the step were observed."""
        return self.processed >= 0


@dataclass(frozen=True)
class ProcessRecord:
    """Observations of one process: its optimizer steps, and facts such as device and optimizers."""

    facts: dict[str, Any]
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True)
class Observed:
    """Observations of a command over all of its ranks."""

    ranks: list[ProcessRecord] = field(default_factory=list)
    """Records of the ranks that took steps, in order; empty without observed steps."""

    steps: list[Step] = field(default_factory=list)
    """Steps of all ranks together; empty if unobserved."""

    steps_unseen: str = ""
    """Reason why steps, and all that depends on them, were not observed; empty otherwise."""

    tokens_unseen: str = ""
    """Reason for unknown tokens of the steps; empty otherwise."""

    loss_unseen: str = ""
    """Reason for unknown losses of the steps; empty otherwise."""

    update_unseen: str = ""
    """Reason for an unknown change of the weights, as known to rank 0; empty otherwise."""

    @property
    def unseen(self) -> dict[str, str]:
        """Reasons for missing observations, by subject: `steps`, `tokens`, `loss` or `update`."""
        names = ("steps", "tokens", "loss", "update")
        known = {name: getattr(self, f"{name}_unseen") for name in names}
        return {what: reason for what, reason in known.items() if reason}


def read_processes(folder: Path) -> list[ProcessRecord]:
    """Return the records of observed processes, in the order of their start."""
    records = []
    for path in sorted(folder.glob("*.json")):
        facts = json.loads(path.read_text(encoding="utf8"))
        steps = path.with_suffix(".steps")
        records.append(ProcessRecord(facts, read_steps(steps) if steps.exists() else []))
    return sorted(records, key=lambda record: int(record.facts["began"]))


def read_steps(path: Path) -> list[Step]:
    """Return the finished steps in a file that may still be written to."""
    whole = path.read_bytes()
    steps = []
    for row in ROW.iter_unpack(whole[: len(whole) // ROW.size * ROW.size]):
        if row[-1] != 1:
            break
        steps.append(Step(row[0] / 1e9, *row[1:6]))
    return steps


def observe(folder: Path) -> Observed:
    """Return the observations in the observer's files in `folder`, over all ranks of a command.

    Each missing observation has a reason.
    """
    processes = read_processes(folder)
    reason = next(
        (process.facts["steps_unseen"] for process in processes if process.facts["steps_unseen"]),
        "",
    )
    ranks = [process for process in processes if process.steps]
    if reason or not ranks:
        return Observed(steps_unseen=reason or _why_no_steps(processes))
    ranks.sort(key=lambda rank: int(rank.facts["rank"]))
    numbers = [int(rank.facts["rank"]) for rank in ranks]
    world = {int(rank.facts["world_size"]) for rank in ranks}
    if numbers != [*range(len(ranks))] or world != {len(ranks)}:
        places = (
            f"{', '.join(map(str, numbers))} of WORLD_SIZE {', '.join(map(str, sorted(world)))}"
        )
        several = "the processes that took optimizer steps are not the ranks of one job"
        return Observed(steps_unseen=f"{several} (RANK {places})")
    tokens = next(
        (rank.facts["tokens_unseen"] for rank in ranks if rank.facts["tokens_unseen"]), ""
    )
    loss = next((rank.facts["loss_unseen"] for rank in ranks if rank.facts["loss_unseen"]), "")
    steps = [*map(_together, zip(*(rank.steps for rank in ranks), strict=False))]
    if not tokens and not all(step.counted for step in steps):
        tokens = "some steps were of no batch of tokens from a DataLoader"
    if loss:  # Those of some passes are not the step's.
        steps = [step._replace(loss=math.nan) for step in steps]
    update = ranks[0].facts.get("update_unseen", "")
    updates = ranks[0].facts.get("updates") or {}
    if not (update or all(map(is_finite, updates.values()))):
        update = "the weights are not finite"
    return Observed(ranks, steps, "", tokens, loss, update)


def is_finite(update: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether the sketches of a change of the weights are finite."""
    return all(math.isfinite(part) for tensor in update.values() for part in tensor["change"])


def _why_no_steps(processes: Sequence[ProcessRecord]) -> str:
    passes = sum(int(process.facts["backward_passes"]) for process in processes)
    if passes:
        return f"{passes:,} backward passes and no step of an optimizer of torch"
    return NO_PROCESS


def _together(ranks: Sequence[Step]) -> Step:
    """Return a step of all ranks: the sum of their tokens, and the mean of their losses."""
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
        loss=math.fsum(step.loss for step in ranks) / len(ranks),
        passes=sum(step.passes for step in ranks),
    )
