"""The contract has a version of its own, which changes with hooks, declarations and doors."""

from __future__ import annotations

import hashlib
import json
from importlib import metadata
from pathlib import Path

import pytest

from accel_bench import Format, ImportedRow, SourceFile
from accel_bench.documents import presets
from accel_bench.hookspecs import ONE_ANSWER
from accel_bench.plugin import CONTRACT_VERSION, PROJECT, Options, Plugin
from accel_bench.plugins.validation import declarations, hook_arguments, wrong_declarations
from accel_bench.worker.measurement import Rank

RECORD = Path(__file__).with_name("contract.json")
"""The version, and a digest of what it stands for."""


DOOR_TYPES = (Format, ImportedRow, SourceFile, Rank)
"""What an entry of a door is made of, or is given."""


def members(kind: type) -> list[str]:
    """Fields, methods and properties of a type that are not its own affair."""
    return sorted(name for name in {*kind.__annotations__, *dir(kind)} if name[0] != "_")


def contract() -> str:
    """A digest of all hooks with their arguments, the declarations, the doors and their types."""
    entries = metadata.distribution("accel-bench").entry_points
    doors = {entry.group for entry in entries if entry.group.startswith(PROJECT)}
    doors |= {presets.PRESETS_GROUP}
    shapes = {kind.__name__: members(kind) for kind in DOOR_TYPES}
    parts = [hook_arguments(), ONE_ANSWER, sorted(declarations()), sorted(doors), shapes]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@pytest.mark.box
def test_hooks_declarations_and_doors_change_with_the_version_alone() -> None:
    recorded = json.loads(RECORD.read_text())
    now = {"version": CONTRACT_VERSION, "digest": contract()}
    assert now == recorded, (
        "hooks, declarations or doors have changed: raise accel_bench.plugin.CONTRACT_VERSION, say "
        f"it in CHANGELOG, and write {json.dumps(now)} into {RECORD.name}"
    )


@pytest.mark.parametrize(
    ("needed", "problem"),
    [
        (None, None),
        (f"=={CONTRACT_VERSION}", None),
        (">=99", f"this accel-bench has contract {CONTRACT_VERSION}"),
        ("newest", "names no versions"),
    ],
)
def test_a_plugin_may_require_versions_of_the_contract(
    needed: str | None, problem: str | None
) -> None:
    kind: type[Plugin[Options]] = type("It", (Plugin,), {"contract": needed})
    wrong = wrong_declarations(kind)
    assert [problem in text for text in wrong if problem] == ([True] if problem else [])
    assert bool(wrong) == bool(problem)
