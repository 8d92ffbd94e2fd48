"""A bundle's runs beside those of their repetition: the document, and what `reproduce` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from accel_bench.analysis.checks.comparability import Difference
from accel_bench.analysis.device_kinds import device_models
from accel_bench.analysis.reproduction import (
    ReproductionVerdict,
    StackReproduction,
    reproduce_stacks,
)
from accel_bench.analysis.schema import Document, Summary
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.tables.listing import differing_keys
from accel_bench.analysis.wording import (
    count,
    grouped_by_reason,
    label,
    rate_interval,
    ratio_interval,
    significant,
)
from accel_bench.documents.base import JsonValue
from accel_bench.machine.info import Machine
from accel_bench.report.table import (
    Column,
    Report,
    Section,
    Table,
    interval_paths,
    number_column,
    paths,
    reader,
)
from accel_bench.report.views.compare import differences_table
from accel_bench.result import PluginVersion, Result, Status


def facts(machine: Machine, plugins: Sequence[PluginVersion]) -> dict[str, JsonValue]:
    """Return versions and hardware by name, as far as they can change a figure."""
    gpus = [gpu.name for gpu in machine.gpus]
    named = {**machine.versions, **machine.libraries}
    named |= {plugin.distribution: plugin.version for plugin in plugins}
    shown = {
        "processor": machine.processor,
        "cores": machine.cores,
        "system": machine.system,
        "gpus": ", ".join(f"{count} x {name}" for name, count in Counter(gpus).items()),
        "driver": machine.driver,
        "cuda": machine.cuda,
        "python": machine.python,
        **{name: named[name] for name in sorted(named)},
    }
    return {name: value for name, value in shown.items() if value}


def plugins_of(results: Sequence[Result]) -> list[PluginVersion]:
    """Return the plugins that were active in any of the runs, each once."""
    return list(dict.fromkeys(plugin for run in results for plugin in run.plugins))


def facts_of(results: Sequence[Result]) -> dict[str, JsonValue] | None:
    """Return the facts of the machine and the plugins of runs; None where none has a machine."""
    machine = next((run.machine for run in results if run.machine), None)
    return facts(machine, plugins_of(results)) if machine else None


def differences(
    there: Mapping[str, JsonValue] | None, here: Mapping[str, JsonValue] | None
) -> tuple[Difference, ...]:
    """Return the facts that differ; null where one side lacks it. Without a side nothing does."""
    found = differing_keys(there, here) if there and here else ()
    return tuple(Difference(key=key, a=a, b=b) for key, a, b in found)


class Reproduction(Document):
    """The document of `accel-bench reproduce`."""

    bundle: str
    """The file."""

    sha256: str
    """Checksum that its manifest states."""

    scenario: str
    """Name of the scenario."""

    verdict: ReproductionVerdict
    """Not reproduced where one stack is not, else cannot tell where one stack cannot."""

    same_device: bool
    """True if both ran on the same device model: only then are absolute speeds compared."""

    devices_there: tuple[str, ...]
    """Device models of the bundle."""

    devices_here: tuple[str, ...]
    """Device models of the runs here."""

    differing: tuple[Difference, ...] = ()
    """Versions and machines that differ: A is the bundle's, B the one here."""

    stacks: tuple[StackReproduction, ...]
    """A row for each experiment of the bundle."""

    @property
    def exit_code(self) -> int:
        """Return 0 reproduced, 1 a stack that failed here alone, 4 not reproduced, 5 open."""
        if self.verdict == "not reproduced":
            return 4
        failed = any(
            row.status_here is not None
            and row.status_here is not Status.SKIPPED
            and not row.status_here.completed
            for row in self.stacks
        )
        return 1 if failed else {"reproduced": 0, "cannot tell": 5}[self.verdict]


def judge_bundle(
    file: str, sha256: str, there: Sequence[Result], here: Summary, here_runs: Sequence[Result]
) -> Reproduction:
    """Compare a bundle's runs (at least one) with the summary and the runs of their repetition."""
    devices = device_models(there), device_models(here_runs)
    stacks = reproduce_stacks(there, here, here_runs)
    return Reproduction(
        bundle=file,
        sha256=sha256,
        scenario=here.scenario,
        verdict=_overall([row.verdict for row in stacks if row.verdict is not None]),
        same_device=devices[0] == devices[1],
        devices_there=devices[0],
        devices_here=devices[1],
        differing=differences(facts_of(there), facts_of(here_runs)),
        stacks=stacks,
    )


def _overall(verdicts: Sequence[ReproductionVerdict]) -> ReproductionVerdict:
    if "not reproduced" in verdicts:
        return "not reproduced"
    return "reproduced" if verdicts and {*verdicts} == {"reproduced"} else "cannot tell"


def differences_section(differences: Sequence[Difference]) -> Section:
    """Return what differs here from where a bundle comes from."""
    if not differences:
        return Section(headline="versions and hardware are the bundle's.")
    answer = f"{count(len(differences), 'fact')} of versions and hardware differ here."
    table = differences_table(("differs", "bundle", "here"), differences)
    return Section(headline=answer, tables=[table])


def reproduction_report(found: Reproduction) -> Report:
    """Return the verdicts, a row for each stack."""
    return Report(
        sections=[
            Section(
                title=f"{found.scenario}, repeated from {found.bundle}",
                headline=_answer(found),
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
    verdicts = ", ".join(f"{number} {word}" for word, number in sorted(counts.items()))
    return f"{count(counts.total(), 'stack')}: {verdicts}."


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
