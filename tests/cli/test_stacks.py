"""`accel-bench stacks`: named stacks, shipped and brought by plugins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from cli.program import call

from accel_bench.documents import presets as samples


def test_the_list_names_shipped_stacks_and_those_of_installed_plugins() -> None:
    rows = {row["name"]: row for row in json.loads(call("stacks", "list", "--format", "json").out)}
    assert rows["activation-checkpointing"]["set"] == ["train.gradient_checkpointing=True"]
    assert rows["torch-compile"]["plugins"] == ["torch-compile"]
    assert all(row["description"] for row in rows.values())


def test_the_table_has_the_names_of_the_json_as_columns() -> None:
    columns = list(json.loads(call("stacks", "list", "--format", "json").out)[0])
    assert call("stacks", "list").out.split("\n")[0].split() == columns


def test_a_shown_stack_is_its_file() -> None:
    done = call("stacks", "show", "activation-checkpointing")
    assert yaml.safe_load(done.out)["set"] == {"train.gradient_checkpointing": True}


def test_a_broken_stack_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "broken.yaml").write_text("uses: []\n")
    monkeypatch.setattr(samples, "sample_roots", lambda: [tmp_path])
    done = call("stacks", "list")
    assert done.code == 2
    assert "broken.yaml:1:1: unknown key 'uses'; did you mean 'use'?" in done.err
