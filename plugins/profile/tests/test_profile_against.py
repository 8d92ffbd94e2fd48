"""`accel-bench profile --against` with real runs: the parts of the difference add up."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accel_bench_profile.collect_waterfalls import Side, collect_waterfalls
from accel_bench_profile.figures.modules import DATA
from accel_bench_profile.figures.waterfall import ADDS_UP
from accel_bench_profile.figures.waterfall_schema import ProfileWaterfall
from accel_bench_profile.waterfall_view import adding_up
from cli.program import Done, call
from fault_plugins.distribution import install
from several_ranks.scenarios import forking, write

from accel_bench.store.database import open_store

PLANTED = """
import time

from accel_bench import Options, Plugin, hookimpl
from accel_bench.modeling.data import token_batches


def slowly(batches):
    '''Take 100 ms for each batch.'''
    for batch in batches:
        time.sleep(0.1)
        yield batch


class Slower(Plugin[Options]):
    '''Takes 200 ms more in the MLP's activation function, and 100 ms more for a batch.'''

    @hookimpl
    def accelerate_model(self, run):
        activation = run.model.model.layers[0].mlp.act_fn
        plain = activation.forward

        def forward(states):
            time.sleep(0.2)
            return plain(states)

        activation.forward = forward

        # The process of the run ends with it.
        plain_batches = token_batches.batches_of
        token_batches.batches_of = lambda *settings: slowly(plain_batches(*settings))
"""
"""A plugin that makes one module and the data slower."""

STACKS: dict[str, Any] = {
    "baseline": [],
    "compile-blocks": ["torch-compile"],
    "compile-model": [{"use": "torch-compile", "scope": "model"}],
    "padding-free": ["padding-free"],
    "checkpointing": {"set": {"train.gradient_checkpointing": True}},
    "checkpointing-selective": [{"use": "activation-checkpointing", "policy": "selective"}],
    "eager-attention": {"set": {"model.attention": "eager"}},
    "lora": {"set": {"adapter": "lora"}},
    "optimizer-fused": {"set": {"optimizer": {"use": "adamw", "fused": True}}},
    "optimizer-in-backward": {
        "set": {"optimizer.optimizer_in_backward": True, "train.max_grad_norm": None}
    },
    "hf-trainer": ["hf-trainer"],
}
"""Stacks that train the same model, each compared with the first."""


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The plugin is installed, and a launcher that imports nothing."""
    folder = tmp_path_factory.mktemp("site")
    install(folder, "accel-bench-planted-slower", {"planted-slower": "Slower"}, PLANTED)
    with forking(folder):
        yield


def profile(scenario: Path, *arguments: str) -> Done:
    return call("profile", str(scenario), "--quiet", *arguments, folder=scenario.parent)


def check_that_it_adds_up(found: ProfileWaterfall) -> None:
    """Check the sums of bars, and that the rest is within 5 % or noted."""
    rest = found.unexplained
    for bars in (found.kinds, found.modules):
        for side in ("a", "b", "change"):
            total = sum(getattr(bar, side) for bar in bars) + getattr(rest, side)
            assert total == pytest.approx(getattr(found.difference, side), rel=1e-6, abs=1e-9)
    assert found.explained is not None
    assert found.explained == pytest.approx(1 - abs(rest.change / found.difference.change))
    assert found.explained >= 1 - ADDS_UP or "lie in no module and no operation" in adding_up(found)


def test_planted_pauses_are_recovered_by_name_and_size(tmp_path: Path) -> None:
    scenario = write(
        tmp_path, "one", 1, {"baseline": [], "slower": ["planted-slower"]}, launcher="forking"
    )
    again = ("--against", "slower", "--rounds", "1", "--active", "2")
    done = profile(scenario, *again, "--format", "json")
    assert done.code == 0, done.err
    (document,) = json.loads(done.out)["waterfalls"]
    found = ProfileWaterfall.model_validate_json(json.dumps(document))
    check_that_it_adds_up(found)
    assert (found.a, found.b, found.rounds) == ("baseline", "slower", 1)
    first = found.modules[0]
    assert first.module == "model.layers.*.mlp"
    assert first.mostly == "model.layers.*.mlp.act_fn"
    assert next(iter(first.kinds)) == "idle"
    assert first.change == pytest.approx(0.2, rel=0.2)
    second = found.modules[1]
    assert (second.module, next(iter(second.kinds))) == (DATA, "data")
    assert second.change == pytest.approx(0.1, rel=0.2)
    assert found.lost[:2] == ("model.layers.*.mlp", DATA)
    assert found.explained is not None and found.explained > 0.9

    # The other way round, from what is stored already: it is the first that gained.
    with open_store(tmp_path / "accel_bench_results", write=False) as store:
        results = store.results()
        sides = (Side(results, name) for name in ("slower", "baseline"))
        report = collect_waterfalls(store.folder, *sides)
    assert report.waterfalls[0].modules[0].module == "model.layers.*.mlp"
    assert report.waterfalls[0].modules[0].change < -0.15


def test_two_scenarios_are_compared_by_their_files(tmp_path: Path) -> None:
    stacks = {"baseline": [], "slower": ["planted-slower"]}
    one = write(tmp_path, "one", 1, stacks, launcher="forking")
    other = write(tmp_path, "other", 1, stacks, launcher="forking", optimizer="adamw")
    words = ("--against", str(other), "--stack", "baseline,slower", "--rounds", "1", "--top", "1")
    done = profile(one, *words, "--active", "1")
    assert done.code == 0, done.err
    text = " ".join(done.out.split())
    assert "one, other: one baseline to other slower" in text
    assert "lost: model.layers.*.mlp +" in text
    assert re.search("modules that (change less|hardly change)", text)
    assert "settings differ: optimizer.use sgd -> adamw" in text
    # Two sessions, in rounds that alternate; the traces lie in both.
    with open_store(tmp_path / "accel_bench_results", write=False) as store:
        runs = {run.experiment.scenario.name: run for run in store.results()}
        assert {run.session for run in runs.values()} == {one.id for one in store.sessions()}
        folders = [str((store.folder / runs[name].folder).parent) for name in ("one", "other")]
    assert f"traces: {', '.join(folders)} (tensorboard" in text


def test_a_scenario_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    scenario = write(tmp_path, "one", 1, {"baseline": []})
    done = profile(scenario, "--against", "missing.yaml")
    assert done.code == 2
    assert "'missing.yaml' is neither a file nor a shipped scenario" in done.err
    done = profile(scenario, "--against", str(scenario), "--stack", "a,b,c")
    assert done.code == 2
    assert "--stack takes one stack of each file, and gets 'a, b, c'" in done.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--stack", "slower"), "takes one other stack in --stack, and gets 'slower'"),
        (("--stack", "slower,baseline"), "takes one other stack in --stack"),
    ],
)
def test_two_stacks_are_needed(arguments: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    scenario = write(tmp_path, "one", 1, {"baseline": [], "slower": ["planted-slower"]})
    done = profile(scenario, "--against", "slower", *arguments)
    assert done.code == 2
    assert reason in done.err


@pytest.mark.box
@pytest.mark.release
def test_ten_pairs_of_stacks_add_up(tmp_path: Path) -> None:
    scenario = write(tmp_path, "ten", 1, STACKS, launcher="forking", optimizer="adamw")
    done = profile(scenario, "--rounds", "2", "--format", "json")
    assert done.code == 0, done.err
    with open_store(tmp_path / "accel_bench_results", write=False) as store:
        results = store.results()
        reports = [
            collect_waterfalls(store.folder, Side(results, "baseline"), Side(results, name))
            for name in STACKS
            if name != "baseline"
        ]
    assert [report.missing for report in reports] == [()] * 10
    for report in reports:
        check_that_it_adds_up(report.waterfalls[0])
    found = {report.waterfalls[0].b: report.waterfalls[0] for report in reports}
    again = {name: sum(one.directions.get("recompute", 0.0) for one in found[name].modules)
             for name in found}  # fmt: skip
    # How much is a matter of the machine's load; that it is recomputation is not.
    assert {name for name in again if again[name] > 0} == {
        *("checkpointing", "checkpointing-selective")
    }
    assert any("(model)" in note for note in found["compile-model"].notes)
