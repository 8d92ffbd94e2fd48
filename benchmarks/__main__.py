"""Run benchmarks and print one JSON document: `python -m benchmarks [NAME...] [--output FILE]`."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from accel_bench.machine.provenance import git_state
from benchmarks import (
    command_line,
    engine,
    harness,
    hf_trainer,
    identical,
    identical_training,
    micro,
    recommend,
    store,
    unchanged_commits,
)
from benchmarks.entry import QUICK, Counts, Document, Entry

BENCHMARKS: dict[str, Callable[[Counts, str], Entry | list[Entry]]] = {
    "help": lambda counts, _: command_line.measure_help(counts),
    "listing": lambda counts, _: command_line.measure_listing(counts),
    "harness": lambda counts, _: harness.measure_overhead(counts),
    "synchronisations": lambda counts, _: harness.measure_waits(counts),
    "profile": lambda counts, _: harness.measure_calls(counts),
    "engine": engine.measure_engine,
    "engine-large": engine.measure_large_engine,
    "hf-trainer": hf_trainer.measure_hf_trainer,
    "identical": identical.measure_identical,
    "identical-training": lambda counts, _: identical_training.measure_identical_training(counts),
    "slowdown-5": lambda counts, _: identical.measure_slowdown(counts, 5),
    "slowdown-10": lambda counts, _: identical.measure_slowdown(counts, 10),
    "micro": lambda counts, _: micro.measure_micro(counts),
    "recommend": lambda counts, _: recommend.measure_recommend(counts),
    "store": lambda counts, _: store.measure_store(counts),
    "unchanged-commits": lambda counts, _: unchanged_commits.measure_unchanged_commits(counts),
}
"""Benchmarks by name."""

NEEDS_GPU = {"engine-large"}
"""Benchmarks left out unless named: a CPU would take hours."""


def main(arguments: list[str] | None = None) -> None:
    """Run benchmarks and print one document. Missed goals leave the exit code at 0.

    A benchmark that fails does not stop the others: the document names it, and the exit code is 1.
    """
    asked = parse(arguments)
    names = asked.names or [name for name in BENCHMARKS if name not in NEEDS_GPU]
    counts = QUICK if asked.quick else Counts()
    entries: list[Entry] = []
    failed: dict[str, str] = {}
    for name in names:
        try:
            measured = BENCHMARKS[name](counts, asked.device)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        else:
            new = measured if isinstance(measured, list) else [measured]
            entries += new
            print(*map(line_of, new), sep="\n", file=sys.stderr)
    document = Document(
        measured=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        commit=git_state(Path(__file__).resolve().parent.parent),
        quick=asked.quick,
        entries=tuple(entries),
        failed=failed,
    )
    text = document.model_dump_json(indent=1)
    if asked.output:
        asked.output.write_text(f"{text}\n", encoding="utf8")
    else:
        print(text)
    if failed:
        sys.exit(1)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line; an unknown name is an error that lists the known ones."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there, not to stdout")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="for `engine`")
    parser.add_argument("--quick", action="store_true", help="only show that it works")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.names) - set(BENCHMARKS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(BENCHMARKS)}")
    return asked


def line_of(entry: Entry) -> str:
    """Return an entry as one line of text."""
    goal = "" if entry.goal is None else f"  goal {entry.goal_is} {entry.goal}"
    met = {True: "  met", False: "  MISSED", None: ""}[entry.met]
    between = "" if entry.interval is None else " [{:.4g} {:.4g}]".format(*entry.interval)
    said = "" if entry.comparison is None else f"  {entry.comparison.verdict}"
    return f"{entry.name}: {entry.value:.4g}{between} {entry.unit}{said}{goal}{met}"


if __name__ == "__main__":
    main()
