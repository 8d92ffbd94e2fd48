"""`accel-bench catalog stacks`: named stacks, shipped and brought by plugins."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from accel_bench_catalog.plugin_view import NOT_INSTALLED
from cli.program import call

from accel_bench.documents import presets
from accel_bench.plugins import manager, registry


def write_stacks(folder: Path, monkeypatch: pytest.MonkeyPatch, **uses: str) -> None:
    """Replace all presets by stacks of these uses."""
    (folder / "stacks").mkdir()
    for name, use in uses.items():
        file = folder / "stacks" / f"{name}.yaml"
        file.write_text(f"description: Mine.\nuse: [{use}]\n", encoding="utf8")
    monkeypatch.setattr(presets, "preset_roots", lambda: [folder])


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
    write_stacks(tmp_path, monkeypatch, mine="autogptq")
    monkeypatch.setattr(registry, "installed", lambda: ())
    (line,) = [
        line
        for line in call("catalog", "stacks", "list").out.splitlines()
        if line.startswith("mine ")
    ]
    assert "  autogptq  " in line
    assert "extra gptq; pip install ./plugins/gptq" in line


@pytest.mark.box
def test_the_table_says_what_a_stack_is_and_what_it_uses_sets_and_needs() -> None:
    lines = call("catalog", "stacks", "list").out.splitlines()
    assert lines[0].split() == ["name", "description", "uses", "needs"]
    (line,) = [line for line in lines if line.startswith("optimizer-fused ")]
    assert line.rstrip("- ").endswith("optimizer.fused=True")
    (line,) = [line for line in lines if line.startswith("activation-offload ")]
    assert line.split()[-2:] == ["activation-offload", "cuda"]


def test_stacks_of_one_plugin_differ_in_their_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uses = {kind: f"{{use: bitsandbytes, quant_type: {kind}}}" for kind in ("nf4", "fp4")}
    write_stacks(tmp_path, monkeypatch, **uses)
    rows = json.loads(call("catalog", "stacks", "list", "--format", "json").out)
    assert {row["name"]: row["uses"] for row in rows if row["name"] in uses} == {
        kind: [f"bitsandbytes(quant_type={kind})"] for kind in uses
    }
    assert {tuple(row["needs"]) for row in rows if row["name"] in uses} == {
        ("an adapter", "extra bnb")
    }


def test_no_line_of_a_narrow_list_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = call("catalog", "stacks", "list").out.splitlines()
    assert lines[0].split() == ["name", "description", "uses", "needs"]
    assert max(map(len, lines)) <= 80


def test_a_shown_stack_says_what_a_plugin_of_others_declares_to_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_stacks(tmp_path, monkeypatch, ours="autogptq", theirs="theirs", nobodys="gone")
    kind = SimpleNamespace(needs_adapter=True, dtypes={"float16"}, devices={"xpu", "cuda"})
    load_class = manager.load_class
    monkeypatch.setattr(
        manager, "load_class", lambda name: kind if name == "theirs" else load_class(name)
    )
    shown = {
        name: call("catalog", "stacks", "show", name).out.splitlines()[-1]
        for name in ("ours", "theirs", "nobodys")
    }
    assert shown["ours"] == "# needs: an adapter; bfloat16 or float16; extra gptq"
    assert shown["theirs"] == "# needs: an adapter; float16; cuda or xpu"
    assert shown["nobodys"].startswith("# needs: another plugin (")


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
