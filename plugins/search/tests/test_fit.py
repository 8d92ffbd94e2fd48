"""`accel-bench fit` with real runs that run out of memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.program import Done, call
from fault_plugins.distribution import install
from several_ranks.scenarios import forking

from accel_bench.result import Result, Status
from accel_bench.store.database import open_store

HUNGRY = """
import mmap
import resource
from pathlib import Path

import psutil

from accel_bench import Options, Plugin, hookimpl


class HungryOptions(Options):
    breaks_at: int = 1000
    once: str = ""


class Hungry(Plugin[HungryOptions]):
    Options = HungryOptions

    @hookimpl
    def accelerate_model(self, run):
        scenario = run.scenario
        tokens = scenario.train.micro_batch_size * scenario.data.sequence_length
        if scenario.train.micro_batch_size >= self.options.breaks_at:
            raise ValueError("broken on purpose")
        limit = psutil.Process().memory_info().vms + 200 * 2**23
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        again = bool(self.options.once) and scenario.train.micro_batch_size == 12
        if again and not Path(self.options.once).exists():
            Path(self.options.once).touch()
            again = False
        try:
            self.held = mmap.mmap(-1, tokens * 2**23 * (2 if again else 1))
        except OSError as error:
            raise MemoryError(str(error)) from error
"""
"""A plugin that maps 8 MiB for each token, where those of 200 are left: so much that other memory
makes no difference.

With `once`, a file, a batch of 12 fits only before the file exists.
"""

SCENARIO = """\
name: hungry
model: {use: null}
data: {use: null, sequence_length: 16}
train: {micro_batch_size: 2}
optimizer: {use: null}
engine: {use: null}
metrics: []
launcher: forking
stacks:
  baseline: [hungry]
  breaks: [{use: hungry, breaks_at: 8}]
  sets: {set: {train.micro_batch_size: 1}}
measure: {warmup: 1, steps: 2}
"""


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The plugin is installed, and a launcher that imports nothing."""
    folder = tmp_path_factory.mktemp("site")
    install(folder, "accel-bench-hungry", {"hungry": "Hungry"}, HUNGRY)
    with forking(folder, trains=False):
        yield


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with the scenario."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hungry.yaml").write_text(SCENARIO, encoding="utf8")
    return tmp_path


def fit(*arguments: str) -> Done:
    """Search with the scenario."""
    return call("fit", "hungry.yaml", "--quiet", *arguments)


def document(*arguments: str, code: int = 0) -> dict[str, Any]:
    """The JSON document of a search that must end with the code."""
    done = fit("--format", "json", *arguments)
    assert done.code == code, done.err
    return dict(json.loads(done.out))


def stored() -> list[Result]:
    """All stored runs."""
    with open_store(Path("accel_bench_results"), write=False) as store:
        return store.results()


def test_the_largest_odd_batch_is_found_and_a_second_search_runs_nothing() -> None:
    document("--max", "8")
    assert len(stored()) == 3
    found = document()
    assert [one["value"] for one in found["points"]] == [2, 4, 8, 16, 12, 14, 13]
    assert [one["stored"] for one in found["points"]] == [True] * 3 + [False] * 4, "it goes on"
    assert (found["largest"]["value"], found["refused"]["value"]) == (12, 13)
    assert "the largest train.micro_batch_size that fits is 12 (" in found["answer"]
    assert "; 13 does not: out of memory in accelerate_model: " in found["answer"]
    runs = {run.experiment.scenario.train.micro_batch_size: run.status for run in stored()}
    assert {size for size, status in runs.items() if status is Status.OOM} == {13, 14, 16}
    assert sorted(runs) == [2, 4, 8, 12, 13, 14, 16]

    again = fit()
    assert len(stored()) == len(runs), "nothing was run again"
    assert found["answer"] in " ".join(again.out.split())
    assert again.out.count("(stored already)") == 7
    assert "13 does not fit: out of memory in accelerate_model" in again.out

    # Rounds are added to the winner alone; its first round counts.
    measured = document("--rounds", "3")
    assert len(stored()) == len(runs) + 2
    assert measured["largest"]["tokens_per_second"]["low"] is not None
    document("--max", "2", "--again")
    assert len(stored()) == len(runs) + 3


def test_a_length_is_found_with_a_global_batch_that_a_batch_would_not_divide() -> None:
    common = ("--set", "train.global_batch_size=2")
    found = document("--vary", "data.sequence_length", "--step", "16", "--from", "64", *common)
    assert (found["largest"]["value"], found["refused"]["value"]) == (96, 112)
    found = document("--set", "train.global_batch_size=4", "--from", "11", "--max", "11")
    assert found["largest"]["value"] == 11
    assert "train.gradient_accumulation=2" in found["notes"][0]
    used = stored()[-1].experiment.scenario.train
    assert used.gradient_accumulation == 2


def test_a_search_takes_the_place_of_a_sweep_over_its_key(folder: Path) -> None:
    swept = SCENARIO.replace(
        "train: {micro_batch_size: 2}", "sweep: {train.micro_batch_size: [3, 5]}"
    )
    (folder / "hungry.yaml").write_text(swept, encoding="utf8")
    found = document("--max", "4")
    assert [one["value"] for one in found["points"]] == [3, 4]


def test_a_gap_is_searched_where_the_largest_runs_out_of_memory_in_a_later_round(
    tmp_path: Path,
) -> None:
    once = f"stacks.baseline.hungry.once={tmp_path / 'seen'}"
    found = document("--from", "6", "--rounds", "2", "--set", once)
    assert (found["largest"]["value"], found["refused"]["value"]) == (11, 12)
    assert found["refused"]["reason"].startswith("it fits in 1 of 2 rounds: out of memory in acc")
    assert found["largest"]["tokens_per_second"]["low"] is not None
    outcomes = {one["value"]: one["outcome"] for one in found["points"]}
    assert list(outcomes) == [6, 12, 24, 18, 15, 13, 9, 10, 11]
    assert outcomes[12] == "does not hold"


def test_another_failure_ends_the_search_with_its_reason() -> None:
    found = document("--stack", "breaks", code=1)
    assert [one["outcome"] for one in found["points"]] == ["holds", "holds", "not tested"]
    assert "ended at 8, which failed for another reason than memory" in found["answer"]
    assert "broken on purpose" in found["answer"]
    assert found["refused"] is None


def test_what_cannot_be_searched_is_named_before_anything_runs() -> None:
    for arguments, problem in (
        (("--vary", "train.precision"), "--vary train.precision: it is 'as-is' here"),
        (("--vary", "nothing.like_it"), "has no value here"),
        (("--stack", "sets", "--from", "4"), "has no effect: the stack sets it to 1"),
        (("--stack", "none"), "no stack is called 'none'"),
        (("--set", "sweep.data.sequence_length=[8, 16]"), "choose it with --set KEY=VALUE"),
    ):
        done = fit(*arguments)
        assert done.code == 2, done.out
        assert problem in done.err
    assert not Path("accel_bench_results/results.sqlite").exists() or not stored()
