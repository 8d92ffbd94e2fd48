"""A page of bundles: one file without outside requests; every text from elsewhere is escaped."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from accel_bench.analysis.reproduction import MARGIN
from accel_bench.analysis.schema import ExperimentSummary, Summary
from accel_bench.analysis.wording import (
    count,
    label,
    mebibytes,
    percent,
    rate_interval,
    ratio_interval,
)
from accel_bench.documents.canonical import canonical_json
from accel_bench.documents.program import __version__
from accel_bench.documents.shown import plain
from accel_bench.report.html import html_environment, inline_files
from accel_bench.report.table import EMPTY, STACKED
from accel_bench.result import Status

FOLDER = Path(__file__).with_name("templates")

TONES = {
    "faster": "good",
    "slower": "bad",
    "different training": "bad",
    "different output": "bad",
    "inconclusive": "open",
}
"""Colours of verdicts; what did not complete is `bad`, what was skipped `quiet`."""

Repetitions = Mapping[tuple[str, str], Counter[str]]
"""Verdicts of repetitions by stack and sweep point."""


@dataclass(frozen=True)
class ShownBundle:
    """A verified bundle, as the page shows it."""

    file: str
    """Its path from the page, with `/`."""

    identity: str
    """Checksum of its sessions and runs."""

    date: str
    """Day of its first session, ISO 8601."""

    summary: Summary
    models: Mapping[str, str]
    """Model by experiment id."""

    devices: str
    versions: Sequence[str]
    """Versions of plugins, by the plugin's name, and of what they run on."""

    repeats: str = ""
    """File of the bundle that it repeats; its identity where that is not in the folder."""

    repetitions: Repetitions = field(default_factory=dict)


def point_key(row: Any) -> tuple[str, str]:
    """Return what tells a row of a bundle from its others: stack and sweep point."""
    return row.stack, canonical_json(row.sweep)


def render_site(
    title: str, bundles: Sequence[ShownBundle], refused: Sequence[tuple[str, str]]
) -> str:
    """Return the page; `refused` are names of files and the reasons."""
    environment = html_environment(FOLDER, plain)
    rows = [_row(bundle, row) for bundle in bundles for row in bundle.summary.experiments]
    return environment.get_template("site.html").render(
        title=title,
        answer=_answer(bundles, refused),
        rows=rows,
        filters=[(name, _words(rows, name)) for name in ("model", "stack", "device", "version")],
        refused=refused,
        margin=percent(MARGIN),
        version=__version__,
        **inline_files(FOLDER / "site.css", FOLDER / "site.js"),
    )


def _answer(bundles: Sequence[ShownBundle], refused: Sequence[object]) -> str:
    """Return how many stacks are faster and the fastest, then what the folder holds."""
    verdicts: Counter[str] = Counter()
    for bundle in bundles:
        for found in bundle.repetitions.values():
            verdicts += found
    repeated = ", ".join(f"{number} {word}" for word, number in sorted(verdicts.items()))
    parts = [
        count(len(bundles), "bundle"),
        f"repetitions of stacks: {repeated}" if repeated else "no repetition yet",
        *([f"{count(len(refused), 'file')} refused"] if refused else []),
    ]
    return f"{_faster(bundles)} {'; '.join(parts)}."


def _faster(bundles: Sequence[ShownBundle]) -> str:
    """Return `2 of 3 stacks are faster than their baseline, most of all ...`."""
    compared = [
        (one.summary, row, _verdict(one.summary, row)[0])
        for one in bundles
        for row in one.summary.experiments
        if row.stack != one.summary.baseline
    ]
    if not compared:
        return "No stack is compared with another one."
    faster = [(row.ratio, row, made) for made, row, verdict in compared if verdict == "faster"]
    rest = Counter(verdict for _, _, verdict in compared if verdict != "faster")
    others = "".join(f"; {number} {word}" for word, number in sorted(rest.items()))
    start = f"{len(faster)} of {count(len(compared), 'stack')}"
    start += f" {'is' if len(faster) == 1 else 'are'} faster than the baseline"
    if known := [(ratio, row, made) for ratio, row, made in faster if ratio is not None]:
        ratio, row, made = max(known, key=lambda one: one[0].median)
        name = f"{label(row)} of {made.scenario}"
        start += f", most of all {name}: {ratio_interval(ratio)} times as fast"
    return f"{start}{others}."


def _row(bundle: ShownBundle, row: ExperimentSummary) -> dict[str, Any]:
    """Return the cells of one experiment; one that did not complete has its status alone."""
    verdict, tone, reason = _verdict(bundle.summary, row)
    usable = row.status.completed and not row.disowned
    compared = row.stack != bundle.summary.baseline
    return {
        "date": bundle.date,
        "scenario": bundle.summary.scenario,
        "model": bundle.models.get(row.experiment_id, EMPTY),
        "device": bundle.devices,
        "stack": row.stack,
        "label": label(row),
        "ratio": STACKED.split(
            ratio_interval(row.ratio) if usable and compared and row.ratio else EMPTY
        ),
        "verdict": verdict,
        "tone": tone,
        "reason": reason,
        "loss": next(iter(row.verdicts.values()))[0] if compared else EMPTY,
        "speed": STACKED.split(
            rate_interval(row.tokens_per_second) if usable and row.tokens_per_second else EMPTY
        ),
        "memory": EMPTY if row.peak_memory_bytes is None else mebibytes(row.peak_memory_bytes),
        "repeated": _repeated(bundle.repetitions.get(point_key(row), Counter()))
        if compared
        else EMPTY,
        "versions": bundle.versions,
        "href": f"./{quote(os.fsencode(bundle.file))}",  # a name need not be UTF-8
        "file": bundle.file,
        "repeats": bundle.repeats,
        "identity": bundle.identity,
    }


def _verdict(summary: Summary, row: ExperimentSummary) -> tuple[str, str, str]:
    """Return the verdict of a row, its tone, and its reason."""
    if not row.status.completed:
        tone = "quiet" if row.status is Status.SKIPPED else "bad"
        return row.status.value, tone, "; ".join(row.reasons)
    if row.disowned:
        return "disowned by its self-audit", "bad", "; ".join(row.disowned)
    if row.stack == summary.baseline:
        return "baseline", "", ""
    return row.verdict, TONES.get(row.verdict, ""), row.verdict_reason


def _repeated(verdicts: Counter[str]) -> str:
    """Return `3 times: 2 reproduced, 1 cannot tell`."""
    total = sum(verdicts.values())
    if not total:
        return "never"
    parts = ", ".join(f"{number} {word}" for word, number in sorted(verdicts.items()))
    return f"{count(total, 'time')}: {parts}"


def _words(rows: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    """Return the values of a filter, sorted."""
    if name == "version":
        return sorted({one for row in rows for one in row["versions"]})
    return sorted({str(row[name]) for row in rows})
