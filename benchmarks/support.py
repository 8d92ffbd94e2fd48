"""Show in a table what trains, what is counted, and which stacks train the same.

    python -m benchmarks.support --output benchmarks/published/cpu-support.json \\
        --table docs/support.md

Each work of `support.yaml` is run in this process, a few steps long, once with each named stack
that is installed: stacks of libraries that change every other stack are added by a second call in
an environment that has them. Rows of the output's file that this call does not make are kept.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from accel_bench.documents.files import write_atomically
from benchmarks.support_page import table
from benchmarks.support_runs import BASELINE, Row, Support, rows_of, stacks_here, works


def merged(before: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """Return new rows, and those of before that no new one replaces, in the order of the page."""
    order = works()
    found = {(row.scenario, row.stack): row for row in (*before, *new) if row.scenario in order}
    return [
        found[key]
        for key in sorted(found, key=lambda key: (order.index(key[0]), key[1] != BASELINE, key[1]))
    ]


def missing(before: Sequence[Row], work: str, stacks: Sequence[str]) -> list[str]:
    """Return the stacks of which there is no row of a work yet."""
    known = {row.stack for row in before if row.scenario == work}
    return [stack for stack in stacks if stack not in known]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is asked for, keep its rows as they come, and write the page."""
    asked = _asked(arguments)
    rows = _read(asked.output)
    for path in asked.merge:
        rows = merged(rows, _read(path))
    for work in asked.works:
        stacks = missing(rows, work, asked.stacks) if asked.missing else asked.stacks
        if asked.missing and not stacks:
            continue
        for row in rows_of(work, stacks):
            rows = merged(rows, [row])
            print(f"{row.scenario} {row.stack}: {row.outcome} {row.reason}", file=sys.stderr)
            _write(asked.output, rows)
    _write(asked.output, rows)
    if asked.table:
        write_atomically(asked.table, table(rows))


def _asked(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.support",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--works", nargs="*", default=works(), metavar="NAME")
    parser.add_argument("--stacks", nargs="*", default=stacks_here(), metavar="NAME")
    parser.add_argument("--missing", action="store_true", help="only rows that are not there yet")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="JSON of rows")
    parser.add_argument("--table", type=Path, metavar="FILE", help="page of Markdown")
    parser.add_argument(
        "--merge", type=Path, nargs="*", default=[], metavar="FILE", help="add rows of other files"
    )
    return parser.parse_args(arguments)


def _write(path: Path, rows: Sequence[Row]) -> None:
    text = Support(rows=tuple(rows)).model_dump_json(indent=1, exclude_defaults=True)
    write_atomically(path, f"{text}\n")


def _read(path: Path) -> list[Row]:
    """Return the rows of a file; none where there is no file."""
    if not path.exists():
        return []
    try:
        return list(Support.model_validate_json(path.read_bytes()).rows)
    except ValidationError as error:
        raise SystemExit(f"{path} is not a table of this command: {error}") from error


if __name__ == "__main__":
    main()
