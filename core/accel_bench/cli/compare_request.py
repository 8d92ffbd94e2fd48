"""One `accel-bench compare` from its options to its exit code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path

from accel_bench.analysis.compare import compare_stored
from accel_bench.analysis.gates.reference import (
    DEFAULT_FIGURES,
    Rule,
    compare_with_reference,
)
from accel_bench.analysis.gates.reference_keys import DEFAULT_KEYS
from accel_bench.analysis.gates.tracked_figures import figure_named
from accel_bench.cli.compare import CompareOptions
from accel_bench.cli.options import parse_fraction
from accel_bench.cli.output import print_report
from accel_bench.documents.load import load_file
from accel_bench.errors import ScenarioError, StoreError
from accel_bench.interchange.formats import read_files, results_of_file
from accel_bench.report.views.compare import compare_report
from accel_bench.report.views.reference import reference_report
from accel_bench.result import Result
from accel_bench.runner.unfinished import open_results
from accel_bench.store.database import Store
from accel_bench.store.exchange import is_export, read_export
from accel_bench.store.selection import select_pairs, select_runs


def compare_pairs(options: CompareOptions) -> int:
    """Print B against A."""
    if options.a is None or options.b is None:
        raise StoreError(
            "compare takes two results, A and B, or --reference (`accel-bench results list` shows "
            "what is stored)"
        )
    only = {"--alias": options.alias, "--key": options.key, "--figure": options.figure}
    if unused := [name for name, value in only.items() if value]:
        raise StoreError(f"{', '.join(unused)}: only with --reference")
    with ExitStack() as stack:
        store = stack.enter_context(open_results(options.results))
        other = None
        if options.results_b:
            other = stack.enter_context(open_results(options.results_b))
        selected = select_pairs(options.a, options.b, store, other)
    compared = [compare_stored(left, right) for left, right in selected]
    print_report(compare_report(compared), options.output)
    return 0


def compare_reference(options: CompareOptions) -> int:
    """Print a set of runs against a reference; return 1 where something looks worse."""
    from accel_bench.analysis.wording import count

    assert options.reference is not None
    if options.b is not None or options.results_b is not None:
        raise StoreError("with --reference there is one selection, and neither B nor --results-b")
    tolerance = parse_fraction(options.tolerance, "--tolerance")
    aliases = parse_aliases(options.alias or ())
    with open_results(options.results) as store:
        current = select_runs(store, options.a or "")
        reference = read_reference(options.reference, store)
    if {run.run_id for run in current} == {run.run_id for run in reference}:
        raise StoreError(f"both sets are the same {count(len(current), 'run')}; select others")
    if not options.a:  # the reference is no part of what is compared with it
        known = {run.run_id for run in reference}
        current = [run for run in current if run.run_id not in known]
    figures = [figure_named(one, current) for one in options.figure or DEFAULT_FIGURES]
    rule = Rule(figures, options.key or DEFAULT_KEYS, aliases, tolerance)
    found = compare_with_reference(options.reference, reference, current, rule)
    print_report(reference_report(found), options.output)
    return found.exit_code


def read_reference(text: str, store: Store) -> list[Result]:
    """Return the runs of a file, of another results folder, or of a selection of the store."""
    path = Path(text)
    if path.is_file() and is_export(path):
        return list(read_export(path))
    if path.is_file():
        return _imported(path)
    if path.is_dir() or "://" in text:
        with open_results(text) as other:
            return select_runs(other)
    return select_runs(store, text)


def _imported(path: Path) -> list[Result]:
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    files, _ = read_files(path, None, {})
    return [run for file in files for run in results_of_file(file, now)]


def parse_aliases(texts: Sequence[str]) -> dict[str, str]:
    """Return new names by old ones, of `OLD=NEW` and of files. Raises ScenarioError."""
    found: dict[str, str] = {}
    for text in texts:
        for old, new in _aliases_of(text):
            if found.setdefault(old, new) != new:
                raise ScenarioError(f"--alias: {old!r} means both {found[old]!r} and {new!r}")
    return found


def _aliases_of(text: str) -> Iterable[tuple[str, str]]:
    old, sign, new = text.partition("=")
    if sign and old and new:
        return [(old, new)]
    if sign or not Path(text).is_file():
        raise ScenarioError(f"--alias {text!r} is neither OLD=NEW nor a file of `old: new` lines")
    document = load_file(Path(text))
    for key, value in document.data.items():
        if not isinstance(value, str):
            raise ScenarioError(f"{document.where((key,))}: {key}: the new name must be a text")
    return list(document.data.items())
