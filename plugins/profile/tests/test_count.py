"""`scenarios count` with real steps: equal ledgers, named lines, two ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accel_bench_profile.ledger.difference import difference
from accel_bench_profile.ledger.schema import read_ledger
from cli.program import Done, call, start
from fault_plugins.distribution import install
from several_ranks.scenarios import forking, write

from accel_bench.plugins.registry import installed

SLOWER = """
import torch

from accel_bench import Options, Plugin, hookimpl


class Slower(Plugin[Options]):
    @hookimpl
    def accelerate_model(self, run):
        mlp = run.model.model.layers[0].mlp
        forward = mlp.forward

        def copying(x):
            return forward(x.clone())  # PLANTED

        mlp.forward = copying


class Twice(Plugin[Options]):
    @hookimpl
    def accelerate_model(self, run):
        def reduce(weight):
            torch.distributed.all_reduce(weight.grad)  # REDUCED

        run.model.lm_head.weight.register_post_accumulate_grad_hook(reduce)
"""
"""Plugins that make a step slower."""

PLUGINS = {"slower": "Slower", "twice": "Twice"}


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The plugins are installed, and a launcher that imports nothing."""
    folder = tmp_path_factory.mktemp("site")
    install(folder, "accel-bench-slower", PLUGINS, SLOWER)
    with pytest.MonkeyPatch.context() as patch, forking(folder / "launcher"):
        patch.syspath_prepend(str(folder))
        installed.cache_clear()
        yield folder
    installed.cache_clear()


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenario")
    stacks: dict[str, Any] = {"baseline": [], "slower": ["slower"], "twice": ["twice"]}
    return write(folder, "counted", 1, stacks)


@pytest.fixture(scope="module")
def saved(scenario: Path) -> Path:
    """The ledger of the baseline in a file."""
    path = scenario.with_name("ledger.json")
    assert count(scenario, "--save", str(path)).code == 0
    return path


def count(*words: str | Path) -> Done:
    return call("scenarios", "count", *map(str, words), "--set", "launcher=forking")


def test_the_same_code_differs_by_nothing_from_a_stored_ledger(scenario: Path, saved: Path) -> None:
    done = count(scenario, "--against", saved, "--format", "json")
    found = json.loads(done.out)
    assert (done.code, found["rose"], found["fell"]) == (0, [], [])


@pytest.mark.release
@pytest.mark.parametrize(("stack", "devices"), [("baseline", 2), ("compiled", 1)])
def test_processes_with_other_hash_seeds_differ_by_nothing(
    tmp_path: Path, stack: str, devices: int
) -> None:
    compiled = [{"use": "torch-compile", "backend": "aot_eager"}]
    scenario = write(tmp_path, "repeated", devices, {"baseline": [], "compiled": compiled})
    words = ("scenarios", "count", str(scenario), "--stack", stack, "--oversubscribe")
    paths = [tmp_path / f"{seed}.json" for seed in ("0", "1", "4711")]
    for path in paths:
        done = start(*words, "--save", str(path), folder=tmp_path, PYTHONHASHSEED=path.stem)
        assert done.code == 0, done.err
    ledgers = [read_ledger(path) for path in paths]
    assert ledgers[0].entries
    for other in ledgers[1:]:
        assert other.entries == ledgers[0].entries
        assert not difference(ledgers[0], other).closes


def test_a_stack_that_copies_is_named_with_the_line_of_its_plugin(
    scenario: Path, saved: Path, site: Path
) -> None:
    done = count(scenario, "--stack", "slower", "--against", saved)
    assert done.code == 1
    lines = (site / "accel_bench_slower.py").read_text().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if "PLANTED" in text)
    assert f"look first at accel_bench_slower.py:{line} (model.layers.0.mlp)" in done.out


def test_a_second_reduction_of_two_ranks_is_named(scenario: Path) -> None:
    words = ("--set", "resources.devices=2", "--oversubscribe", "--format", "json")
    done = count(scenario, "--stack", "twice", "--against", "baseline", *words)
    found = json.loads(done.out)
    assert done.code == 1, done.err
    sums = {one["figure"]: one for one in found["rose"] if not one["kind"]}
    assert sums["collectives"]["after"] == sums["collectives"]["before"] + 2
    assert sums["collectives"]["before"] > 0
    assert "REDUCED" in found["places"][0]["code"]
    assert found["places"][0]["modules"] == ["lm_head"]


def test_a_reference_that_is_neither_a_file_nor_a_stack_is_refused(scenario: Path) -> None:
    done = count(scenario, "--against", "slow")
    assert done.code == 2
    assert "neither a file nor a stack" in done.err
    assert "slower" in done.err


def test_a_file_that_is_no_ledger_is_refused_with_the_command_that_writes_one(
    scenario: Path,
) -> None:
    done = count(scenario, "--against", scenario)
    assert done.code == 2
    assert "is no ledger" in done.err
    assert "--save FILE" in done.err


def test_a_stack_that_fails_is_named_with_its_reason(scenario: Path) -> None:
    done = count(scenario, "--set", "model.overrides.num_attention_heads=7")
    assert done.code == 1
    assert "has failed with stack 'baseline'" in done.err
