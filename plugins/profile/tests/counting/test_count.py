"""A step's ledger is equal in every run, and differences name the changed line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from accel_bench_profile.ledger.difference import difference
from accel_bench_profile.ledger.line_changes import where
from accel_bench_profile.ledger.schema import Ledger, LedgerEntry, read_ledger, write_ledger

from .planted import FORWARDS, OTHERS, free, ledger_of

SOURCE = Path(__file__).with_name("planted.py").read_text(encoding="utf8").splitlines()


@pytest.fixture(scope="module", autouse=True)
def nothing_compiled() -> None:
    """Forget what other tests have compiled: a worker is a process of its own."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("count")


@pytest.fixture(scope="module")
def baseline(folder: Path) -> Ledger:
    return ledger_of(folder)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    method = f"file://{tmp_path / 'rendezvous'}"
    torch.distributed.init_process_group("gloo", init_method=method, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


NAMED = {name: module for name, (module, _) in {**FORWARDS, **OTHERS}.items()}


@pytest.mark.parametrize("regression", [one for one in NAMED if one != "lost-checkpointing"])
def test_a_planted_regression_is_named_with_its_module_and_line(
    regression: str, baseline: Ledger, folder: Path, request: pytest.FixtureRequest
) -> None:
    if regression == "reduced-twice":
        request.getfixturevalue("group")
    found = difference(baseline, ledger_of(folder, regression))
    assert found.rose
    first = found.places[0]
    assert first.code.endswith("# PLANTED"), [where(one) for one in found.places]
    assert Path(first.file).name == "planted.py"
    assert [SOURCE[line - 1].strip() for line in first.lines] == [first.code]
    assert all(one.startswith(NAMED[regression]) for one in first.modules)


def test_a_lost_checkpointing_is_named_by_what_its_block_saves(
    baseline: Ledger, folder: Path
) -> None:
    found = difference(baseline, ledger_of(folder, "lost-checkpointing"))
    (rose,) = [one for one in found.rose if not one.kind]
    assert rose.figure == "saved_bytes"
    assert {name.split(".")[1] for one in found.places for name in one.modules} == {"0"}
    assert any(one.figure == "operations" for one in found.fell)


@pytest.mark.parametrize(
    "repeats", [10, pytest.param(200, marks=pytest.mark.release)], ids="{} repeats".format
)
def test_repeats_of_the_same_code_differ_by_nothing(
    repeats: int, baseline: Ledger, folder: Path
) -> None:
    for _ in range(repeats):
        again = ledger_of(folder)
        assert again.entries == baseline.entries
        found = difference(baseline, again)
        assert (found.rose, found.fell, found.places) == ((), (), ())


def test_a_line_that_moved_is_no_difference(baseline: Ledger) -> None:
    moved = tuple(
        one.model_copy(update={"site": one.site.model_copy(update={"line": one.site.line + 7})})
        for one in baseline.entries
    )
    found = difference(baseline, baseline.model_copy(update={"entries": moved}))
    assert (found.rose, found.fell, found.answer) == ((), (), "nothing rose")


def test_a_view_stands_in_the_ledger_and_closes_no_gate(baseline: Ledger, folder: Path) -> None:
    after = ledger_of(folder, prepare=free)
    assert after.entries != baseline.entries
    found = difference(baseline, after)
    assert (found.closes, found.answer, found.places) == (False, "nothing rose", ())
    assert found.notes[0].startswith("views, which move nothing and close no gate: ")


def test_a_rise_in_a_module_that_another_hides_in_the_sum_closes_the_gate(baseline: Ledger) -> None:
    def moved(entry: LedgerEntry) -> LedgerEntry:
        if entry.kind != "norm" or not entry.site.module.startswith("blocks.0"):
            return entry
        module = entry.site.module.replace("blocks.0", "blocks.1")
        return entry.model_copy(update={"site": entry.site.model_copy(update={"module": module})})

    entries = tuple(map(moved, baseline.entries))
    found = difference(baseline, baseline.model_copy(update={"entries": entries}))
    assert (found.rose, found.fell, found.closes) == ((), (), True)
    assert "no sum rose, but 1 kind of operations rose in a module" in found.answer
    (shift,) = found.shifts
    assert "norm bfloat16 rose in 1 place and fell in others" in shift.sentence
    assert [one.split(" ")[1] for one in shift.rose] == ["(blocks.1.norm)"]
    assert [one.split(" ")[1] for one in shift.fell] == ["(blocks.0.norm)"]


def test_another_version_of_ours_is_said_last_and_explains_nothing(baseline: Ledger) -> None:
    old, new = ({"versions": {"accel-bench": one, "torch": "2.13.0"}} for one in ("1", "2"))
    found = difference(baseline.model_copy(update=old), baseline.model_copy(update=new))
    assert found.notes == ("counted by another version: accel-bench 1 -> 2",)


def test_other_versions_and_settings_are_said(baseline: Ledger) -> None:
    before = {"versions": {"torch": "2.12.0"}, "work": {"train.micro_batch_size": 2}}
    after = {"versions": {"torch": "2.13.0"}, "work": {"train.micro_batch_size": 4}, "ranks": 2}
    notes = difference(baseline.model_copy(update=before), baseline.model_copy(update=after)).notes
    assert notes[:3] == (
        "versions differ, which may be all: torch 2.12.0 -> 2.13.0",
        "settings differ: train.micro_batch_size 2 -> 4",
        "ranks: 1 before, 2 after",
    )


def test_a_ledger_in_a_file_is_read_back_as_it_was(baseline: Ledger, tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    write_ledger(path, baseline)
    assert read_ledger(path) == baseline
    lines = path.read_text(encoding="utf8").splitlines()
    assert len([line for line in lines if '"site"' in line]) == len(baseline.entries)


def test_recomputed_operations_have_the_line_and_module_of_the_forward(baseline: Ledger) -> None:
    def places(phase: str) -> set[tuple[str, int]]:
        return {
            (one.site.module, one.site.line)
            for one in baseline.entries
            if one.site.phase == phase and one.site.module.startswith("blocks.0")
        }

    # The last line adds the block's result to its input: nothing needs that again.
    assert len(places("forward") - places("backward")) == 1
    assert places("backward") < places("forward")
