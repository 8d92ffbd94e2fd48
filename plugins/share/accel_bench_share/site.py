"""Read a folder of bundles, count the repetitions of each, and write the page."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from accel_bench.analysis.facts import device_models
from accel_bench.analysis.reproduction import StackReproduction, reproduce_stacks
from accel_bench.errors import AccelBenchError, BundleError
from accel_bench.report.page_file import write_page
from accel_bench.result import Result
from accel_bench.scenario.uses import slot_defaults
from accel_bench_share.asked import evaluated, naming_the_bundle
from accel_bench_share.bundle_file import Manifest, read_bundle
from accel_bench_share.facts import plugins_of
from accel_bench_share.site_page import ShownBundle, point_key, render_site

SUFFIX = ".zip"
"""Ending of the files that are read."""

MAXIMUM_BUNDLES = 10_000

VERSIONS = ("accel-bench", "torch", "transformers")
"""Distributions whose versions are shown beside those of plugins."""


SAME_PLACE = " by its author"
"""What follows the verdict of a repetition by the user, and on the machine, of the bundle."""


class Verified(NamedTuple):
    """A bundle that was read; its runs are read again where they are compared."""

    path: Path
    manifest: Manifest
    shown: ShownBundle


class Site(NamedTuple):
    """What was written."""

    bundles: int
    refused: list[tuple[str, str]]


def write_site(folder: Path, output: Path) -> Site:
    """Write the page of all bundles below a folder. Raises BundleError where there is none."""
    found: dict[str, Verified] = {}
    refused: list[tuple[str, str]] = []
    for path in bundle_files(folder):
        name = path.relative_to(folder).as_posix()
        try:
            one = _verified(path, output)
            if same := found.get(one.shown.identity):
                raise BundleError(f"the same runs as {same.path.relative_to(folder).as_posix()}")
            found[one.shown.identity] = one
        except AccelBenchError as error:
            refused.append((name, str(error).removeprefix(f"{path}: ").removeprefix("refused, ")))
    if not found and not refused:
        raise BundleError(
            f"{folder} holds no bundle (*{SUFFIX}); `accel-bench bundle new` makes some"
        )
    bundles = [_with_repetitions(one, found, refused) for one in found.values()]
    bundles.sort(key=lambda one: (one.date, one.file), reverse=True)
    title = f"Results in {folder.resolve().name}"
    write_page(output, render_site(title, bundles, refused))
    return Site(len(bundles), refused)


def bundle_files(folder: Path) -> Iterator[Path]:
    """Yield the files that may be bundles, in order; folders of links and hidden ones are left."""
    if not folder.is_dir():
        raise BundleError(f"{folder} is no folder")
    number = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.endswith(SUFFIX) and not name.startswith("."):
                number += 1
                if number > MAXIMUM_BUNDLES:
                    raise BundleError(f"{folder} holds more than {MAXIMUM_BUNDLES} bundles")
                yield Path(place) / name


def _verified(path: Path, page: Path) -> Verified:
    """Read a bundle. Raises BundleError."""
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
    """Return what is shown of a bundle, with the verdicts of those who have repeated it.

    Who has done so several times on one machine counts once for a stack, by the newest. What cannot
    be compared with it is added to `refused`.
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
                by = newest.setdefault(point_key(row), {})
                by[who or other.shown.identity] = f"{row.verdict}{place}"
    verdicts = {point: Counter(by.values()) for point, by in newest.items()}
    return replace(one.shown, repeats=repeats, repetitions=verdicts)


def _repetitions(one: Verified, bundles: Iterable[Verified]) -> Iterator[Verified]:
    """Yield the bundles that repeat one, the oldest first, each session once."""
    others = [other for other in bundles if other.manifest.repeats == one.shown.identity]
    seen = {*one.manifest.sessions}
    for other in sorted(others, key=lambda two: (two.manifest.started_at, two.shown.file)):
        if seen.isdisjoint(other.manifest.sessions):  # a copy with other texts is none
            seen.update(other.manifest.sessions)
            yield other


def _judged(one: Verified, other: Verified) -> tuple[StackReproduction, ...]:
    """Compare a bundle with one that repeats it; both are read again. Raises BundleError."""
    there, here = (read_bundle(path).results for path in (one.path, other.path))
    with naming_the_bundle(str(other.path)):
        return reproduce_stacks(there, other.shown.summary, here)


def _model(run: Result) -> str:
    """Return the model's id, with the plugin that loads it where that is not the usual one."""
    model = run.experiment.scenario.model
    return model.id if model.use == slot_defaults().slots["model"] else f"{model.id} ({model.use})"


def _versions(results: Sequence[Result]) -> list[str]:
    """Return plugins and libraries with their versions."""
    machine = next((run.machine for run in reversed(results) if run.machine), None)
    libraries = machine.versions if machine else {}
    known = [f"{name} {libraries[name]}" for name in VERSIONS if name in libraries]
    return [
        *known,
        *(f"{one.name}: {one.distribution} {one.version}" for one in plugins_of(results)),
    ]
