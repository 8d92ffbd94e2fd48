"""The difference of two ledgers: what rose and fell, and the source lines at which it did."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias, get_args

from accel_bench.analysis.ledgers.schema import Entry, Figure, Ledger
from accel_bench.analysis.schema import Document
from accel_bench.analysis.wording import count, plain_value
from accel_bench.documents.base import Frozen

FIGURES: tuple[Figure, ...] = get_args(Figure)

TURNS: tuple[frozenset[Figure], ...] = (
    frozenset({"synchronizations", "graph_breaks", "recompilations", "collectives"}),
    frozenset({"kernels", "saved_bytes"}),
    frozenset({"operations"}),
)
"""Figures by which lines are ordered: what rose at a line that does more than before."""

MOST_SETTINGS = 8
"""Settings that differ which are named."""


class Change(Frozen):
    """A sum over the step that differs."""

    figure: Figure

    kind: str = ""
    """Kind of operations that were counted; empty for all of them."""

    dtype: str = ""
    """Their dtype."""

    before: int
    after: int


class PlaceChange(Frozen):
    """A source line at which something rose that rose in all."""

    file: str
    lines: tuple[int, ...]
    """Numbers of the lines, in the later ledger; several where a function repeats a line."""

    function: str
    code: str
    modules: tuple[str, ...]
    """Modules for which it ran; numbers that differ are a `*`."""

    phases: tuple[str, ...]
    operations: tuple[str, ...]
    """Operations that rose, each with its dtype and its difference."""

    figures: dict[Figure, int]
    """What was added at this line, of figures that rose in its module."""


class LedgerDifference(Document):
    """What `accel-bench count --against` prints as JSON."""

    before: Ledger
    """The reference, without its entries."""

    after: Ledger
    """What was counted now, without its entries."""

    rose: tuple[Change, ...]
    fell: tuple[Change, ...]
    places: tuple[PlaceChange, ...]
    """Where it rose: what does more than before first, each group in the order of execution."""

    notes: tuple[str, ...] = ()

    @property
    def answer(self) -> str:
        """What happened, in a sentence."""
        if not self.rose:
            fell = f"; {count(len(self.fell), 'sum')} fell" if self.fell else ""
            return f"nothing rose{fell}"
        first = f", first at {where(self.places[0])}" if self.places else ""
        return f"{count(len(self.rose), 'sum')} rose{first}"


TotalKey: TypeAlias = tuple[Figure, str, str]


class LineKey(NamedTuple):
    """A line whatever its number."""

    file: str
    function: str
    code: str


def difference(before: Ledger, after: Ledger) -> LedgerDifference:
    """Return what differs between two ledgers."""
    old, new = totals(before), totals(after)
    order = {key: None for key in (*old, *new)}
    changes = [
        Change(figure=figure, kind=kind, dtype=dtype, before=old[key], after=new[key])
        for key in sorted(order, key=lambda key: (bool(key[1]), FIGURES.index(key[0])))
        for figure, kind, dtype in [key]
        if old[key] != new[key]
    ]
    rose = tuple(one for one in changes if one.after > one.before)
    return LedgerDifference(
        before=before.model_copy(update={"entries": ()}),
        after=after.model_copy(update={"entries": ()}),
        rose=rose,
        fell=tuple(one for one in changes if one.after < one.before),
        places=tuple(_places(before, after, rose)),
        notes=tuple(_notes(before, after)),
    )


def totals(ledger: Ledger) -> Counter[TotalKey]:
    """Return the sums of all figures, and the number of operations of each kind and dtype."""
    found: Counter[TotalKey] = Counter()
    for entry in ledger.entries:
        for figure, number in entry.figures.items():
            found[figure, "", ""] += number
        if "operations" in entry.figures:
            found["operations", entry.kind, entry.dtype] += entry.figures["operations"]
    return found


def where(place: PlaceChange) -> str:
    """Return `file.py:12 (model.layers.*.mlp)`."""
    modules = f" ({', '.join(filter(None, place.modules))})" if any(place.modules) else ""
    return f"{line_of(place)}{modules}"


def line_of(place: PlaceChange) -> str:
    """Return `file.py:12`."""
    return f"{place.file or 'no file'}:{','.join(map(str, place.lines))}"


def _places(before: Ledger, after: Ledger, rose: tuple[Change, ...]) -> Iterator[PlaceChange]:
    """Yield the lines at which something rose that rose in all, in its module too.

    Lines that do more than before come first: tensors that became larger, or have another dtype,
    do so at all lines that follow. Otherwise they are in the order of execution.
    """
    changes, by_operation, by_module = (_changes(before, after, key) for key in KEYS)
    figures = {one.figure for one in rose if not one.kind}
    kinds = {(one.kind, one.dtype) for one in rose if one.kind}
    lines: dict[LineKey, list[Risen]] = {}
    for entry in after.entries:
        change = changes.pop(_at_line(entry), None)  # a line that stands twice is one
        operation = by_operation[_in_module(entry)]
        if change is None:
            continue
        more = {one for one in FIGURES if change[one] > 0 and operation[one] > 0}
        if more & figures or ("operations" in more and (entry.kind, entry.dtype) in kinds):
            net = by_module[entry.site.phase, entry.site.module]
            lines.setdefault(_line(entry), []).append(Risen(entry, change, net))
    numbers = _numbers(after)
    places = [_place(line, risen, numbers[line]) for line, risen in lines.items()]
    yield from sorted(places, key=_turn)


def _turn(place: PlaceChange) -> int:
    turns = (number for number, figures in enumerate(TURNS) if figures & place.figures.keys())
    return next(turns, len(TURNS))


class Risen(NamedTuple):
    """An operation at a line that adds to a sum that rose."""

    entry: Entry

    change: Counter[Figure]
    """What differs at the line."""

    net: Counter[Figure]
    """What differs in the module, over all its lines and operations."""


def _at_line(entry: Entry) -> tuple[str, ...]:
    # Whatever function a line is in: who changes one line of a forward often patches all of it.
    return (*_in_module(entry), entry.site.code)


def _in_module(entry: Entry) -> tuple[str, ...]:
    site = entry.site
    return (site.phase, site.module, entry.operation, entry.kind, entry.dtype)


def _module(entry: Entry) -> tuple[str, ...]:
    return (entry.site.phase, entry.site.module)


KEYS: tuple[Callable[[Entry], tuple[str, ...]], ...] = (_at_line, _in_module, _module)
"""What changes are summed up by."""


def _line(entry: Entry) -> LineKey:
    return LineKey(entry.site.file, entry.site.function, entry.site.code)


def _numbers(ledger: Ledger) -> dict[LineKey, tuple[int, ...]]:
    """Return the numbers of each line."""
    found: dict[LineKey, set[int]] = {}
    for entry in ledger.entries:
        found.setdefault(_line(entry), set()).add(entry.site.line)
    return {line: tuple(sorted(numbers)) for line, numbers in found.items()}


def _changes(
    before: Ledger, after: Ledger, key: Callable[[Entry], tuple[str, ...]]
) -> dict[tuple[str, ...], Counter[Figure]]:
    found: dict[tuple[str, ...], Counter[Figure]] = {}
    for entry in after.entries:
        found.setdefault(key(entry), Counter()).update(entry.figures)
    for entry in before.entries:
        found.setdefault(key(entry), Counter()).subtract(entry.figures)
    return found


def _place(line: LineKey, risen: list[Risen], lines: tuple[int, ...]) -> PlaceChange:
    sites = [one.entry.site for one in risen]
    figures: Counter[Figure] = Counter()
    operations: Counter[str] = Counter()
    for entry, change, net in risen:
        figures.update({one: change[one] for one in FIGURES if net[one] > 0 and change[one] > 0})
        operations[f"{entry.operation} {entry.dtype}".strip()] += change[next(iter(entry.figures))]
    return PlaceChange(
        **line._asdict(),
        lines=lines,
        modules=tuple(_collapse(site.module for site in sites)),
        phases=tuple(dict.fromkeys(site.phase for site in sites)),
        operations=tuple(f"{name} {number:+,}" for name, number in operations.items()),
        figures={figure: figures[figure] for figure in FIGURES if figures[figure]},
    )


def _collapse(modules: Iterable[str]) -> Iterator[str]:
    """Yield each name once; of names that differ in numbers alone one, with `*` for them."""
    groups: dict[str, dict[str, None]] = {}
    for name in modules:
        groups.setdefault(re.sub(r"\b\d+\b", "*", name), {})[name] = None
    for pattern, names in groups.items():
        yield pattern if len(names) > 1 else next(iter(names))


def _notes(before: Ledger, after: Ledger) -> Iterator[str]:
    """Yield what else differs: versions, settings, the device, ranks, what is not counted."""
    # A plugin that only one of the stacks has is what they differ in.
    common = before.versions.keys() & after.versions.keys()
    old, new = ({k: v for k, v in one.versions.items() if k in common} for one in (before, after))
    if versions := _differing(old, new):
        yield f"versions differ, which may be all: {'; '.join(versions)}"
    if settings := _differing(before.work, after.work):
        more = len(settings) - MOST_SETTINGS
        rest = f"; and {more} more" if more > 0 else ""
        yield f"settings differ: {'; '.join(settings[:MOST_SETTINGS])}{rest}"
    for name in ("device", "ranks"):
        was, now = getattr(before, name), getattr(after, name)
        if was != now:
            yield f"{name}: {was} before, {now} after"
    yield from dict.fromkeys((*before.left_out, *after.left_out))


def _differing(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [
        f"{key} {plain_value(before.get(key, 'none'))} -> {plain_value(after.get(key, 'none'))}"
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    ]
