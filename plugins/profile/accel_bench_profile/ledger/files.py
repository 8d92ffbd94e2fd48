"""Ledgers in files: one line for each entry, so that a repository shows what changed."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from accel_bench.documents.files import read_text, write_atomically
from accel_bench.errors import ScenarioError
from accel_bench_profile.ledger.schema import Ledger

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
