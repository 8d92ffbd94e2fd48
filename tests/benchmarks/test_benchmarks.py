"""The benchmarks work and say what their page says; what they measure is nobody's test."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import PlanRequest, make_plan
from accel_bench.scenario.find import read_draft
from accel_bench.worker.clocks import HostClock
from accel_bench.worker.heartbeat import Heartbeat
from accel_bench.worker.stopwatch import WindowStopwatch

ROOT = Path(__file__).resolve().parents[2]

FIELDS = {
    *("name", "value", "interval", "unit", "goal", "goal_is", "right_verdicts", "comparison"),
    *("met", "notes", "samples", "machine"),
}


def python(*arguments: str, seconds: float = 200) -> subprocess.CompletedProcess[str]:
    """Run a module of the checkout as a user does."""
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
    )


def run_benchmarks(*names: str) -> dict[str, dict[str, Any]]:
    """Run some with tiny counts; their entries by name."""
    done = python("benchmarks", *names, "--quick")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["quick"] is True
    return {entry["name"]: entry for entry in document["entries"]}


@pytest.mark.parametrize(
    "names",
    [("help", "listing"), pytest.param(("help", "harness"), marks=pytest.mark.release)],
    ids=" ".join,
)
def test_the_command_prints_one_document_with_every_sample_and_the_machine(
    names: tuple[str, ...],
) -> None:
    entries = run_benchmarks(*names)
    assert list(entries) == [*names]
    for entry in entries.values():
        assert set(entry) == FIELDS
        assert entry["met"] is (entry["value"] <= entry["goal"])
        assert all(len(samples) == 1 for samples in entry["samples"].values())
        assert entry["machine"]["cores"] >= 1
        assert "host" not in entry["machine"]


@pytest.mark.release
def test_the_store_is_measured_with_few_rows_too() -> None:
    entries = run_benchmarks("store")
    assert {"store-look-up", "store-filter-and-aggregate", "store-insert"} <= set(entries)
    assert {"store-summary-over-scan", "store-summary-peak"} <= set(entries)
    assert all(entry["value"] > 0 for entry in entries.values())


def test_the_watched_clock_sees_a_stopwatch_that_waits_in_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.watched_clock import WatchedClock

    clock = WatchedClock(HostClock())
    stopwatch = WindowStopwatch(
        clock,
        Heartbeat(tmp_path / "heartbeat"),
        warmup=2,
        steps=6,
        before_window=clock.open,
        synchronize_each=True,
    )
    stopwatch.start()
    while stopwatch.running:
        stopwatch.lap([], 0.0)
    assert clock.waits("synchronize") == (6, 1)


def test_the_engines_train_in_turns_and_their_ratio_has_an_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.entry import Counts
    from benchmarks.hf_trainer import measure_hf_trainer

    entry = measure_hf_trainer(Counts(windows=2, steps=1))
    sides = ("hf_trainer", "torch", "torch_again")
    assert set(entry.samples) == {f"{side}_step_seconds" for side in sides}
    assert all(len(samples) == 2 for samples in entry.samples.values())
    assert entry.interval is not None
    assert entry.interval[0] <= entry.value <= entry.interval[1]


def test_a_benchmark_that_breaks_is_named_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.__main__ import BENCHMARKS, main

    def broken(*_: object) -> None:
        raise RuntimeError("no such device")

    monkeypatch.setitem(BENCHMARKS, "listing", broken)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["listing", "synchronisations", "--quick", "--output", "found.json"])
    assert ended.value.code == 1
    document = json.loads(Path("found.json").read_text())
    assert document["failed"] == {"listing": "RuntimeError: no such device"}
    assert [entry["name"] for entry in document["entries"]] == ["synchronisations"]
    assert "no such device" in capsys.readouterr().err


def test_an_unknown_name_is_refused_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.__main__ import main

    with pytest.raises(SystemExit) as ended:
        main(["helf"])
    assert ended.value.code == 2
    assert "unknown: helf; known: help, listing" in capsys.readouterr().err


def test_waiting_is_compared_on_one_and_two_threads_compiled_or_not() -> None:
    draft = read_draft(ROOT / "benchmarks" / "openmp-waiting.yaml")
    planned = make_plan(draft, read_machine(), PlanRequest()).planned
    found = {
        (
            one.experiment.scenario.resources.threads,
            bool(one.experiment.stack.uses),
            *one.experiment.scenario.environment.items(),
        )
        for one in planned
    }
    policies = (
        ("GOMP_SPINCOUNT", "300000"), ("GOMP_SPINCOUNT", "10000"), ("OMP_WAIT_POLICY", "passive"),
    )  # fmt: skip
    assert found == set(product((1, 2), (False, True), policies))


def test_probes_of_memory_are_compared_with_none_on_the_same_training() -> None:
    draft = read_draft(ROOT / "benchmarks" / "memory-probes.yaml")
    planned = make_plan(draft, read_machine(), PlanRequest()).planned
    assert {
        one.experiment.stack.name: [use.use for use in one.experiment.scenario.metrics]
        for one in planned
    } == {"baseline": [], "memory": ["memory"]}


@pytest.mark.release
def test_probes_of_memory_have_a_ratio_of_steps_and_of_whole_processes() -> None:
    entries = run_benchmarks("memory")
    assert set(entries) == {"memory-steps", "memory-run"}
    assert entries["memory-steps"]["met"] is None, "one round carries no verdict"
    assert set(entries["memory-run"]["samples"]) == {"baseline_run_seconds", "memory_run_seconds"}
    assert entries["memory-run"]["value"] > 0


def test_micro_benchmarks_have_samples_rates_and_their_share_of_a_roofline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of them, eager: a compiler would take longer than all others of this file."""
    from accel_bench_op import find_benchmarks

    from benchmarks import micro
    from benchmarks.entry import QUICK, Request

    chosen = {name: find_benchmarks()[name] for name in ("layer_norm", "adamw_step", "llama")}
    monkeypatch.setattr(micro, "SIDES", ("eager",))
    monkeypatch.setattr(micro, "find_benchmarks", lambda: chosen)
    entries = {entry.name: entry for entry in micro.measure_micro(Request(QUICK))}
    kinds = ("inference", "forward", "backward")
    expected = {f"layer_norm[{kind}-gpt2]" for kind in kinds} | {"adamw_step[inference-gpt2]"}
    assert set(entries) == expected
    for entry in entries.values():
        assert entry.value == 1e3 * entry.samples["eager_seconds"][0] > 0
        assert "128 tokens, float32" in entry.notes[0]
        assert "GB/s" in entry.notes[1] and "of the roofline measured here" in entry.notes[1]
    left = entries.pop("layer_norm[forward-gpt2]")
    (again,) = micro.measure_micro(Request(QUICK, known=entries))
    assert again.name == left.name, "only what is missing is measured"


def test_a_document_is_written_as_it_grows_and_goes_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import recommend
    from benchmarks.__main__ import main
    from benchmarks.entry import read_document

    path = tmp_path / "recommend.json"
    monkeypatch.setattr(recommend, "PIECE", 1)
    plain, seeds = recommend.regret_of, []

    def interrupted(seed: int, noise: float) -> float:
        if len(seeds) == 4:
            raise KeyboardInterrupt
        seeds.append(seed)
        return plain(seed, noise)

    monkeypatch.setattr(recommend, "regret_of", interrupted)
    command = ["recommend", "--quick", "--output", str(path)]
    with pytest.raises(KeyboardInterrupt):
        main(command)
    first = read_document(path).by_name
    sizes = {name: len(entry.samples["regret"]) for name, entry in first.items()}
    assert sizes == {"recommend-noise-0.2": 3, "recommend-noise-1": 1}
    monkeypatch.setattr(recommend, "regret_of", lambda seed, noise: seeds.append(seed) or 0.5)
    main([*command, "--resume"])
    assert seeds == [0, 1, 2, 0, *(1, 2), *(0, 1, 2)]
    whole = read_document(path)
    assert whole.by_name["recommend-noise-0.2"] == first["recommend-noise-0.2"]
    regrets = whole.by_name["recommend-noise-1"].samples["regret"]
    assert regrets == (*first["recommend-noise-1"].samples["regret"], 0.5, 0.5)
    assert len(whole.by_name["recommend-noise-3-followed"].samples["regret"]) == 3
    assert whole.failed == {}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--resume"], "goes on with a file"),
        (["--resume", "--output", "quick.json"], "was measured with --quick"),
    ],
)
def test_what_cannot_be_gone_on_with_is_refused(
    arguments: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.__main__ import main

    monkeypatch.chdir(tmp_path)
    main(["synchronisations", "--quick", "--output", "quick.json"])
    with pytest.raises(SystemExit) as ended:
        main(["synchronisations", *arguments])
    assert reason in f"{capsys.readouterr().err} {ended.value.code}"
