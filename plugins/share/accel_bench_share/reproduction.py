"""Comparison of a bundle's runs with their reproduction, as a JSON document and as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from accel_bench.analysis.checks.comparability import Difference
from accel_bench.analysis.device_kinds import device_models
from accel_bench.analysis.metrics.offered_load import MEDIAN_LATENCY
from accel_bench.analysis.quantity import SPEED
from accel_bench.analysis.schema import Document, Summary
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.statistics.verdict import Finding
from accel_bench.analysis.tables.listing import differing_keys
from accel_bench.analysis.wording import (
    count,
    grouped_by_reason,
    join_names,
    label,
    rate_interval,
    ratio_interval,
    significant,
)
from accel_bench.documents.base import JsonValue
from accel_bench.machine.info import Machine
from accel_bench.report.table import (
    Column,
    Line,
    Report,
    Section,
    Table,
    columns_of,
    number_column,
    reader,
)
from accel_bench.report.views.compare import differences_table
from accel_bench.result import PluginVersion, Result, Status
from accel_bench_share.stack_reproduction import (
    REPRODUCED,
    StackReproduction,
    reproduce_stacks,
)


def facts(machine: Machine, plugins: Sequence[PluginVersion]) -> dict[str, JsonValue]:
    """Return a machine's hardware and software versions that affect performance, by name.

    Unknown values are left out.
    """
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
    """Return the distinct plugins that were active in any of the runs."""
    return list(dict.fromkeys(plugin for run in results for plugin in run.plugins))


def facts_of(results: Sequence[Result]) -> dict[str, JsonValue] | None:
    """Return hardware and software versions of runs by name; None if no run states its machine."""
    machine = next((run.machine for run in results if run.machine), None)
    return facts(machine, plugins_of(results)) if machine else None


def differences(
    there: Mapping[str, JsonValue] | None, here: Mapping[str, JsonValue] | None
) -> tuple[Difference, ...]:
    """Return the hardware and software versions that differ; empty if `there` or `here` is None.

    `there` has the values of the bundle's machine by name, `here` this machine's. A value that only
    one of them has is null for the other.
    """
    keys = differing_keys(there, here) if there and here else ()
    return tuple(Difference(key=key, a=a, b=b) for key, a, b in keys)


class Reproduction(Document):
    """JSON document that `accel-bench reproduce` prints: bundle and reproduction compared."""

    bundle: str
    """Name of the bundle's file, as given."""

    sha256: str
    """Checksum in the bundle's manifest."""

    scenario: str
    """Name of the scenario."""

    verdict: Finding
    """Verdict on the statement that the bundle was reproduced: `does not hold` if one stack was
    not, else `inconclusive` if one stack is undecided."""

    same_device: bool
    """True if both ran on the same device model, as comparing absolute speeds requires."""

    devices_there: tuple[str, ...]
    """Device models of the bundle's runs."""

    devices_here: tuple[str, ...]
    """Device models of the reproduction's runs."""

    differing: tuple[Difference, ...] = ()
    """Differing versions and hardware: A is the bundle's, B this machine's."""

    stacks: tuple[StackReproduction, ...]
    """A row for each experiment of the bundle."""

    @property
    def exit_code(self) -> int:
        """Exit code: 0 reproduced, 1 a stack failed here, 4 not reproduced, 5 undecided."""
        if self.verdict == "does not hold":
            return 4
        failed = any(
            row.status_here is not None
            and row.status_here is not Status.SKIPPED
            and not row.status_here.completed
            for row in self.stacks
        )
        return 1 if failed else 0 if self.verdict == "holds" else 5


def judge_bundle(
    file: str, sha256: str, there: Sequence[Result], here: Summary, here_runs: Sequence[Result]
) -> Reproduction:
    """Return the comparison of a bundle's runs (at least one) with their reproduction.

    `file` and `sha256` are the name and the checksum of the bundle, `there` its runs. `here` is the
    summary of the reproduction, and `here_runs` are its runs.
    """
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


def _overall(verdicts: Sequence[Finding]) -> Finding:
    if "does not hold" in verdicts:
        return "does not hold"
    return "holds" if verdicts and {*verdicts} == {"holds"} else "inconclusive"


def differences_section(differences: Sequence[Difference]) -> Section:
    """Return a report's section on differences between the bundle's machine and this machine."""
    if not differences:
        return Section(headline="versions and hardware are the bundle's.")
    headline = f"{count(len(differences), 'fact')} of versions and hardware differ here."
    table = differences_table(("differs", "bundle", "here"), differences)
    return Section(headline=headline, tables=[table])


def reproduction_report(found: Reproduction) -> Report:
    """Return the report of a reproduction: its verdict, and a table row for each stack."""
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
        flat=Table(FLAT, [Line(found=found, row=row) for row in found.stacks]),
    )


def _answer(found: Reproduction) -> str:
    counts = Counter(REPRODUCED[row.verdict] for row in found.stacks if row.verdict is not None)
    if not counts:
        return "inconclusive: the bundle has nothing but its baseline, and so no ratio."
    verdicts = ", ".join(f"{number} {word}" for word, number in sorted(counts.items()))
    return f"{count(counts.total(), 'stack')}: {verdicts}."


def _notes(found: Reproduction) -> list[str]:
    reasons = [(label(row), row.reason) for row in found.stacks if row.reason]
    devices = " and ".join(
        ", ".join(models) or "-" for models in (found.devices_there, found.devices_here)
    )
    compared = (
        "absolute speeds are history, without a verdict: both are of one device model"
        if found.same_device
        else f"absolute speeds are not compared: the devices differ ({devices})"
    )
    usual = {SPEED, MEDIAN_LATENCY}
    others = list(dict.fromkeys(row.compared for row in found.stacks if row.compared not in usual))
    what = [f"ratios are those of {join_names(others)}"] if others else []
    return [*grouped_by_reason(reasons), *what, compared]


def _ratio(name: str) -> Callable[[StackReproduction], Interval | None]:
    """Return a function that returns a row's ratio `name`, or None for the baseline's row."""
    return lambda row: None if row.is_baseline else getattr(row, name)


COLUMNS = (
    Column("stack", label, kind="name"),
    Column("claim", lambda row: None if row.is_baseline else row.claim),
    Column("ratio there", _ratio("ratio_there"), form=ratio_interval, kind="number"),
    Column("ratio here", _ratio("ratio_here"), form=ratio_interval, kind="number"),
    number_column("change", "here / there", "", ratio_interval),
    Column("status", reader("status_here"), kind="word"),
    Column("verdict", lambda row: "baseline" if row.is_baseline else REPRODUCED[row.verdict],
           kind="word"),
)  # fmt: skip
"""Columns of the printed table of `reproduce`."""

ABSOLUTE = (
    COLUMNS[0],
    number_column("tokens_per_second_there", "tokens/s there", "", rate_interval),
    number_column("tokens_per_second_here", "tokens/s here", "", rate_interval),
    number_column("speed_change", "here / there", "", ratio_interval),
    Column("loss there", reader("last_loss_there"), form=partial(significant, digits=4)),
    Column("loss here", reader("last_loss_here"), form=partial(significant, digits=4)),
)
"""Columns of absolute figures, which depend on the machine."""


FLAT = (
    *columns_of(Reproduction, "found", without="verdict"),
    *columns_of(StackReproduction, "row"),
)
"""CSV columns of `reproduce`."""
