"""Web page of all bundles in a folder, each with its reproductions by other bundles."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from accel_bench.analysis.device_kinds import device_models
from accel_bench.analysis.schema import ExperimentSummary, Summary
from accel_bench.analysis.wording import (
    JUDGED,
    TONES,
    count,
    label,
    mebibytes,
    percent,
    rate_interval,
    ratio_interval,
)
from accel_bench.documents.escaping import plain
from accel_bench.documents.program import __version__
from accel_bench.errors import AccelBenchError, BundleError
from accel_bench.report.page_file import html_environment, inline_files, write_page
from accel_bench.report.table import EMPTY, STACKED
from accel_bench.result import Result
from accel_bench.scenario.uses import slot_defaults
from accel_bench_share.bundle_reader import Manifest, read_bundle
from accel_bench_share.permissions import evaluated, naming_the_bundle
from accel_bench_share.reproduction import plugins_of
from accel_bench_share.stack_reproduction import (
    MARGIN,
    REPRODUCED,
    StackReproduction,
    reproduce_stacks,
    row_key,
)

SUFFIX = ".zip"
"""Suffix of bundle files."""

VERSIONS = ("accel-bench", "torch", "transformers")
"""Distributions whose versions are shown in addition to the plugins' versions."""


SAME_PLACE = " by its author"
"""Suffix of a verdict on a reproduction by the user and machine of the bundle itself."""


class Verified(NamedTuple):
    """Verified bundle without its runs, which are read again when they are compared."""

    path: Path
    manifest: Manifest
    shown: ShownBundle


def write_site(folder: Path, output: Path) -> tuple[int, list[tuple[str, str]]]:
    """Write a page of all bundles below a folder; return their number and the refused files.

    A refused file is a pair of its name and the reason. Raises BundleError if there is no bundle.
    """
    known: dict[str, Verified] = {}
    refused: list[tuple[str, str]] = []
    for path in bundle_files(folder):
        name = path.relative_to(folder).as_posix()
        try:
            verified = _verified(path, output)
            if same := known.get(verified.shown.identity):
                raise BundleError(f"the same runs as {same.path.relative_to(folder).as_posix()}")
            known[verified.shown.identity] = verified
        except AccelBenchError as error:
            refused.append((name, str(error).removeprefix(f"{path}: ").removeprefix("refused, ")))
    if not known and not refused:
        raise BundleError(
            f"{folder} holds no bundle (*{SUFFIX}); `accel-bench bundle new` makes some"
        )
    bundles = [_with_repetitions(verified, known, refused) for verified in known.values()]
    bundles.sort(key=lambda bundle: (bundle.date, bundle.file), reverse=True)
    title = f"Results in {folder.resolve().name}"
    write_page(output, render_site(title, bundles, refused))
    return len(bundles), refused


def bundle_files(folder: Path) -> list[Path]:
    """Return the sorted paths of possible bundle files in a folder and its visible subfolders.

    Raises BundleError if the folder does not exist.
    """
    if not folder.is_dir():
        raise BundleError(f"{folder} is no folder")
    named = (path.relative_to(folder) for path in folder.rglob(f"*{SUFFIX}") if not path.is_dir())
    return [folder / path for path in sorted(named) if not any(p[0] == "." for p in path.parts)]


def _verified(path: Path, page: Path) -> Verified:
    """Return the bundle in a file, verified, for a page that is to be written to `page`.

    Raises BundleError for a link, and for an unreadable or changed bundle.
    """
    if path.is_symlink() or not path.is_file():
        raise BundleError("it is a link or no plain file")
    bundle = read_bundle(path)
    made = bundle.manifest
    shown = ShownBundle(
        file=Path(os.path.relpath(path, page.parent)).as_posix(),
        identity=bundle.identity,
        date=made.started_at[:10],
        summary=evaluated(bundle),
        models={run.experiment.id: _model(run) for run in bundle.results},
        devices=", ".join(device_models(bundle.results)) or "-",
        versions=_versions(bundle.results),
        repeats=made.repeats[:12],
    )
    return Verified(path, made, shown)


def _with_repetitions(
    one: Verified, found: Mapping[str, Verified], refused: list[tuple[str, str]]
) -> ShownBundle:
    """Return the bundle `one` as shown on the page, with the verdicts of its reproductions.

    `found` are all bundles by identity. For a stack, each user and machine counts once, by the
    newest reproduction. Bundles that cannot be compared are added to `refused` with the reason.
    """
    repeated = found.get(one.manifest.repeats)
    repeats = repeated.shown.file if repeated else one.shown.repeats
    newest: dict[tuple[str, str], dict[str, str]] = {}
    for other in _repetitions(one, found.values()):
        try:
            rows = _judged(one, other)
        except BundleError as error:
            refused.append((other.shown.file, f"as a repetition: {error}"))
            continue
        who = other.manifest.measured_by
        place = SAME_PLACE if who and who == one.manifest.measured_by else ""
        for row in rows:
            if row.verdict is not None:
                by = newest.setdefault(row_key(row.stack, row.sweep), {})
                by[who or other.shown.identity] = f"{REPRODUCED[row.verdict]}{place}"
    verdicts = {point: Counter(by.values()) for point, by in newest.items()}
    return replace(one.shown, repeats=repeats, repetitions=verdicts)


def _repetitions(one: Verified, bundles: Iterable[Verified]) -> Iterator[Verified]:
    """Yield the bundles that reproduce the bundle `one`, the oldest first, without copies.

    A copy has sessions of `one` or of a bundle yielded before.
    """
    others = [other for other in bundles if other.manifest.repeats == one.shown.identity]
    seen = {*one.manifest.sessions}
    for other in sorted(others, key=lambda two: (two.manifest.started_at, two.shown.file)):
        if seen.isdisjoint(other.manifest.sessions):  # a copy with other texts is none
            seen.update(other.manifest.sessions)
            yield other


def _judged(one: Verified, other: Verified) -> tuple[StackReproduction, ...]:
    """Return the comparison of the bundle `one` with its reproduction `other`, by stack.

    Raises BundleError if a file can no longer be read, or cannot be compared.
    """
    there, here = (read_bundle(path).results for path in (one.path, other.path))
    with naming_the_bundle(str(other.path)):
        return reproduce_stacks(there, other.shown.summary, here)


def _model(run: Result) -> str:
    """Return the id of a run's model, with the plugin that loads it unless that is the default."""
    model = run.experiment.scenario.model
    return model.id if model.use == slot_defaults().slots["model"] else f"{model.id} ({model.use})"


def _versions(results: Sequence[Result]) -> list[str]:
    """Return texts with name and version, one for each library and plugin of the runs."""
    machine = next((run.machine for run in reversed(results) if run.machine), None)
    libraries = machine.versions if machine else {}
    known = [f"{name} {libraries[name]}" for name in VERSIONS if name in libraries]
    return [
        *known,
        *(
            f"{plugin.name}: {plugin.distribution} {plugin.version}"
            for plugin in plugins_of(results)
        ),
    ]


FOLDER = Path(__file__).with_name("templates")

Repetitions = Mapping[tuple[str, str], Counter[str]]
"""Number of reproductions by verdict, for each stack and sweep point."""


@dataclass(frozen=True)
class ShownBundle:
    """Bundle with the values that the page shows of it."""

    file: str
    """Path of the file relative to the page, with `/`."""

    identity: str
    """Checksum of the bundle's sessions and runs."""

    date: str
    """Date of the bundle's first session, ISO 8601."""

    summary: Summary
    models: Mapping[str, str]
    """Names of models by experiment id."""

    devices: str
    versions: Sequence[str]
    """Versions of plugins and of libraries, by name."""

    repeats: str = ""
    """File of the bundle that this bundle reproduces; its identity if it is not in the folder."""

    repetitions: Repetitions = field(default_factory=dict)


def render_site(
    title: str, bundles: Sequence[ShownBundle], refused: Sequence[tuple[str, str]]
) -> str:
    """Return the HTML page of bundles; `refused` has pairs: a refused file's name, the reason."""
    environment = html_environment(FOLDER, plain)
    rows = [_row(bundle, row) for bundle in bundles for row in bundle.summary.experiments]
    return environment.get_template("site.html").render(
        title=title,
        answer=_answer(bundles, refused),
        rows=rows,
        filters=[(name, _words(rows, name)) for name in ("model", "stack", "device", "version")],
        refused=refused,
        margin=percent(MARGIN),
        judged=JUDGED,
        version=__version__,
        **inline_files(FOLDER / "site.css", FOLDER / "site.js"),
    )


def _answer(bundles: Sequence[ShownBundle], refused: Sequence[object]) -> str:
    """Return the page's first sentences: on faster stacks, and on the number of bundles."""
    verdicts: Counter[str] = Counter()
    for bundle in bundles:
        for counts in bundle.repetitions.values():
            verdicts += counts
    repeated = ", ".join(f"{number} {word}" for word, number in sorted(verdicts.items()))
    parts = [
        count(len(bundles), "bundle"),
        f"repetitions of stacks: {repeated}" if repeated else "no repetition yet",
        *([f"{count(len(refused), 'file')} refused"] if refused else []),
    ]
    return f"{_faster(bundles)} {'; '.join(parts)}."


def _faster(bundles: Sequence[ShownBundle]) -> str:
    """Return a sentence such as `2 of 3 stacks are faster than the baseline, most of all ...`."""
    compared = [
        (bundle.summary, row, _verdict(bundle.summary, row)[0])
        for bundle in bundles
        for row in bundle.summary.experiments
        if row.stack != bundle.summary.baseline
    ]
    if not compared:
        return "No stack is compared with another one."
    faster = [(row.ratio, row, made) for made, row, verdict in compared if verdict == "faster"]
    rest = Counter(verdict for _, _, verdict in compared if verdict != "faster")
    others = "".join(f"; {number} {word}" for word, number in sorted(rest.items()))
    start = f"{len(faster)} of {count(len(compared), 'stack')}"
    start += f" {'is' if len(faster) == 1 else 'are'} faster than the baseline"
    if known := [(ratio, row, made) for ratio, row, made in faster if ratio is not None]:
        ratio, row, made = max(known, key=lambda entry: entry[0].median)
        name = f"{label(row)} of {made.scenario}"
        start += f", most of all {name}: {ratio_interval(ratio)} times as fast"
    return f"{start}{others}."


def _row(bundle: ShownBundle, row: ExperimentSummary) -> dict[str, Any]:
    """Return an experiment's table cells by column name; without speed and ratio if it failed."""
    verdict, tone, reason = _verdict(bundle.summary, row)
    usable = row.status.completed and not row.failed_audit
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
        "repeated": _repeated(bundle.repetitions.get(row_key(row.stack, row.sweep), Counter()))
        if compared
        else EMPTY,
        "versions": bundle.versions,
        "href": f"./{quote(os.fsencode(bundle.file))}",  # a name need not be UTF-8
        "file": bundle.file,
        "repeats": bundle.repeats,
        "identity": bundle.identity,
    }


def _verdict(summary: Summary, row: ExperimentSummary) -> tuple[str, str, str]:
    """Return an experiment's verdict, the CSS class of its colour, and its reason."""
    if not row.status.completed:
        return row.status.value, TONES[row.status.value], "; ".join(row.reasons)
    if row.failed_audit:
        return "failed its self-audit", "bad", "; ".join(row.failed_audit)
    if row.stack == summary.baseline:
        return "baseline", "", ""
    by = "" if row.quantity.usual else f" by {row.quantity.name}"
    return f"{row.verdict_word}{by}", TONES.get(row.verdict_word, ""), row.verdict_reason


def _repeated(verdicts: Counter[str]) -> str:
    """Return a text on a stack's reproductions: `3 times: 2 reproduced, 1 inconclusive`."""
    total = sum(verdicts.values())
    if not total:
        return "never"
    parts = ", ".join(f"{number} {word}" for word, number in sorted(verdicts.items()))
    return f"{count(total, 'time')}: {parts}"


def _words(rows: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    """Return the sorted values in the column `name`, by which readers of the page can filter."""
    if name == "version":
        return sorted({version for row in rows for version in row["versions"]})
    return sorted({str(row[name]) for row in rows})
