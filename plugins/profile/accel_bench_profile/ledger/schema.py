"""The ledger of a training step: every operation with its module and source line, counted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import Field, ValidationError

from accel_bench.analysis.schema import Document
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.documents.files import read_text, write_atomically
from accel_bench.errors import ScenarioError
from accel_bench_profile.figures.modules import NamedKind

Figure: TypeAlias = Literal[
    "operations",
    "kernels",
    "flops",
    "moved_bytes",
    "allocations",
    "allocated_bytes",
    "saved_bytes",
    "synchronizations",
    "graph_breaks",
    "recompilations",
    "collectives",
    "collective_bytes",
]
"""What is counted.

`operations` are calls of torch's dispatcher, views among them; `kernels` those that compute or
copy, and the kernels of compiled code. `moved_bytes` are the contents that they read and write.
`allocations` are new storages of results; `saved_bytes` those that autograd keeps for the backward
pass. `synchronizations` are operations for which the host waits for the device, or would wait on
one that works on its own.
"""

Kind: TypeAlias = Literal[
    NamedKind,
    "elementwise",
    "reduction",
    "indexing",
    "copy",
    "cast",
    "creation",
    "random",
    "compiled",
    "communication",
    "synchronization",
    "graph break",
    "recompilation",
    "saved tensor",
    "view",
    "other",
]
"""Kinds of operations, and of events that are no operations.

Those of profiles have the same names; `elementwise` to `random` are what these call memory-bound.
"""

Phase: TypeAlias = Literal["data", "forward", "backward", "optimizer"]
"""Part of the step; what is computed again for the backward pass belongs to that."""


class Site(Frozen):
    """Line of code that an operation comes from: of a backward operation the forward's place."""

    phase: Phase

    module: str = ""
    """Name of the innermost module in the model; empty outside of all modules."""

    file: str = ""
    """Source file, from the folder that Python imports it from."""

    line: int = 0
    """Number of the line; 0 where there is none."""

    function: str = ""
    """Function that the line is in."""

    code: str = ""
    """Text of the line. Two ledgers are compared by it, since numbers shift with every edit."""


class Entry(Frozen):
    """Equal operations of one place."""

    site: Site

    operation: str
    """Torch's name of the operation, or what happened."""

    kind: Kind

    dtype: str = ""
    """Dtype of the result; of a cast both, such as `bfloat16 to float32`."""

    figures: dict[Figure, int]
    """Their sums over the step and all ranks; those that are 0 are left out."""


class Ledger(Document):
    """What one training step of a stack does, in the order of its first occurrence."""

    kind: Literal["ledger"] = "ledger"

    scenario: str
    stack: str

    work: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of the work by dotted key, those of the stack included."""

    device: str
    ranks: int

    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of Python and of the distributions that decide what a step does."""

    entries: tuple[Entry, ...]

    left_out: tuple[str, ...] = ()
    """What is not counted, each a sentence."""


class RankLedger(Frozen):
    """What one rank has counted."""

    entries: tuple[Entry, ...]
    left_out: tuple[str, ...] = ()


EntryKey: TypeAlias = tuple[Site, str, Kind, str]


def merge(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Return one entry for equal operations of a place: that of all ranks together."""
    totals: dict[EntryKey, Counter[Figure]] = {}
    for entry in entries:
        key = (entry.site, entry.operation, entry.kind, entry.dtype)
        totals.setdefault(key, Counter()).update(entry.figures)
    return entries_of(totals)


def entries_of(totals: Mapping[EntryKey, Mapping[Figure, int]]) -> tuple[Entry, ...]:
    """Return the entries of sums, without figures that are 0."""
    return tuple(
        Entry(
            site=site,
            operation=operation,
            kind=kind,
            dtype=dtype,
            figures={figure: number for figure, number in figures.items() if number},
        )
        for (site, operation, kind, dtype), figures in totals.items()
    )


MAXIMUM_BYTES = 64 * 2**20
"""Size of a ledger's file; one of a model with a hundred layers has a few MiB."""


def write_ledger(path: Path, ledger: Ledger) -> None:
    """Write a ledger, replacing the file."""
    head = json.dumps(ledger.model_dump(mode="json", exclude={"entries"}), indent=1)
    lines = (
        json.dumps(entry.model_dump(mode="json", exclude_defaults=True)) for entry in ledger.entries
    )
    begin = head.removesuffix("\n}")
    entries = ",\n  ".join(lines)
    write_atomically(path, f'{begin},\n "entries": [\n  {entries}\n ]\n}}\n')


def read_ledger(path: Path) -> Ledger:
    """Return a ledger that was written. Raises ScenarioError with the file and what is wrong."""
    text = read_text(path, MAXIMUM_BYTES, ScenarioError, ", more than a ledger has")
    try:
        return Ledger.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ScenarioError(
            f"{path} is no ledger of this version: {place or 'JSON'}: {first['msg']}; write it "
            "with: accel-bench scenarios count SCENARIO --stack NAME --save FILE"
        ) from error
