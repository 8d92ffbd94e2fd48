"""Difference of two ledgers: figures that rose and fell, with their source lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from accel_bench.analysis.schema import Document
from accel_bench.analysis.wording import count, plain_value
from accel_bench.documents.base import Frozen
from accel_bench_profile.ledger.line_changes import (
    FIGURES,
    FREE,
    PlaceChange,
    Shift,
    hidden,
    places,
    shifts,
    where,
)
from accel_bench_profile.ledger.schema import Figure, Ledger

OWN = "accel-bench"
"""Name of the core distribution."""

MOST_SETTINGS = 8
"""Maximum number of differing settings that are named."""


class TotalChange(Frozen):
    """Change of one figure's sum over a step, from one ledger to another."""

    figure: Figure

    kind: str = ""
    """Kind of the counted operations; empty for all kinds."""

    dtype: str = ""
    """Dtype of the operations."""

    before: int
    after: int

    @property
    def change(self) -> int:
        """Increase of the sum; negative if it fell."""
        return self.after - self.before


class LedgerDifference(Document):
    """The JSON document of `accel-bench scenarios count --against`."""

    before: Ledger
    """Reference ledger without entries."""

    after: Ledger
    """Current ledger without entries."""

    rose: tuple[TotalChange, ...]
    fell: tuple[TotalChange, ...]
    places: tuple[PlaceChange, ...]
    """Source lines with rises: lines with more work than before first, in order of execution."""

    shifts: tuple[Shift, ...] = ()
    """Rises in some modules that falls in other modules hide in the sum."""

    notes: tuple[str, ...] = ()

    @property
    def closes(self) -> bool:
        """True if a gate fails: a sum rose, or operations of a kind rose in a module."""
        return bool(self.rose or self.shifts)

    @property
    def answer(self) -> str:
        """Conclusion of the comparison in a sentence."""
        fell = f"; {count(len(self.fell), 'sum')} fell" if self.fell else ""
        first = f"; look first at {where(self.places[0])}" if self.places else ""
        if self.rose:
            return f"{count(len(self.rose), 'sum')} rose{first}"
        if self.shifts:
            kinds = count(len(self.shifts), "kind")
            return f"no sum rose, but {kinds} of operations rose in a module{first}{fell}"
        return f"nothing rose{fell}"


TotalKey: TypeAlias = tuple[Figure, str, str]


def difference(before: Ledger, after: Ledger) -> LedgerDifference:
    """Return the difference between two ledgers: changed sums, and source lines of rises."""
    old, new = totals(before), totals(after)
    order = {key: None for key in (*old, *new)}
    changes = [
        TotalChange(figure=figure, kind=kind, dtype=dtype, before=old[key], after=new[key])
        for key in sorted(order, key=lambda key: (bool(key[1]), FIGURES.index(key[0])))
        for figure, kind, dtype in [key]
        if old[key] != new[key] and key[1] != FREE
    ]
    rose = tuple(change for change in changes if change.change > 0)
    moved = hidden(before, after) - {(change.kind, change.dtype) for change in rose}
    figures = frozenset(change.figure for change in rose if not change.kind)
    kinds = frozenset((change.kind, change.dtype) for change in rose if change.kind) | moved
    return LedgerDifference(
        before=before.model_copy(update={"entries": ()}),
        after=after.model_copy(update={"entries": ()}),
        rose=rose,
        fell=tuple(change for change in changes if change.change < 0),
        places=tuple(places(before, after, figures, kinds)),
        shifts=tuple(shifts(before, after, moved)),
        notes=tuple(_notes(before, after)),
    )


def totals(ledger: Ledger) -> Counter[TotalKey]:
    """Return the sums of all figures, and the number of operations of each kind and dtype.

    Views are excluded from sums over all kinds, since they move no data.
    """
    sums: Counter[TotalKey] = Counter()
    for entry in ledger.entries:
        for figure, number in entry.figures.items():
            sums[figure, "", ""] += 0 if entry.kind == FREE else number
        if "operations" in entry.figures:
            sums["operations", entry.kind, entry.dtype] += entry.figures["operations"]
    return sums


def _notes(before: Ledger, after: Ledger) -> Iterator[str]:
    """Yield sentences on further differences: versions, settings, device, ranks, views.

    Work that is not counted is named too.
    """
    # A plugin that only one of the stacks has is what they differ in.
    common = before.versions.keys() & after.versions.keys()
    old, new = (
        {k: v for k, v in ledger.versions.items() if k in common} for ledger in (before, after)
    )
    own = [{OWN: known.pop(OWN)} if OWN in known else {} for known in (old, new)]
    if versions := _differing(old, new):
        yield f"versions differ, which may be all: {'; '.join(versions)}"
    yield from settings_notes(_differing(before.work, after.work))
    for name in ("device", "ranks"):
        was, now = getattr(before, name), getattr(after, name)
        if was != now:
            yield f"{name}: {was} before, {now} after"
    was, now = (_views(ledger) for ledger in (before, after))
    if was != now:
        yield f"views, which move nothing and close no gate: {was:,} before, {now:,} after"
    yield from dict.fromkeys((*before.left_out, *after.left_out))
    # Last: it differs after every commit of ours, and seldom changes what a step does.
    yield from (f"counted by another version: {text}" for text in _differing(*own))


def settings_notes(settings: Sequence[str]) -> Iterator[str]:
    """Yield a sentence that names the first differing `settings`, or nothing if there are none."""
    if settings:
        more = len(settings) - MOST_SETTINGS
        rest = f"; and {more} more" if more > 0 else ""
        yield f"settings differ: {'; '.join(settings[:MOST_SETTINGS])}{rest}"


def _views(ledger: Ledger) -> int:
    views = (entry for entry in ledger.entries if entry.kind == FREE)
    return sum(entry.figures.get("operations", 0) for entry in views)


def _differing(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [
        f"{key} {plain_value(before.get(key, 'none'))} -> {plain_value(after.get(key, 'none'))}"
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    ]
