"""Runs of a sweep lie in folders by tag, and are shown and found by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.program import call, write_nulls


@pytest.mark.box
def test_a_sweep_s_runs_have_folders_rows_and_cells_by_tag(tmp_path: Path) -> None:
    file = write_nulls(
        tmp_path,
        stacks="{baseline: []}",
        sweep="{train.micro_batch_size: [1, 4]}",
        tag='{format: "{preset}.bs_{train.micro_batch_size}"}',
    )
    results = tmp_path / "results"
    ran = call("run", str(file), "--results", str(results))
    assert ran.code == 0
    rows = [line.split() for line in ran.out.splitlines()]
    tags = [row[1] for row in rows if row[-1:] == ["baseline"] and not row[1].startswith("(")]
    assert tags == ["nulls.bs_1", "nulls.bs_4"]
    folders = {path.parent.parent.name for path in results.glob("runs/*/*/*/result.json")}
    assert folders == {"nulls.bs_1", "nulls.bs_4"}
    listed = call(
        "results", "list", "--results", str(results), "--tag", "*bs_4", "--format", "json"
    )
    (row,) = json.loads(listed.out)
    assert (row["tag"], row["sweep"]) == ("nulls.bs_4", {"train.micro_batch_size": 4})
    again = ("run", str(file), "--results", str(results), "--resume", "--tag", "nulls.bs_1")
    resumed = json.loads(call(*again, "--format", "json").out)
    assert [(one["tag"], one["runs"]) for one in resumed["experiments"]] == [("nulls.bs_1", 1)]
    assert len(list(results.glob("runs/*/*/*/result.json"))) == 2
    # Every command calls a point by its tag, in sentences and in rows.
    for words in (
        ("history", "nulls"),
        ("compare", *["baseline"] * 2),
        ("report", "--markdown", "-"),
    ):
        done = call(*words, "--results", str(results))
        assert "baseline (nulls.bs_4)" in done.out, done.err
        assert "baseline (train.micro_batch_size" not in done.out
