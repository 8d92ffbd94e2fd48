"""The table of what trains says what runs have shown, and keeps rows of other environments."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import support
from benchmarks.support import Row, Support, merged, rows_of, table


def row(stack: str, **fields: object) -> Row:
    """A row of an imaginary scenario."""
    known = {"scenario": "x-cpu", "task": "t", "model": "m", "data": "d", "outcome": "equivalent"}
    return Row.model_validate({**known, "stack": stack, **fields})


def test_a_task_trains_is_counted_and_refuses_a_stack_with_its_reason() -> None:
    baseline, refused, same = rows_of("masked-lm-cpu", ["padding-free", "activation-checkpointing"])
    assert baseline.outcome == "trained"
    assert baseline.learns
    assert baseline.tensors_with_gradient == baseline.trained_tensors
    assert baseline.is_counted
    assert refused.outcome == "refused"
    assert "masked-lm" in refused.reason
    assert same.outcome == "equivalent"


@pytest.mark.release
@pytest.mark.parametrize("scenario", support.task_scenarios())
def test_every_task_trains_and_each_stack_trains_the_same_or_says_why_not(scenario: str) -> None:
    for found in rows_of(scenario, support.stacks_here()):
        assert found.outcome != "failed", found
        assert found.outcome in ("trained", "equivalent") or found.reason, found


def test_rows_of_another_environment_are_kept_and_new_ones_replace_theirs() -> None:
    before = [row("nf4"), row("torch-compile", outcome="undecided", reason="so")]
    found = merged(before, [row("torch-compile"), row("baseline", outcome="trained")])
    assert [(one.stack, one.outcome) for one in found] == [
        ("baseline", "trained"),
        ("nf4", "equivalent"),
        ("torch-compile", "equivalent"),
    ]


def test_the_page_has_a_sign_for_each_stack_and_each_reason_once() -> None:
    rows = [
        row("baseline", outcome="trained", first_loss=2.0, last_loss=1.5, flops_ratio=1.0),
        row("nf4", outcome="refused", reason="it needs | an adapter"),
    ]
    page = table(rows)
    assert "| `x-cpu` | t | m | d | 2 to 1.5 |" in page
    assert "| `nf4` | - |" in page
    assert "| `nf4` | x | it needs \\| an adapter |" in page


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text('{"rows": 3}')
    with pytest.raises(SystemExit, match="is not a table of this command"):
        support.main(["--scenarios", "--stacks", "--output", str(path)])


def test_what_is_published_can_be_read_back() -> None:
    published = Path(support.__file__).with_name("published") / "cpu-support.json"
    rows = Support.model_validate_json(published.read_bytes()).rows
    assert {one.scenario for one in rows} <= set(support.task_scenarios())
    assert all(one.outcome == "trained" for one in rows if one.stack == support.BASELINE)
