"""Tables of a page: machines, overview of runs, and details of a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from accel_bench.analysis.statistics.verdict import ALIKE
from accel_bench.analysis.wording import (
    count,
    mebibytes,
    rate,
    rate_unit,
    size,
    time_text,
)
from accel_bench.effective import EffectiveConfiguration
from accel_bench.machine.info import Machine
from accel_bench.report.table import EMPTY, Column, Table, listed
from accel_bench.report.views.compare import setting_text
from accel_bench.scenario.uses import CALLS
from accel_bench_report.page.model import clipped
from accel_bench_report.page.scenario import PageRow
from accel_bench_report.tables.overview import OverviewRow

MOST_ROWS = 500
"""Maximum number of rows in the overview."""


def row_origin(row: PageRow) -> tuple[str, str]:
    """Return a word for the origin of a row's figures, such as `imported`, and an explanation."""
    run = row.last_run
    if run is None:
        return "not run", "there is no run of it"
    if run.imported:
        origin = run.provenance
        return "imported", f"from {origin.file} ({origin.format}): not measured here"
    origins = {result.provenance.origin for result in row.runs.counted.values()}
    word = "measured" if row.runs.completed else "run"
    where = f"{word} {'elsewhere' if 'exported' in origins else 'here'}"
    file = run.provenance.file
    exported = run.provenance.origin == "exported"
    title = (
        f"it came with the export {file}"
        if exported
        else f"measured by this program{f', to repeat the bundle {file}' if file else ''}"
    )
    badge, text = row.repeated
    return (f"{where}, {badge}", f"{title}; {text}") if badge else (where, title)


def row_facts(row: PageRow) -> Iterator[tuple[str, str]]:
    """Yield a label and a text for each detail of a row, such as its status."""
    summary = row.summary
    yield "experiment", summary.experiment_id or "never run"
    yield "status", f"{summary.status.value}, {count(summary.runs, 'completed run')}"
    yield "adds", summary.differs
    ratio_of = "speed" if summary.quantity.of_speed else summary.quantity.name
    reasons = {
        "why": "; ".join(summary.reasons),
        ratio_of: summary.verdict_reason if summary.ratio is None else "",
        **{
            what: f"{word}: {reason}" if reason and word not in ALIKE else ""
            for what, (word, reason) in summary.verdicts.items()
        },
        "provenance": row_origin(row)[1],
        "failed_audit": "; ".join(summary.failed_audit),
        "in effect": ", ".join(text for text, _ in configuration(row, None)),
    }
    for key, text in reasons.items():
        if text and text != "this is the baseline":
            yield key, clipped(text, 2000)
    if summary.tokens and summary.counts != CALLS:
        kinds = summary.tokens.per_step_global
        yield (
            f"{summary.counts} in a step",
            f"{kinds.real:,.0f} real, {kinds.processed:,.0f} with padding, "
            f"{kinds.supervised:,.0f} with a loss",
        )
    if summary.utilization and summary.utilization.mfu:
        yield "MFU", f"{summary.utilization.mfu.causal:.1%}"
    for plugin in summary.plugins:
        shown = summary.evidence.get(plugin.name)
        said = shown.get("summary") if isinstance(shown, dict) else None
        if isinstance(said, str):
            yield plugin.name, clipped(said)
    if summary.start_up:
        yield "start", _start(summary.start_up.model_dump())


def _start(seconds: Mapping[str, float | None]) -> str:
    names = {key: key.removesuffix("_seconds").replace("_", " ") for key in seconds}
    return ", ".join(f"{names[key]} {value:.2g} s" for key, value in seconds.items() if value)


def configuration(row: PageRow, base: PageRow | None) -> list[tuple[str, bool]]:
    """Return texts of a row's effective settings, each with True if it differs from `base`.

    `base` is the row of the baseline; None for no comparison.
    """
    own = _in_effect(row)
    other = _in_effect(base) if base and base is not row and base.runs.last else own
    return [(text, other.get(key) != text) for key, text in own.items() if text]


def _in_effect(row: PageRow) -> dict[str, str]:
    effective, run = row.summary.effective, row.runs.last
    train = run.experiment.scenario.train if run else None
    batch = ""
    if train and run:
        length = run.experiment.scenario.data.sequence_length
        times = f" x {train.gradient_accumulation}" if train.gradient_accumulation > 1 else ""
        batch = f"batch {train.micro_batch_size}{times}, up to {length} tokens"
    ranks = effective.world_size or 1
    return {
        "dtype": effective.matmul_dtype or next(iter(effective.trained_dtypes), ""),
        "weights": _weights(effective),
        "batch": batch,
        "attention": _attention(effective),
        "padding": "without padding" if effective.padding_free else "",
        "checkpointing": _checkpointing(effective),
        "compilation": _compilation(effective),
        "strategy": f"{effective.strategy} on {ranks} ranks" if ranks > 1 else "",
        "optimizer": effective.optimizer or "",
        "device": effective.device or "",
        "threads": count(effective.threads, "thread") if effective.threads else "",
    }


def _attention(effective: EffectiveConfiguration) -> str:
    """Return text on a run's attention: its setting or, without padding, the kernels used."""
    if not effective.padding_free:
        return f"attention {effective.attention}" if effective.attention else ""
    # Sequences in one row need other kernels than those that the setting names.
    kernels = ", ".join(effective.attention_kernels or ())
    return f"attention by {kernels}" if kernels else ""


def _weights(effective: EffectiveConfiguration) -> str:
    """Return text on the storage format of frozen weights; empty without frozen weights."""
    name = next(iter(effective.weight_dtypes), "")
    return f"frozen {name}" if name else ""


def _checkpointing(effective: EffectiveConfiguration) -> str:
    blocks = effective.checkpointed_blocks
    if blocks and blocks.checkpointed:
        policy = f" ({blocks.policy})" if blocks.policy else ""
        return f"{blocks.checkpointed} of {blocks.blocks} blocks checkpointed{policy}"
    return "checkpointed" if effective.gradient_checkpointing else ""


def _compilation(effective: EffectiveConfiguration) -> str:
    compiled = effective.compilation
    if not compiled or not compiled.graphs:
        return "eager"
    breaks = f", {count(compiled.graph_breaks, 'break')}" if compiled.graph_breaks else ""
    return f"compiled, {count(compiled.graphs, 'graph')}{breaks}"


def differences_table(row: PageRow) -> Table | None:
    pairs = [(entry, "declared") for entry in row.declared]
    pairs += [(entry, "NOT DECLARED") for entry in row.differing]
    if not pairs:
        return None
    rows = [
        (entry.key, clipped(setting_text(entry.a), 160), clipped(setting_text(entry.b), 160), how)
        for entry, how in pairs
    ]
    return listed(("differs from the baseline", "baseline", "this stack", ""), rows)


def machine_table(machines: Sequence[Machine]) -> Table:
    """Return a table with a column for each machine; rows in which machines differ come first."""
    if not machines:
        return listed(("fact", "value"), [("machine", "not recorded")])
    described = [_described(machine) for machine in machines]
    keys = dict.fromkeys(key for texts in described for key in texts)
    rows = [(key, *(texts.get(key, EMPTY) for texts in described)) for key in keys]
    rows.sort(key=lambda row: len(set(row[1:])) == 1)  # what differs comes first
    titles = ["fact", *(clipped(machine.host, 60) for machine in machines)]
    notes = ["what differs between the environments stands first"] if len(machines) > 1 else []
    table = listed(titles, rows)
    return Table(table.columns, table.rows, notes=notes)


def _described(machine: Machine) -> dict[str, str]:
    gpus = [f"{gpu.name} ({size(gpu.memory_bytes)})" for gpu in machine.gpus]
    facts = {
        "processor": f"{machine.processor}, {count(machine.cores, 'core')}",
        "memory": size(machine.memory_bytes),
        "GPUs": ", ".join(dict.fromkeys(f"{gpus.count(gpu)} x {gpu}" for gpu in gpus)),
        "driver": f"{machine.driver} (CUDA {machine.cuda})" if machine.driver else "",
        "system": machine.system,
        "python": machine.python,
        **machine.versions,
        **machine.libraries,
    }
    return {key: value for key, value in facts.items() if value}


def overview_table(rows: Sequence[OverviewRow]) -> Table:
    def speed(row: OverviewRow) -> tuple[str, ...]:
        if not row.speeds:
            return (EMPTY,)
        speeds = [speed for _, speed in row.speeds]
        if len(speeds) == 1:
            return (rate(speeds[0]),)
        return rate(speeds[-1]), f"{rate(min(speeds))} to {rate(max(speeds))}"

    unit = rate_unit(row.counts for row in rows)
    columns = [
        Column("scenario", lambda row: row.scenario, kind="name"),
        Column("stack", lambda row: row.stack, kind="name"),
        Column("point", lambda row: row.point or None, kind="name"),
        Column("device", lambda row: row.device or None, kind="name"),
        Column("runs", lambda row: sum(row.endings.values()), kind="number"),
        Column("ended", lambda row: ", ".join(f"{n} {word}" for word, n in row.endings.items())),
        Column("commands", lambda row: len(row.speeds), kind="number"),
        Column("speed", lambda row: row, unit=f"{unit}, newest; least to most", form=speed,
               kind="number"),
        Column("memory", lambda row: row.peak_memory_bytes, unit="MiB", form=mebibytes,
               kind="number"),
        Column("newest", lambda row: time_text(row.newest)),
        Column("origin", lambda row: row.origin),
    ]  # fmt: skip
    ranked = sorted(rows, key=lambda row: (row.scenario, row.point, row.stack))
    more = len(ranked) - MOST_ROWS
    notes = ["speeds are medians within a command; those of several commands may be of different "
             "versions, and nothing is ranked by them"]  # fmt: skip
    notes += [f"{more:,} more rows are left out: `accel-bench results list --group-by "
              "scenario,stack,tag` has all"] if more > 0 else []  # fmt: skip
    return Table(columns, ranked[:MOST_ROWS], "By scenario, stack, sweep point and device", notes)
