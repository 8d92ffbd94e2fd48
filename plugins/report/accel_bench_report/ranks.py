"""The report section `ranks`: step times, memory, communication, and stragglers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.schema import ExperimentSummary, StackRow, Summary
from accel_bench.analysis.statistics.estimators import median_of_known
from accel_bench.analysis.wording import grouped_by_reason, label, size
from accel_bench.documents.base import Frozen
from accel_bench.report.table import Table
from accel_bench.result import Collective, Communication, Figure, RankResult, Result

NAME = "ranks"
"""Entry-point name of the section."""

LATE = 0.1
"""Minimum fraction of a step that others wait for a rank to call it a straggler."""


class RankFigures(Frozen):
    """Step time, loss, memory and communication of one rank: medians over runs."""

    rank: int
    """Global rank."""

    device: str
    """Device of the rank, with the UUID of a GPU."""

    step_seconds: float | None
    """Median seconds of a step in the window."""

    last_loss: float | None
    """Rank's part of the loss in the last step of the window."""

    peak_memory_bytes: int | None
    """Peak bytes of the window."""

    communication_seconds: float | None
    """Seconds per step in collectives; null if they were not observed."""

    waiting_seconds: float | None
    """Seconds per step of waiting for slower ranks."""


class StackRanks(StackRow):
    """Figures of each rank of an experiment, their spread, communication times, and stragglers."""

    experiment_id: str
    """Identity of the experiment."""

    ranks: tuple[RankFigures, ...]

    step_spread: float | None
    """Range of the ranks' step times, divided by their median."""

    memory_spread: float | None
    """Range of the ranks' peak memory, divided by its median."""

    communication_share: float | None
    """Fraction of an observed step in collectives without overlap: mean over ranks."""

    waiting_share: float | None
    """Fraction of an observed step in which a rank waits for slower ones: mean over ranks."""

    collectives: dict[str, Collective]
    """Collectives of a step: means over ranks, medians over runs."""

    stragglers: tuple[int, ...]
    """Ranks for which others wait a tenth of a step or more, in most runs."""

    reason: str = ""
    """Stragglers and their delay in a sentence; empty without one."""


def document(summary: Summary, rows: Sequence[ExperimentRuns]) -> list[StackRanks] | None:
    """Return the section's document: an entry for each stack with several ranks.

    None if no stack has several ranks.
    """
    pairs = zip(summary.experiments, rows, strict=True)
    stacks = (_of_stack(shown, [*row.completed.values()]) for shown, row in pairs)
    return [stack for stack in stacks if stack is not None] or None


def tables(summary: Summary, found: Sequence[StackRanks]) -> list[Table]:
    """Return no table: notes and details hold all values of the section."""
    return []


def notes(summary: Summary, found: Sequence[StackRanks]) -> list[str]:
    """Return notes on the stacks with stragglers; `found` is the section's document."""
    late = [(label(stack), f"straggler: {stack.reason}") for stack in found if stack.reason]
    return grouped_by_reason(late)


def details(summary: Summary, found: Sequence[StackRanks], row: ExperimentSummary) -> list[str]:
    """Return sentences on a stack's seconds in collectives per step, and their spread over ranks.

    `found` is the section's document. The list is empty if no communication was observed.
    """
    same = (row.experiment_id, row.stack)  # Two stacks that do the same have one id.
    own = (stack for stack in found if (stack.experiment_id, stack.stack) == same)
    return [_communication(stack) for stack in own if stack.communication_share is not None]


def _communication(one: StackRanks) -> str:
    kinds = [
        f"{name} {size(kind.bytes)} in {kind.seconds:.2g} s"
        for name, kind in one.collectives.items()
    ]
    share, waiting = one.communication_share, one.waiting_share or 0.0
    text = f"without overlap {share:.0%} of it is communication ({', '.join(kinds) or 'none'})"
    spread = one.memory_spread
    apart = f"; peaks of memory of the ranks {spread:.0%} apart" if spread else ""
    return f"{text}, {waiting:.0%} waiting for other ranks{apart}"


def _of_stack(row: ExperimentSummary, runs: Sequence[Result]) -> StackRanks | None:
    """Return the section's entry of a row from its completed runs; None if all had one rank."""
    several = [run for run in runs if len(run.ranks) > 1]
    if not several:
        return None
    by_rank: dict[int, list[RankResult]] = {}
    for run in several:
        for rank in run.ranks:
            by_rank.setdefault(rank.rank, []).append(rank)
    figures = tuple(_figures(number, results) for number, results in sorted(by_rank.items()))
    late = _late(several)
    return StackRanks(
        **row.model_dump(include={*StackRow.model_fields, "experiment_id"}),
        ranks=figures,
        step_spread=_spread(rank.step_seconds for rank in figures),
        memory_spread=_spread(rank.peak_memory_bytes for rank in figures),
        communication_share=_share(several, lambda seen: seen.seconds),
        waiting_share=_share(several, lambda seen: seen.waiting_seconds),
        collectives=_collectives(several),
        stragglers=tuple(late),
        reason="; ".join(
            f"the others wait {share:.0%} of a step for rank {rank}" for rank, share in late.items()
        ),
    )


def _figures(number: int, found: Sequence[RankResult]) -> RankFigures:
    """Return the medians of rank `number` over `found`, its results in each run."""
    windows = [result.window for result in found if result.window and result.window.samples]
    device = found[-1].device
    seen = [result.communication for result in found if result.communication]
    return RankFigures(
        rank=number,
        device="" if device is None else " ".join(filter(None, (str(device), device.uuid))),
        step_seconds=median_of_known(
            median(sample.seconds for sample in w.samples) for w in windows
        ),
        last_loss=median_of_known(w.samples[-1].loss for w in windows),
        peak_memory_bytes=_median_bytes(found),
        communication_seconds=median_of_known(own.seconds for own in seen),
        waiting_seconds=median_of_known(own.waiting_seconds for own in seen),
    )


def _median_bytes(found: Sequence[RankResult]) -> int | None:
    figure: Figure = "peak_memory"
    peaks = [m.value for result in found for m in result.metrics if m.figure == figure]
    middle = median_of_known(peaks)
    return None if middle is None else int(middle)


def _late(runs: Sequence[Result]) -> dict[int, float]:
    """Return the ranks that are late in most runs.

    The values are the median fractions of a step that the others wait for them.
    """
    shares: dict[int, list[float]] = {}
    for run in runs:
        for rank, share in late_ranks(_observed(run)).items():
            shares.setdefault(rank, []).append(share)
    return {rank: median(own) for rank, own in sorted(shares.items()) if 2 * len(own) > len(runs)}


def late_ranks(observed: Mapping[int, Communication]) -> dict[int, float]:
    """Return for each late rank the fraction of a step that others wait for it.

    A late rank itself waits little: its delay is the median wait of the others less its own wait.
    """
    longest = max((seen.step_seconds for seen in observed.values()), default=0.0)
    if len(observed) < 2 or not longest:
        return {}
    waits = {rank: seen.waiting_seconds for rank, seen in observed.items()}
    late = {}
    for rank, own in waits.items():
        others = median(wait for other, wait in waits.items() if other != rank)
        if (others - own) / longest >= LATE:
            late[rank] = (others - own) / longest
    return late


def _observed(run: Result) -> dict[int, Communication]:
    return {rank.rank: rank.communication for rank in run.ranks if rank.communication}


def _share(runs: Sequence[Result], part: Callable[[Communication], float]) -> float | None:
    """Return a fraction of the observed step's time: mean over ranks, median over runs.

    `part` returns the seconds that are divided by the step's. None if nothing was observed.
    """
    by_run = [[seen for seen in _observed(run).values() if seen.step_seconds] for run in runs]
    return median_of_known(
        fmean(part(seen) / seen.step_seconds for seen in observed)
        for observed in by_run
        if observed
    )


def _collectives(runs: Sequence[Result]) -> dict[str, Collective]:
    observed = [list(_observed(run).values()) for run in runs]
    observed = [ranks for ranks in observed if ranks]
    names = sorted({name for ranks in observed for rank in ranks for name in rank.collectives})
    return {name: _mean_collective(name, observed) for name in names}


def _mean_collective(name: str, observed: Sequence[Sequence[Communication]]) -> Collective:
    """Return calls, bytes and seconds of a collective: means over ranks, then medians over runs.

    `observed` has a list for each run, with the communication of each rank.
    """
    nothing = Collective(calls=0, bytes=0, seconds=0, waiting_seconds=0)
    kinds = [[rank.collectives.get(name, nothing) for rank in ranks] for ranks in observed]
    return Collective(
        **{
            key: median(fmean(getattr(kind, key) for kind in ranks) for ranks in kinds)
            for key in Collective.model_fields
        }
    )


def _spread(values: Iterable[float | None]) -> float | None:
    """Return the range of values divided by their median; None if a value is unknown."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    middle = median(known) if known and len(known) == len(listed) else 0
    return (max(known) - min(known)) / middle if middle else None
