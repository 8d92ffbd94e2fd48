"""Source lines at which two ledgers differ, and rises in one module hidden by falls in another."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias, get_args

from accel_bench.analysis.wording import count, flops, size
from accel_bench.documents.base import Frozen
from accel_bench_profile.ledger.schema import Figure, Ledger, LedgerEntry

FIGURES: tuple[Figure, ...] = get_args(Figure)

TURNS: tuple[frozenset[Figure], ...] = (
    frozenset({"synchronizations", "graph_breaks", "recompilations", "collectives"}),
    frozenset({"kernels", "saved_bytes"}),
    frozenset({"operations"}),
)
"""Sets of figures that order lines: lines at which a figure of the first set rose come first."""

LineKey: TypeAlias = tuple[str, str, str]
"""File, function and code of a source line, its identity regardless of its number."""

Risen: TypeAlias = tuple[LedgerEntry, Counter[Figure], Counter[Figure]]
"""An operation at a line that contributes to a sum that rose, with the change of its figures at the
line, and with the change of the figures in the module."""

FREE = "view"
"""Kind of operations without cost, which never fail a gate."""

MOST_SHIFTS = 3
"""Maximum number of source lines named for a shift between modules."""


class PlaceChange(Frozen):
    """A source line at which a figure rose that also rose in total."""

    file: str
    lines: tuple[int, ...]
    """Line numbers in the later ledger; several if a function repeats the line."""

    function: str
    code: str
    modules: tuple[str, ...]
    """Modules for which the line ran, with `*` for differing numbers."""

    phases: tuple[str, ...]
    operations: tuple[str, ...]
    """Operations that rose, with dtypes and differences."""

    figures: dict[Figure, int]
    """Increases at this line, of figures that rose in its module."""


class Shift(Frozen):
    """Operations of a kind that rose in some modules and fell in others; their sum did not rise."""

    kind: str
    dtype: str
    """Dtype of the operations."""

    rose: tuple[str, ...]
    """Source lines at which the operations rose, with modules."""

    fell: tuple[str, ...]
    """Source lines at which the operations fell."""

    @property
    def sentence(self) -> str:
        """Description of the shift in a sentence."""
        what = " ".join(filter(None, ("operations", self.kind, self.dtype)))
        rose, fell = (_some(lines) for lines in (self.rose, self.fell))
        places = count(len(self.rose), "place")
        return f"{what} rose in {places} and fell in others: rose at {rose}; fell at {fell}"


def where(place: PlaceChange) -> str:
    """Return a source line and its module as text: `file.py:12 (model.layers.*.mlp)`."""
    modules = f" ({', '.join(filter(None, place.modules))})" if any(place.modules) else ""
    return f"{line_of(place)}{modules}"


def line_of(place: PlaceChange) -> str:
    """Return a source line as text: `file.py:12`."""
    return f"{place.file or 'no file'}:{','.join(map(str, place.lines))}"


def amount(figure: Figure, number: int) -> str:
    """Return a figure's `number` as text with its unit; only a negative one has a sign."""
    form: Callable[[int], str] = "{:,}".format
    if figure.endswith("bytes"):
        form = size
    elif figure == "flops":
        form = flops
    return f"-{form(-number)}" if number < 0 else form(number)


def signed_amount(figure: Figure, number: int) -> str:
    """Return a figure's change as text with its sign and its unit."""
    return f"{'+' if number > 0 else ''}{amount(figure, number)}"


def hidden(before: Ledger, after: Ledger) -> frozenset[tuple[str, str]]:
    """Return pairs of kind and dtype of the operations whose number rose in any module.

    The backward pass is excluded: autograd's order decides in which of two modules gradients are
    added.
    """
    changes = _changes(before, after, lambda entry: (*_module(entry), entry.kind, entry.dtype))
    return frozenset(
        (kind, dtype)
        for (phase, _, kind, dtype), change in changes.items()
        if change["operations"] > 0 and kind != FREE and phase != "backward"
    )


def shifts(before: Ledger, after: Ledger, hidden: frozenset[tuple[str, str]]) -> Iterator[Shift]:
    """Yield a shift for each pair of kind and dtype in `hidden`.

    The number of such operations rose in some modules and fell in others, so that their sum hides
    the rise.
    """
    for kind, dtype in sorted(hidden):
        only = frozenset({(kind, dtype)})
        rose, fell = (
            tuple(where(place) for place in places(old, new, frozenset(), only))
            for old, new in ((before, after), (after, before))
        )
        yield Shift(kind=kind, dtype=dtype, rose=rose, fell=fell)


def _some(lines: tuple[str, ...]) -> str:
    left = len(lines) - MOST_SHIFTS
    return ", ".join(lines[:MOST_SHIFTS]) + (f" and {left} more" if left > 0 else "")


def places(
    before: Ledger,
    after: Ledger,
    figures: frozenset[Figure],
    kinds: frozenset[tuple[str, str]],
) -> Iterator[PlaceChange]:
    """Yield the source lines at which a figure rose that also rose in total and in the module.

    `figures` are the figures that rose in total, and `kinds` are pairs of kind and dtype whose
    operations rose in number. Lines with more work than before come first: larger tensors, or
    another dtype, affect all following lines. Otherwise lines are in the order of execution.
    """
    changes, by_operation, by_module = (_changes(before, after, key) for key in KEYS)
    lines: dict[LineKey, list[Risen]] = {}
    for entry in after.entries:
        change = changes.pop(_at_line(entry), None)  # a line that stands twice is one
        operation = by_operation[_in_module(entry)]
        if change is None or entry.kind == FREE:
            continue
        more = {figure for figure in FIGURES if change[figure] > 0 and operation[figure] > 0}
        if more & figures or ("operations" in more and (entry.kind, entry.dtype) in kinds):
            net = by_module[entry.site.phase, entry.site.module]
            lines.setdefault(_line(entry), []).append((entry, change, net))
    numbers = _numbers(after)
    places = [_place(line, risen, numbers[line]) for line, risen in lines.items()]
    yield from sorted(places, key=_turn)


def _turn(place: PlaceChange) -> int:
    turns = (number for number, figures in enumerate(TURNS) if figures & place.figures.keys())
    return next(turns, len(TURNS))


def _at_line(entry: LedgerEntry) -> tuple[str, ...]:
    # Whatever function a line is in: who changes one line of a forward often patches all of it.
    return (*_in_module(entry), entry.site.code)


def _in_module(entry: LedgerEntry) -> tuple[str, ...]:
    site = entry.site
    return (site.phase, site.module, entry.operation, entry.kind, entry.dtype)


def _module(entry: LedgerEntry) -> tuple[str, ...]:
    return (entry.site.phase, entry.site.module)


KEYS: tuple[Callable[[LedgerEntry], tuple[str, ...]], ...] = (_at_line, _in_module, _module)
"""Functions that return the key by which changes of entries are summed."""


def _line(entry: LedgerEntry) -> LineKey:
    return entry.site.file, entry.site.function, entry.site.code


def _numbers(ledger: Ledger) -> dict[LineKey, tuple[int, ...]]:
    """Return all line numbers of each source line, by the line's file, function and code."""
    by_line: dict[LineKey, set[int]] = {}
    for entry in ledger.entries:
        by_line.setdefault(_line(entry), set()).add(entry.site.line)
    return {line: tuple(sorted(numbers)) for line, numbers in by_line.items()}


def _changes(
    before: Ledger, after: Ledger, key: Callable[[LedgerEntry], tuple[str, ...]]
) -> dict[tuple[str, ...], Counter[Figure]]:
    changes: dict[tuple[str, ...], Counter[Figure]] = {}
    for entry in after.entries:
        changes.setdefault(key(entry), Counter()).update(entry.figures)
    for entry in before.entries:
        changes.setdefault(key(entry), Counter()).subtract(entry.figures)
    return changes


def _place(line: LineKey, risen: list[Risen], lines: tuple[int, ...]) -> PlaceChange:
    file, function, code = line
    sites = [entry.site for entry, _, _ in risen]
    figures: Counter[Figure] = Counter()
    operations: Counter[tuple[str, Figure]] = Counter()
    for entry, change, net in risen:
        figures.update(
            {figure: change[figure] for figure in FIGURES if net[figure] > 0 and change[figure] > 0}
        )
        figure = next(iter(entry.figures))  # how often; of what is only saved, its bytes
        operations[f"{entry.operation} {entry.dtype}".strip(), figure] += change[figure]
    return PlaceChange(
        file=file,
        lines=lines,
        function=function,
        code=code,
        modules=tuple(_collapse(site.module for site in sites)),
        phases=tuple(dict.fromkeys(site.phase for site in sites)),
        operations=tuple(
            f"{name} {signed_amount(figure, number)}"
            for (name, figure), number in operations.items()
        ),
        figures={figure: figures[figure] for figure in FIGURES if figures[figure]},
    )


def _collapse(modules: Iterable[str]) -> Iterator[str]:
    """Yield distinct module names; names that differ only in numbers become one, with `*`."""
    groups: dict[str, dict[str, None]] = {}
    for name in modules:
        groups.setdefault(re.sub(r"\b\d+\b", "*", name), {})[name] = None
    for pattern, names in groups.items():
        yield pattern if len(names) > 1 else next(iter(names))
