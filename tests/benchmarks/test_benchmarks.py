"""The benchmarks work and say what their page says; what they measure is nobody's test."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

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


def test_the_command_prints_one_document_with_every_sample_and_the_machine() -> None:
    entries = run_benchmarks("help", "listing", "harness")
    assert list(entries) == ["help", "listing", "harness"]
    for entry in entries.values():
        assert set(entry) == FIELDS
        assert entry["met"] is (entry["value"] <= entry["goal"])
        assert all(len(samples) == 1 for samples in entry["samples"].values())
        assert entry["machine"]["cores"] >= 1
        assert "host" not in entry["machine"]


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


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    done = python("benchmarks", "helf")
    assert done.returncode == 2
    assert "unknown: helf; known: help, listing" in done.stderr


# The script for a GPU: one small run of its sections on a CPU, of which each test reads a document.

SECTIONS = (
    *("correctness", "llama-2-7b-lora", "numbers", "overhead", "out-of-memory", "quickstart"),
    "floor",
)
"""Those that are run unless others are named, and the shortest of those that must be named."""


@pytest.fixture(scope="module")
def gpu_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the script's documents."""
    folder = tmp_path_factory.mktemp("gpu")
    arguments = ("--device", "cpu", "--small", "--seconds", "1500", "--output", str(folder))
    done = python("benchmarks.gpu", *arguments, *SECTIONS, seconds=1600)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def read(folder: Path, section: str) -> Any:
    """Return the document of a section."""
    return json.loads((folder / f"{section}.json").read_text())


def overhead(folder: Path, name: str) -> dict[str, Any]:
    """Return an entry of the section that runs the benchmarks."""
    (entry,) = [one for one in read(folder, "overhead")["entries"] if one["name"] == name]
    return entry


pytestmark = pytest.mark.timeout(1800)


def test_every_section_passes_on_a_cpu_and_no_other_is_run_unless_it_is_named(
    gpu_results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read(gpu_results, "summary")["sections"]
    assert [section["name"] for section in found if section["passed"]] == list(SECTIONS)
    assert len(list(gpu_results.iterdir())) <= len(SECTIONS) + 3
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.gpu_sections import sections

    asked = argparse.Namespace(device="cpu", small=True, only=[], output=gpu_results)
    usual = [one.name for one in sections(asked, gpu_results) if not one.on_request]
    assert usual == list(SECTIONS[:-1])


def test_the_engine_is_checked_on_a_cpu_too(gpu_results: Path) -> None:
    found = read(gpu_results, "correctness")
    assert found["loss_falls"] is True
    assert found["harness_adds_synchronisations"] == 0
    assert found["at_its_end"] == 1


def test_out_of_memory_is_provoked(gpu_results: Path) -> None:
    assert read(gpu_results, "out-of-memory")["experiments"][0]["status"] == "oom"


def test_the_stopwatch_waits_for_the_device_once_and_only_when_the_window_has_ended(
    gpu_results: Path,
) -> None:
    entry = overhead(gpu_results, "synchronisations")
    assert entry["value"] == 0
    assert entry["met"] is True
    assert entry["samples"]["in_window_synchronisations"] == [0]
    assert entry["samples"]["in_window_loss_reads"] == [0]
    assert entry["samples"]["at_its_end_synchronisations"] == [1]


def test_the_engine_and_the_bare_loop_train_the_same_model_in_turns(gpu_results: Path) -> None:
    entry = overhead(gpu_results, "engine")
    sides = ("engine", "bare", "bare_again")
    assert set(entry["samples"]) == {f"{side}_tokens_per_second" for side in sides}
    assert entry["value"] > 0
    assert entry["goal"] is None
    assert entry["met"] is None


def test_what_a_named_section_finds_is_packed_into_one_file(gpu_results: Path) -> None:
    with tarfile.open(gpu_results / "everything.tar.gz") as archive:
        floor, names = archive.extractfile("documents/floor.json"), archive.getnames()
        assert floor is not None
        assert floor.read() == (gpu_results / "floor.json").read_bytes()
    assert "documents/summary.json" in names
    assert not any("everything" in name or "cache" in name for name in names)


def test_a_section_for_which_no_time_is_left_is_recorded_as_failed(tmp_path: Path) -> None:
    arguments = ("--device", "cpu", "--small", "--seconds", "0", "--output", str(tmp_path))
    done = python("benchmarks.gpu", *arguments, "correctness", "overhead")
    assert done.returncode == 1
    summary = read(tmp_path, "summary")
    assert [section["line"] for section in summary["sections"]] == ["no time was left"] * 2
    assert "FAILED" in done.stdout
