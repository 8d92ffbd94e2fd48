"""Plugins that need what is not here are skipped with the reason, or refused when asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fault_plugins.distribution import SOUND, install
from faults.program import Program, null_scenario

NEEDS = f"""{SOUND}
class Dependency(Sound):
    requires = ("no-such-package>=2",)

class Version(Sound):
    requires = ("pydantic>=999",)

class Device(Sound):
    devices = frozenset({{"cuda"}})

class Dtype(Sound):
    dtypes = frozenset({{"float16", "float32"}})

class Architecture(Sound):
    restricted_model_archs = frozenset({{"OtherForCausalLM"}})

class Refusing(Sound):
    @hookimpl
    def check_scenario(self, experiment, machine):
        yield "needs a full moon"
"""
REASONS = {
    "dependency": "dependency: no-such-package>=2 is not installed",
    "version": "version: pydantic>=999 is needed, ",
    "device": "device: does not work with device cpu; it works with cuda",
    "dtype": "dtype: does not work with model.dtype bfloat16; it works with float16, float32",
    "architecture": "architecture: does not support LlamaForCausalLM; it supports OtherForCausalLM",
    "refusing": "refusing: needs a full moon",
    "brought": "brought: no-such-package>=3 is not installed",
}
"""Plugins that need what is not here, and the reason that is given."""


@pytest.fixture
def needy(tmp_path: Path) -> Program:
    """A program that knows them."""
    (tmp_path / "site").mkdir()
    program = Program(tmp_path, tmp_path / "site")
    install(program.site, "bench-test", {n: n.title() for n in REASONS if n != "brought"}, NEEDS)
    requires = ("no-such-package>=3", "also-not-there; python_version < '3'")
    install(program.site, "bench-brought", {"brought": "Sound"}, SOUND, requires)
    return program


def needy_scenario(*stacks: str) -> dict[str, Any]:
    """A scenario with stacks of their own for some of them, beside a baseline."""
    model = {"use": "null", "id": "tiny-llama-cpu", "dtype": "bfloat16"}
    chosen: dict[str, Any] = {name: [name] for name in stacks}
    return null_scenario({"baseline": [], **chosen}, model=model, resources={"device": "cpu"})


def test_what_cannot_run_here_is_skipped_with_its_reason_and_the_rest_runs(needy: Program) -> None:
    finished = needy.run(needy_scenario(*REASONS), "--quiet", "--format", "json")
    rows = {row["stack"]: row for row in finished.document["experiments"]}
    assert finished.code == 0
    assert rows.pop("baseline")["status"] == "ok"
    assert {row["status"] for row in rows.values()} == {"skipped"}
    found = {name: row["reasons"][0] for name, row in rows.items()}
    assert {name: found[name][: len(text)] for name, text in REASONS.items()} == REASONS
    assert [row.experiment.stack.name for row in finished.results] == ["baseline"]


def test_the_table_says_why_it_was_skipped(needy: Program) -> None:
    finished = needy.run(needy_scenario("refusing"), "--quiet")
    assert "needs a full moon" in " ".join(finished.out.split())


@pytest.mark.parametrize("option", ["--plugin", "--only"])
def test_what_cannot_run_here_is_an_error_when_it_is_asked_for(needy: Program, option: str) -> None:
    stacks = () if option == "--plugin" else ("refusing",)
    finished = needy.run(needy_scenario(*stacks), option, "refusing")
    assert finished.code == 2
    assert "stack 'refusing' cannot run here: refusing: needs a full moon" in finished.err
    assert not needy.results_folder.exists()


def test_nothing_left_to_run_exits_3(needy: Program) -> None:
    scenario = needy_scenario(*REASONS)
    del scenario["stacks"]["baseline"]
    finished = needy.run(scenario)
    assert finished.code == 3
    assert "nothing can run here: " in finished.err
    assert "needs a full moon" in finished.err
