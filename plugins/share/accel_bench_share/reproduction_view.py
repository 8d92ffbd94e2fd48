"""A bundle and its repetition side by side: what `reproduce` prints, before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from accel_bench.analysis.checks.comparability import Difference
from accel_bench.analysis.reproduction import ReproductionVerdict, StackReproduction
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.wording import (
    count,
    grouped_by_reason,
    label,
    plain_value,
    rate_interval,
    ratio_interval,
    significant,
)
from accel_bench.report.table import (
    EMPTY,
    Column,
    Report,
    Section,
    Table,
    interval_paths,
    listed,
    number_column,
    paths,
    reader,
)
from accel_bench_share.reproduction import Reproduction


def differences_section(differing: Sequence[Difference]) -> Section:
    """Return what differs here from where a bundle comes from."""
    if not differing:
        return Section(answer="versions and hardware are the bundle's.")
    rows = [(one.key, _value(one.a), _value(one.b)) for one in differing]
    answer = f"{count(len(differing), 'fact')} of versions and hardware differ here."
    return Section(answer=answer, tables=[listed(("differs", "bundle", "here"), rows)])


def reproduction_report(found: Reproduction) -> Report:
    """Return the verdicts, a row for each stack."""
    return Report(
        sections=[
            Section(
                title=f"{found.scenario}, repeated from {found.bundle}",
                answer=_answer(found),
                tables=[
                    Table(COLUMNS, found.stacks),
                    Table(ABSOLUTE, found.stacks, title="absolute speeds and losses"),
                ],
                notes=_notes(found),
            )
        ],
        document=found,
        flat=Table(FLAT, [FlatRow(found, row) for row in found.stacks]),
    )


def _answer(found: Reproduction) -> str:
    counts = Counter(row.verdict for row in found.stacks if row.verdict is not None)
    if not counts:
        return "cannot tell: the bundle has nothing but its baseline, and so no ratio."
    parts = [
        f"{count(counts[word], 'stack')} {said}" for word, said in SAID.items() if counts[word]
    ]
    return ", ".join(parts) + "."


def _notes(found: Reproduction) -> list[str]:
    reasons = [(label(row), row.reason) for row in found.stacks if row.reason]
    devices = " and ".join(
        ", ".join(one) or "-" for one in (found.devices_there, found.devices_here)
    )
    compared = (
        "absolute speeds are history, without a verdict: both are of one device model"
        if found.same_device
        else f"absolute speeds are not compared: the devices differ ({devices})"
    )
    return [*grouped_by_reason(reasons), compared]


def _value(value: object) -> str:
    return EMPTY if value is None else plain_value(value)  # type: ignore[arg-type]


SAID: Mapping[ReproductionVerdict, str] = {
    "reproduced": "reproduced",
    "not reproduced": "not reproduced",
    "cannot tell": "left open",
}
"""How verdicts stand in a sentence."""


def _ratio(name: str) -> Callable[[StackReproduction], Interval | None]:
    """Return a function that reads a ratio; the baseline has none."""
    return lambda row: None if row.is_baseline else getattr(row, name)


COLUMNS = (
    Column("stack", label, kind="name"),
    Column("claim", lambda row: None if row.is_baseline else row.claim),
    Column("ratio there", _ratio("ratio_there"), form=ratio_interval, kind="number"),
    Column("ratio here", _ratio("ratio_here"), form=ratio_interval, kind="number"),
    number_column("change", "here / there", "", ratio_interval),
    Column("status", reader("status_here"), kind="word"),
    Column("verdict", lambda row: "baseline" if row.is_baseline else row.verdict, kind="word"),
)
"""Columns for people."""

ABSOLUTE = (
    COLUMNS[0],
    number_column("tokens_per_second_there", "tokens/s there", "", rate_interval),
    number_column("tokens_per_second_here", "tokens/s here", "", rate_interval),
    number_column("speed_change", "here / there", "", ratio_interval),
    Column("loss there", reader("last_loss_there"), form=partial(significant, digits=4)),
    Column("loss here", reader("last_loss_here"), form=partial(significant, digits=4)),
)
"""The same of what depends on the machine."""


class FlatRow(NamedTuple):
    """Sources of one line of the CSV."""

    found: Reproduction
    row: StackReproduction


FLAT = (
    *paths("found", "schema_version bundle sha256 scenario same_device"),
    *paths("row", "stack sweep tag is_baseline claim status_here verdict reason"),
    *interval_paths("row", "ratio_there ratio_here change"),
    *interval_paths("row", "tokens_per_second_there tokens_per_second_here speed_change"),
    *paths("row", "last_loss_there last_loss_here"),
)
"""Columns of the CSV."""
