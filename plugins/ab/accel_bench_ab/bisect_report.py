"""JSON document and table of `accel-bench bisect`: its answer, and each measured version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

from accel_bench.analysis.quantity import Quantity
from accel_bench.analysis.schema import Document
from accel_bench.analysis.statistics.sequential import GATE_CODES
from accel_bench.analysis.statistics.verdict import Comparison
from accel_bench.analysis.wording import count, duration, join_names, percent, ratio, ratio_interval
from accel_bench.documents.base import Frozen
from accel_bench.report.table import Column, Report, Section, Table, columns_of, reader
from accel_bench_ab.bisect_history import Version
from accel_bench_ab.bisect_rounds import BisectRounds
from accel_bench_ab.bisect_search import ERROR, AnswerKind, BisectAnswer

Role: TypeAlias = Literal["good end", "good", "bad", "bad end", "open", "skipped"]
"""Role of a version: an end, its side of the change, undecided, or skipped."""


class BisectVersion(Frozen):
    """A version of the history that was measured or skipped."""

    place: int
    """Index in the history; 0 is the good end."""

    version: str
    """Name of the version."""

    title: str
    """Description of the version's change, such as a commit's subject."""

    found: Role
    """Side of the change on which the version lies, or why that is unknown."""

    rounds: int = 0
    """Number of rounds in which the version was measured."""

    ratio: float | None = None
    """Mean performance relative to the good end, over all rounds; above 1 is better."""

    reason: str = ""
    """Reason for skipping the version; empty if measured."""


class BisectReport(Document):
    """The JSON document of `accel-bench bisect`."""

    answer: AnswerKind
    """Kind of the answer: one version, several candidates, several changes, none, or open."""

    conclusion: str
    """Conclusion of the search, in a sentence."""

    last_good: str | None = None
    """Name of the last version known to be good; null if unknown."""

    first_bad: str | None = None
    """Name of the first version known to be bad; null if unknown."""

    candidates: tuple[str, ...] = ()
    """Names of the versions of which one made the change."""

    quantity: Quantity
    """Compared quantity."""

    floor: float
    """Minimum relative effect of a change to search for; 0.01 is 1 %."""

    error_rate: float = ERROR
    """Maximum probability of a wrong answer, over all interim analyses of all comparisons."""

    step: Comparison | None = None
    """Comparison of the first bad version with the last good one, in fresh rounds."""

    before: Comparison | None = None
    """Comparison of the last good version with the good end; null if they are the same."""

    after: Comparison | None = None
    """Comparison of the bad end with the first bad version; null if they are the same."""

    ends: Comparison | None = None
    """Comparison of the bad end with the good end."""

    hidden: float | None = None
    """Maximum relative effect that another change may have; null if excluded."""

    versions: int
    """Number of versions in the history."""

    probes: int
    """Number of versions that were measured between the ends."""

    runs: int
    """Number of runs so far."""

    seconds: float
    """Total seconds of all runs so far."""

    measured: tuple[BisectVersion, ...]
    """Versions that were measured or skipped, in the order of the history."""

    @property
    def exit_code(self) -> int:
        """Exit code: 0 for an answer, 5 if more runs are needed or versions were skipped."""
        answered = self.answer in ("culprit", "several", "none")
        return 0 if answered else GATE_CODES["inconclusive"]


def bisect_report(rounds: BisectRounds, answer: BisectAnswer) -> BisectReport:
    """Return the JSON document of `bisect`, made of the measured rounds and the answer."""
    known, bisection = rounds.history.versions, rounds.bisection
    last, first = answer.last_good, answer.first_bad
    is_named = answer.kind in ("culprit", "candidates")
    between = [] if last is None or first is None else [*range(last + 1, first + 1)]
    return BisectReport(
        answer=answer.kind,
        conclusion=_conclusion(answer, known, rounds.quantity, bisection.floor),
        last_good=None if last is None else known[last].name,
        first_bad=None if first is None else known[first].name,
        candidates=tuple(known[index].name for index in between) if is_named else (),
        quantity=rounds.quantity,
        floor=bisection.floor,
        step=answer.step,
        before=answer.before,
        after=answer.after,
        ends=answer.ends,
        hidden=answer.hidden,
        versions=len(known),
        probes=bisection.probes,
        runs=rounds.runs,
        seconds=rounds.seconds,
        measured=tuple(_measured(rounds)),
    )


def _measured(rounds: BisectRounds) -> Iterator[BisectVersion]:
    bisection, known = rounds.bisection, rounds.history.versions
    ends: Mapping[int, Role] = {0: "good end", len(known) - 1: "bad end"}
    roles: dict[int, Role] = {**bisection.sides, **dict.fromkeys(bisection.skipped, "skipped")}
    roles |= ends
    own = {place: bisection.pairs(place) for place in range(len(known))}
    for place in [index for index, pairs in own.items() if pairs or index in roles]:
        yield BisectVersion(
            place=place,
            version=known[place].name,
            title=known[place].title,
            found=roles.get(place, "open"),
            rounds=len(own[place]),
            ratio=bisection.ratio(place),
            reason=bisection.skipped.get(place, ""),
        )


def _conclusion(
    answer: BisectAnswer, known: Sequence[Version], quantity: Quantity, floor: float
) -> str:
    words = quantity.words
    if answer.kind == "none":
        assert answer.ends is not None
        return (
            f"none: the bad end is not {words.worse} than the good one by {percent(floor)} or "
            f"more: {_effect(answer.ends, quantity)}"
        )
    if answer.kind == "inconclusive":
        within = ""
        if answer.last_good is not None and answer.first_bad is not None:
            ends = known[answer.last_good].name, known[answer.first_bad].name
            within = f" (it lies between {ends[0]} and {ends[1]})"
        return f"no answer yet{within}: {answer.reason}"
    assert answer.last_good is not None and answer.first_bad is not None and answer.step
    last, first = known[answer.last_good], known[answer.first_bad]
    step = _effect(answer.step, quantity)
    if answer.kind == "several":
        return (
            f"several changes made it {words.worse}: {first.name} ({first.title}) is one of them "
            f"or lies between them, {step} than {last.name}, and it does not explain the "
            "difference of the ends"
        )
    rest = f"; another change of up to {percent(answer.hidden)} is not excluded" if (
        answer.hidden and answer.hidden >= floor) else ""  # fmt: skip
    if answer.kind == "candidates":
        between = [version.name for version in known[answer.last_good + 1 : answer.first_bad + 1]]
        return (
            f"one of {join_names(between)} made it {words.worse}, of which only {first.name} can "
            f"be measured: {step} than {last.name}{rest}"
        )
    return f"{first.name} ({first.title}) made it {words.worse}: {step} than {last.name}{rest}"


def _effect(found: Comparison, quantity: Quantity) -> str:
    assert found.ratio is not None
    times = f"{ratio_interval(found.ratio)} {quantity.words.times}{quantity.by}"
    return f"{times} ({count(found.rounds, 'round')})"


COLUMNS = (
    Column("place", reader("place"), kind="number"),
    Column("version", reader("version"), kind="name"),
    Column("found", reader("found"), kind="word"),
    Column("times as good", reader("ratio"), form=ratio, kind="number"),
    Column("rounds", reader("rounds"), kind="number"),
    Column("change", reader("title"), kind="name"),
)
"""Columns of the printed table."""


def bisect_view(report: BisectReport) -> Report:
    """Return the printed report: the answer, then a row for each measured or skipped version."""
    notes = [
        f"{count(report.probes, 'probe')} of {count(report.versions, 'version')}, "
        f"{count(report.runs, 'run')} in {duration(report.seconds)}; at most "
        f"{percent(report.error_rate)} of answers are wrong",
        *(
            f"{version.version} was skipped: {version.reason}"
            for version in report.measured
            if version.reason
        ),
    ]
    section = Section(
        title=f"bisect: {report.answer}",
        headline=report.conclusion,
        tables=[Table(COLUMNS, report.measured)],
        notes=notes,
    )
    return Report([section], report, Table(columns_of(BisectVersion), report.measured))
