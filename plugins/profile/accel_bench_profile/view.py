"""Tables of `profile`: the main finding, kernels by time and by count, and notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import itemgetter

from accel_bench.analysis.wording import label, milliseconds, percent, size
from accel_bench.report.table import Column, Line, Report, Section, Table, columns_of, reader
from accel_bench_profile.figures.findings import place_text
from accel_bench_profile.figures.modules import ROOT
from accel_bench_profile.figures.schema import (
    KernelTime,
    ProfileReport,
    RankProfile,
    StackProfile,
)


def profile_view(report: ProfileReport, top: int) -> Report:
    """Return the report of profiles: for each run a section with tables of its slowest rank.

    `top` is the number of kernels in a table.
    """
    rows = [
        Line(profile=profile, rank=rank, kernel=kernel)
        for profile in report.profiles
        for rank in profile.ranks
        for kernel in rank.kernels
    ]
    sections = [_section(profile, top) for profile in report.profiles]
    return Report(sections, report, Table(FLAT, rows))


def _section(one: StackProfile, top: int) -> Section:
    shown = max(one.ranks, key=lambda rank: rank.step_seconds or 0.0, default=None)
    tables = [] if shown is None else list(_tables(shown, len(one.ranks) > 1, top))
    return Section(
        title=f"{one.scenario}: {label(one)}",
        headline=_sentence(one.answer),
        tables=tables,
        notes=[*_notes(one, shown), *map(_sentence, one.reasons)],
    )


def _tables(rank: RankProfile, several: bool, top: int) -> Iterator[Table]:
    where = f" of rank {rank.rank}" if several else ""
    by_time = sorted(rank.kernels, key=lambda kernel: -kernel.seconds)[:top]
    by_count = sorted(rank.kernels, key=lambda kernel: -kernel.calls)[:top]
    columns = _columns(rank)
    if rank.kernels:
        yield Table(columns, by_time, title=f"{rank.recorded}{where} by time")
        yield Table(columns, by_count, title=f"{rank.recorded}{where} by count")
    yield from memory_tables(rank, where, top)


def _columns(rank: RankProfile) -> list[Column]:
    def share(kernel: KernelTime) -> float | None:
        return kernel.seconds / rank.kernel_seconds if rank.kernel_seconds else None

    return [
        Column("name", reader("name"), kind="name"),
        Column("kind", reader("kind"), kind="word"),
        Column("calls", reader("calls"), "", "a step", "{:,.4g}".format, "number"),
        Column("time", reader("seconds"), "", "ms a step", milliseconds, "number"),
        Column("share", share, "", "of all", percent, "number"),
    ]


def _notes(one: StackProfile, rank: RankProfile | None) -> Iterator[str]:
    if rank is None:
        return
    for finding in one.findings[1:4]:
        yield f"then: {finding.text}"
    yield from _step_notes(rank)
    yield from _share_notes(rank)
    names = {fused.what: None for fused in rank.fused}
    if rank.kernels:
        yield f"fused: {', '.join(names)}" if names else "fused: no kernel's name says so"
    for profile in one.ranks:
        yield from (f"rank {profile.rank}: {warning}" for warning in profile.warnings)
    traces = sum(len(profile.traces) for profile in one.ranks)
    if traces:
        yield f"traces: {one.folder} (tensorboard --logdir, or ui.perfetto.dev)"
    if one.events:
        yield f"scalars of steps: {one.events}"
    if rank.memory is not None and rank.memory.snapshot:
        path = f"{one.folder}/rank{rank.rank}/{rank.memory.snapshot}"
        yield f"snapshot: {path} (drop it on https://pytorch.org/memory_viz)"
    yield f"figures: {one.folder}/rank{rank.rank}/profile.json"


def _step_notes(rank: RankProfile) -> Iterator[str]:
    if rank.step_seconds is None:
        if rank.recorder == "torch":
            yield "no step was recorded"
        return
    measured = rank.window_step_seconds
    beside = f"; measured without the profiler, {milliseconds(measured)} ms" if measured else ""
    yield f"step: {milliseconds(rank.step_seconds)} ms while recorded{beside}"
    kinds = ", ".join(
        f"{kind} {percent(seconds / rank.kernel_seconds)}"
        for kind, seconds in rank.kinds.items()
        if rank.kernel_seconds and seconds >= 0.01 * rank.kernel_seconds
    )
    yield f"by kind: {kinds}"


def _share_notes(rank: RankProfile) -> Iterator[str]:
    host, between = rank.host, rank.communication
    if host is not None and host.measures == "device idle":
        yield f"host-bound: {percent(host.share)} of a step (the device is idle, the host works)"
    elif host is not None:
        yield (
            f"in no operation: {percent(host.share)} of a step (on a CPU, Python and waiting; it "
            "stands for the host-bound share)"
        )
    if host is not None and host.preempted_seconds and rank.step_seconds:
        share = host.preempted_seconds / rank.step_seconds
        yield f"other work had the CPU for {percent(share)} of a step"
    if host is not None and host.launches is not None:
        late = host.launches
        yield (
            f"launch gaps: {late.late:,.4g} of {late.kernels:,.4g} kernels a step were launched "
            f"late, {milliseconds(late.seconds)} ms of idle time before them"
        )
    for read in host.reads if host else ():
        yield f"host reads: {place_text(read.place)}, {read.calls:.3g} a step"
    if between is not None:
        yield (
            f"communication: {percent(between.share)} of a step, of which "
            f"{percent(between.exposed_share)} of the step is hidden by no computation"
        )


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


FLAT = (
    *columns_of(StackProfile, "profile", names="scenario stack run_id status"),
    *columns_of(RankProfile, "rank", names="rank device step_seconds window_step_seconds"),
    *(Column(f"{part}_share", reader(f"rank.{part}.share")) for part in ("host", "communication")),
    *columns_of(KernelTime, "kernel", names="name kind"),
    *columns_of(KernelTime, "kernel", "{}_per_step", "calls seconds"),
)
"""CSV columns: a row for each kernel of each rank."""


def memory_tables(rank: RankProfile, where: str, top: int) -> Iterator[Table]:
    """Yield a table of the memory peak, and a table of tensors saved for the backward pass.

    `where` names the rank in the titles. `top` is the number of modules in the second table.
    """
    if rank.memory is not None:
        title = f"memory{where} at its peak of {size(rank.memory.peak_bytes)}"
        yield _table(rank.memory.peak, "category", title, len(rank.memory.peak))
    if rank.saved:
        total = sum(rank.saved.values())
        yield _table(rank.saved, "module", f"saved for the backward{where}: {size(total)}", top)


def _table(found: Mapping[str, int], key: str, title: str, top: int) -> Table:
    """Return a table of the `top` largest parts in bytes, with one row for all others.

    `found` has the bytes by part, and `key` is the name of the column with the parts.
    """
    total = sum(found.values())
    listed = sorted(found.items(), key=lambda pair: -pair[1])
    rest = listed[top:]
    rows = [{key: name or ROOT, "bytes": part} for name, part in listed[:top]]
    if rest:
        rows.append({key: f"{len(rest)} others", "bytes": sum(part for _, part in rest)})
    columns = [
        Column(key, itemgetter(key), kind="name"),
        Column("bytes", itemgetter("bytes"), "", "", size, "number"),
        Column("share", lambda row: row["bytes"] / total, "", "of all", percent, "number"),
    ]
    return Table(columns, rows, title=title)
