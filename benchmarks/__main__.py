"""Run benchmarks and print one JSON document: `python -m benchmarks [NAME...] [--output FILE]`.

A file is written anew after each entry, and `--resume` goes on with the entries that it has.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path

from accel_bench.documents.files import write_atomically
from accel_bench.machine.provenance import git_state
from benchmarks import (
    auto_rounds,
    bisect_histories,
    command_line,
    engine,
    harness,
    hf_trainer,
    identical,
    identical_training,
    memory,
    micro,
    observer,
    recommend,
    recommend_bound,
    store,
    trainers,
    unchanged_commits,
)
from benchmarks.entry import QUICK, Counts, Document, Entry, Request, read_document

BENCHMARKS: dict[str, Callable[[Request], Entry | Iterable[Entry]]] = {
    "help": lambda asked: command_line.measure_help(asked.counts),
    "listing": lambda asked: command_line.measure_listing(asked.counts),
    "harness": lambda asked: harness.measure_overhead(asked.counts),
    "synchronisations": lambda asked: harness.measure_waits(asked.counts),
    "profile": lambda asked: harness.measure_calls(asked.counts),
    "engine": lambda asked: engine.measure_engine(asked.counts, asked.device),
    "engine-large": lambda asked: engine.measure_large_engine(asked.counts, asked.device),
    "hf-trainer": lambda asked: hf_trainer.measure_hf_trainer(asked.counts, asked.device),
    "identical": lambda asked: identical.measure_identical(asked.counts, asked.device),
    "identical-sessions": lambda asked: identical.measure_identical_sessions(asked.counts),
    "identical-training": lambda asked: identical_training.measure_identical_training(asked.counts),
    "slowdown-5": lambda asked: identical.measure_slowdown(asked.counts, 5),
    "slowdown-10": lambda asked: identical.measure_slowdown(asked.counts, 10),
    "memory": lambda asked: memory.measure_memory(asked.counts),
    "micro": micro.measure_micro,
    "observer": lambda asked: observer.measure_observer(asked.counts),
    "recommend": recommend.measure_recommend,
    "recommend-bound": recommend_bound.measure_bound,
    "trainers": trainers.measure_trainers,
    "store": lambda asked: store.measure_store(asked.counts),
    "auto-rounds": lambda asked: auto_rounds.measure_auto_rounds(asked.counts),
    "bisect": lambda asked: bisect_histories.measure_bisect(asked.counts),
    "unchanged-commits": lambda asked: unchanged_commits.measure_unchanged_commits(asked.counts),
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
    document = start(asked.quick, asked.output if asked.resume else None)
    for name in names:
        if name in document.by_name:
            continue
        failed = {other: why for other, why in document.failed.items() if other != name}
        try:
            for entry in entries_of(name, Request(counts, asked.device, document.by_name)):
                print(line_of(entry), file=sys.stderr, flush=True)
                document = document.with_entry(entry)
                write(document, asked.output)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        document = document.model_copy(update={"failed": failed})
    write(document, asked.output)
    if not asked.output:
        print(document.model_dump_json(indent=1))
    if document.failed:
        sys.exit(1)


def start(quick: bool, path: Path | None) -> Document:
    """Return a document without entries, or the one of a file to go on with.

    Exits where that was measured with other counts.
    """
    commit = git_state(Path(__file__).resolve().parent.parent)
    measured = datetime.now(timezone.utc).isoformat(timespec="seconds")
    if path is None or not path.exists():
        return Document(measured=measured, commit=commit, quick=quick, entries=())
    found = read_document(path)
    if found.quick != quick:
        sys.exit(f"{path} was measured {'with' if found.quick else 'without'} --quick")
    commits = dict.fromkeys([*found.commit.split(", "), commit])
    return found.model_copy(update={"measured": measured, "commit": ", ".join(commits)})


def entries_of(name: str, request: Request) -> Iterable[Entry]:
    """Return the entries of a benchmark, one after the other as they are measured."""
    found = BENCHMARKS[name](request)
    return [found] if isinstance(found, Entry) else found


def write(document: Document, path: Path | None) -> None:
    """Write the document where it belongs, whole or not at all."""
    if path is not None:
        write_atomically(path, f"{document.model_dump_json(indent=1)}\n")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line; an unknown name is an error that lists the known ones."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there, not to stdout")
    parser.add_argument(
        "--resume", action="store_true", help="go on with the entries that FILE has"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="for `engine`")
    parser.add_argument("--quick", action="store_true", help="only show that it works")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.names) - set(BENCHMARKS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(BENCHMARKS)}")
    if asked.resume and not asked.output:
        parser.error("--resume goes on with a file: --output FILE")
    return asked


def line_of(entry: Entry) -> str:
    """Return an entry as one line of text."""
    goal = "" if entry.goal is None else f"  goal {entry.goal_is} {entry.goal}"
    met = {True: "  met", False: "  MISSED", None: ""}[entry.met]
    between = "" if entry.interval is None else " [{:.4g} {:.4g}]".format(*entry.interval)
    said = "" if entry.comparison is None else f"  {entry.comparison.verdict_word}"
    return f"{entry.name}: {entry.value:.4g}{between} {entry.unit}{said}{goal}{met}"


if __name__ == "__main__":
    main()
