"""`accel-bench catalog stacks`: named stacks, shipped and brought by plugins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from cli.program import call

from accel_bench.documents import presets
from accel_bench.plugins import registry
from accel_bench.report.views.plugins import NOT_INSTALLED


def test_the_list_names_shipped_stacks_and_those_of_installed_plugins() -> None:
    rows = {
        row["name"]: row
        for row in json.loads(call("catalog", "stacks", "list", "--format", "json").out)
    }
    assert rows["activation-checkpointing"]["set"] == ["train.gradient_checkpointing=True"]
    assert rows["torch-compile"]["plugins"] == ["torch-compile"]
    assert all(row["description"] for row in rows.values())
    assert rows["torch-compile"]["installed"]


def test_stacks_of_extras_that_are_not_installed_are_listed_with_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(presets, "preset_roots", lambda: [presets.presets_root()])
    rows = {
        row["name"]: row
        for row in json.loads(call("catalog", "stacks", "list", "--format", "json").out)
    }
    assert (rows["nf4"]["extra"], rows["nf4"]["plugins"]) == ("bnb", ["bitsandbytes"])
    assert not rows["nf4"]["installed"]
    here, _, absent = call("catalog", "stacks", "list").out.partition(NOT_INSTALLED)
    assert "\nactivation-checkpointing " in here
    assert "\n./plugins/gptq " in absent


def test_a_stack_whose_plugin_is_not_installed_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "mine.yaml").write_text("description: Mine.\nuse: [autogptq]\n")
    monkeypatch.setattr(presets, "preset_roots", lambda: [tmp_path])
    monkeypatch.setattr(registry, "installed", lambda: ())
    (line,) = [
        line
        for line in call("catalog", "stacks", "list").out.splitlines()
        if line.startswith("mine ")
    ]
    assert "autogptq; pip install ./plugins/gptq" in line


def test_the_table_says_what_a_stack_is_and_what_it_uses_and_sets() -> None:
    lines = call("catalog", "stacks", "list").out.splitlines()
    assert lines[0].split() == ["name", "description", "uses"]
    (line,) = [line for line in lines if line.startswith("optimizer-fused ")]
    assert line.rstrip().endswith("optimizer.fused=True")


def test_a_shown_stack_is_its_file() -> None:
    done = call("catalog", "stacks", "show", "activation-checkpointing")
    assert yaml.safe_load(done.out)["set"] == {"train.gradient_checkpointing": True}


def test_a_broken_stack_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "broken.yaml").write_text("uses: []\n")
    monkeypatch.setattr(presets, "preset_roots", lambda: [tmp_path])
    done = call("catalog", "stacks", "list")
    assert done.code == 2
    assert "broken.yaml:1:1: unknown key 'uses'; did you mean 'use'?" in done.err
