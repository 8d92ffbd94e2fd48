"""Ledger of a training step: counts of every operation, with its module and source line."""

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
"""Counted figures.

`operations` are calls of torch's dispatcher, views included; `kernels` are calls that compute or
copy, and the kernels of compiled code. `moved_bytes` are the contents that kernels read and write.
`allocations` are new storages of results; `saved_bytes` are storages that autograd saves for the
backward pass. `synchronizations` are operations for which the host waits for the device, or would
wait on an asynchronous one.
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
"""Kinds of operations, and of other events.

Kinds shared with profiles have equal names; `elementwise` to `random` are memory-bound there.
"""

Phase: TypeAlias = Literal["data", "forward", "backward", "optimizer"]
"""Phase of the step; recomputation belongs to the backward pass."""


class Site(Frozen):
    """Module and source line of an operation; a backward operation has its forward one's."""

    phase: Phase

    module: str = ""
    """Name of the innermost module in the model; empty outside of modules."""

    file: str = ""
    """Source file, relative to its import folder."""

    line: int = 0
    """Line number; 0 if unknown."""

    function: str = ""
    """Function that contains the line."""

    code: str = ""
    """Text of the line, by which ledgers are compared, since numbers shift with every edit."""


class LedgerEntry(Frozen):
    """Counts of equal operations at one source line, for one module."""

    site: Site

    operation: str
    """Torch's name of the operation, or of the event."""

    kind: Kind

    dtype: str = ""
    """Dtype of the result; for a cast both dtypes, such as `bfloat16 to float32`."""

    figures: dict[Figure, int]
    """Sums over the step and all ranks; zeros are left out."""


class Ledger(Document):
    """Counted operations of one training step of a stack, in the order of first occurrence."""

    kind: Literal["ledger"] = "ledger"

    scenario: str
    stack: str

    work: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of the scenario by dotted key, including the stack's settings."""

    device: str
    ranks: int

    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of Python and of distributions that affect a step."""

    entries: tuple[LedgerEntry, ...]

    left_out: tuple[str, ...] = ()
    """Uncounted work, a sentence each."""


class RankLedger(Frozen):
    """Counted work of one step on one rank."""

    entries: tuple[LedgerEntry, ...]
    left_out: tuple[str, ...] = ()


EntryKey: TypeAlias = tuple[Site, str, Kind, str]


def merge(entries: Iterable[LedgerEntry]) -> tuple[LedgerEntry, ...]:
    """Return the entries with their figures summed over equal operations at one line and module."""
    totals: dict[EntryKey, Counter[Figure]] = {}
    for entry in entries:
        key = (entry.site, entry.operation, entry.kind, entry.dtype)
        totals.setdefault(key, Counter()).update(entry.figures)
    return entries_of(totals)


def entries_of(totals: Mapping[EntryKey, Mapping[Figure, int]]) -> tuple[LedgerEntry, ...]:
    """Return a ledger entry for each key, with the key's figures except those that are 0."""
    return tuple(
        LedgerEntry(
            site=site,
            operation=operation,
            kind=kind,
            dtype=dtype,
            figures={figure: number for figure, number in figures.items() if number},
        )
        for (site, operation, kind, dtype), figures in totals.items()
    )


MAXIMUM_BYTES = 64 * 2**20
"""Maximum bytes of a ledger's file; a model with a hundred layers has a few MiB."""


def write_ledger(path: Path, ledger: Ledger) -> None:
    """Write a ledger as JSON, replacing the file."""
    head = json.dumps(ledger.model_dump(mode="json", exclude={"entries"}), indent=1)
    lines = (
        json.dumps(entry.model_dump(mode="json", exclude_defaults=True)) for entry in ledger.entries
    )
    begin = head.removesuffix("\n}")
    entries = ",\n  ".join(lines)
    write_atomically(path, f'{begin},\n "entries": [\n  {entries}\n ]\n}}\n')


def read_ledger(path: Path) -> Ledger:
    """Return the ledger in a file.

    Raises ScenarioError if the file cannot be read, or has no ledger of this version.
    """
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
