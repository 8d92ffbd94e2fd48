"""The table of what trains says what runs have shown, and keeps rows of other environments."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from analysis_factory import limit

from accel_bench.effective import EffectiveConfiguration
from accel_bench.testing import make_experiment
from benchmarks import support
from benchmarks.support import merged, missing
from benchmarks.support_effects import changes_something, is_wrapped_whole
from benchmarks.support_page import table
from benchmarks.support_runs import (
    BASELINE,
    SHORT,
    UNDIVIDED_REASON,
    Row,
    Support,
    rows_of,
    stacks_here,
    works,
)

# PEFT asks transformers by a name that is being replaced.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


def row(stack: str, scenario: str = "t5", **fields: object) -> Row:
    """A row of a work."""
    known = {"scenario": scenario, "task": "t", "model": "m", "data": "d", "outcome": "equivalent"}
    return Row.model_validate({**known, "stack": stack, **fields})


def result(evidence: dict[str, Any], engine: str = "torch", **effective: Any) -> Any:
    """A run that was set up so."""
    rank = SimpleNamespace(evidence=evidence, effective=EffectiveConfiguration(**effective))
    experiment = make_experiment({"engine": engine})
    return SimpleNamespace(ranks=[rank], experiment=experiment)


def test_a_task_trains_is_counted_and_refuses_a_stack_with_its_reason() -> None:
    baseline, refused, same = rows_of("masked-lm-cpu", ["padding-free", "optimizer-fused"])
    assert baseline.outcome == "trained"
    assert baseline.learns
    assert baseline.tensors_with_gradient == baseline.trained_tensors
    assert baseline.is_counted
    assert refused.outcome == "refused"
    assert "masked-lm" in refused.reason
    assert same.outcome == "equivalent"
    assert same.update_difference == pytest.approx(0.0, abs=1e-3)


FEW_STEPS: dict[str, Any] = {**SHORT, "measure.steps": 2}

FAMILIES = ("attention-math", "optimizer-in-backward", "torch-compile-aot-eager")
"""A stack of each kind of acceleration that other tests of tasks do not try."""


ALWAYS = ("dpo-cpu",)
"""Works of a task that the tests of tasks do not accelerate."""


@pytest.mark.parametrize(
    "work",
    [pytest.param(one, marks=() if one in ALWAYS else pytest.mark.release) for one in works()],
)
def test_each_kind_of_acceleration_trains_each_work_the_same(work: str) -> None:
    rows = {one.stack: one for one in rows_of(work, FAMILIES, FEW_STEPS)}
    assert {*rows} == {BASELINE, *FAMILIES}
    others = {stack: rows[stack].outcome for stack in FAMILIES}
    if work == "resnet":
        assert others.pop("attention-math") == "refused"
        assert rows["attention-math"].reason.endswith("has no attention")
    assert {*others.values()} == {"equivalent"}, rows


@pytest.mark.release
@pytest.mark.parametrize("work", works())
def test_every_work_trains_and_each_stack_trains_the_same_or_says_why_not(work: str) -> None:
    for found in rows_of(work, stacks_here()):
        assert found.outcome not in ("failed", "different"), found
        assert found.outcome in ("trained", "equivalent") or found.reason, found
        if found.stack == BASELINE:
            assert found.is_counted


def test_rows_of_another_environment_are_kept_and_new_ones_replace_theirs() -> None:
    before = [row("nf4"), row("torch-compile", outcome="undecided", reason="so"), row("x", "gone")]
    new = [row("torch-compile"), row(BASELINE, outcome="trained"), row(BASELINE, "quickstart")]
    found = merged(before, new)
    assert [(one.scenario, one.stack, one.outcome) for one in found] == [
        ("quickstart", BASELINE, "equivalent"),
        ("t5", BASELINE, "trained"),
        ("t5", "nf4", "equivalent"),
        ("t5", "torch-compile", "equivalent"),
    ]
    assert missing(found, "t5", ["nf4", "int8"]) == ["int8"]
    assert missing(found, "whisper", ["nf4"]) == ["nf4"]


def test_the_page_has_a_sign_for_each_stack_and_each_reason_once() -> None:
    trained: dict[str, Any] = {"outcome": "trained", "first_loss": 2.0, "last_loss": 1.5}
    never = "moe: does not support {}; it supports A, B"
    rows = [
        row(BASELINE, **trained, flops_ratio=1.0, tensors_with_gradient=3, trained_tensors=3),
        row(BASELINE, "sft-cpu", **trained, reason="unseen"),
        row("nf4", outcome="refused", reason="it needs | an adapter"),
        row("fp4", outcome="different by design", reason="far apart", declared_by=("bits",)),
        row("moe-a", outcome="refused", reason=never.format("T5")),
        row("moe-a", "sft-cpu", outcome="refused", reason=never.format("Llama")),
        row("moe-b", outcome="refused", reason=never.format("T5")),
        row("moe-b", "sft-cpu", outcome="refused", reason=never.format("Llama")),
        row("mesh", "sft-cpu", reason=UNDIVIDED_REASON),
    ]
    page = table(rows)
    assert "| t5 | t | m | d | 2 to 1.5 | 3 of 3 | 1.00000 |" in page
    assert "not counted: unseen" in page
    assert "| `nf4` | - |   |" in page
    assert "| - | t5 | `nf4` | it needs \\| an adapter |" in page
    assert "| ~ | t5 | `fp4` | computes with other numbers, as far apart as bits declares |" in page
    assert "| `mesh` |   | 1 |" in page
    assert "an empty cell was" in page
    assert page.count("moe: ") == 1
    assert "| - | all | `moe-a`, `moe-b` | moe: supports only A, B |" in page


def test_a_stack_that_leaves_all_as_it_was_is_told_from_one_that_does_not() -> None:
    same = result(
        {"adamw": {"fused": None, "seconds": 0.1}}, experts="grouped_mm", attention="sdpa"
    )
    asked = {"moe": {"experts": "grouped_mm", "switched_modules": 0}}
    again = result({"adamw": {"fused": None, "seconds": 0.2}, **asked}, **_settings(same))
    assert not changes_something(same, again)
    assert changes_something(same, result({"adamw": {"fused": True}}, **_settings(same)))
    assert changes_something(same, result({}, experts="eager", attention="sdpa"))
    assert changes_something(same, result({}, "hf-trainer", **_settings(same)))
    norms = {"fused-kernels": {"parts": {"rms_norm": {"replaced": 5}}}}
    assert changes_something(same, result(norms, **_settings(same)))
    adapters = {"fused-kernels": {"adapted_layers": {"q_proj": 2}}}
    assert changes_something(same, result(adapters, **_settings(same)))


def _settings(one: Any) -> dict[str, Any]:
    found: dict[str, Any] = one.ranks[0].effective.model_dump(exclude_defaults=True)
    return found


@pytest.mark.parametrize(
    ("effective", "whole"),
    [
        ({"strategy": "FSDPModule"}, True),
        ({"strategy": "FSDPModule", "sharing_ranks": 1}, True),
        ({"strategy": "FSDPModule", "sharing_ranks": 2}, False),
        ({"strategy": "none"}, False),
    ],
)
def test_a_wrapped_model_of_one_device_is_not_divided(
    effective: dict[str, Any], whole: bool
) -> None:
    assert is_wrapped_whole(result({}, **effective)) is whole


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text('{"rows": 3}')
    with pytest.raises(SystemExit, match="is not a table of this command"):
        support.main(["--works", "--output", str(path)])


def test_rows_of_other_files_are_added_and_the_page_is_written(tmp_path: Path) -> None:
    path, other, page = (tmp_path / name for name in ("table.json", "other.json", "page.md"))
    other.write_text(Support(rows=(row("nf4"), row(BASELINE))).model_dump_json())
    command = ["--works", "--output", str(path), "--merge", str(other), "--table", str(page)]
    support.main(command)
    assert [one.stack for one in Support.model_validate_json(path.read_bytes()).rows] == [
        BASELINE,
        "nf4",
    ]
    assert "| `nf4` | = |" in page.read_text()


def test_the_page_is_that_of_the_rows_that_are_published() -> None:
    here = Path(support.__file__).parent
    rows = Support.model_validate_json((here / "published/cpu-support.json").read_bytes()).rows
    assert {one.scenario for one in rows} == {*works()}
    assert all(one.outcome == "trained" for one in rows if one.stack == BASELINE)
    assert not [one for one in rows if one.outcome == "failed"]
    assert all(one.reason for one in rows if one.outcome not in ("trained", "equivalent"))
    assert (here.parent / "docs/support.md").read_text(encoding="utf8") == table(rows)


DECLARED = (
    *("nf4", "fp4", "int8", "intx4", "float8", "bnb-baseline", "gptq"),  # few bits
    *("master-weights", "adamw-8bit"),  # products in bfloat16, an optimizer's state in 8 bits
)
"""Beginnings of the names of stacks that may be farther apart than others in float32."""


def test_stacks_that_declare_nothing_are_within_what_float32_allows() -> None:
    published = Path(support.__file__).parent / "published/cpu-support.json"
    rows = Support.model_validate_json(published.read_bytes()).rows
    plain = [
        one.update_difference
        for one in rows
        if one.outcome == "equivalent" and not one.stack.startswith(DECLARED)
    ]
    found = [apart for apart in plain if apart is not None]
    assert len(found) > 250
    assert max(found) <= limit("update", "float32")
