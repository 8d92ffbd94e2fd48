"""The script for a GPU: one small run of its sections on a CPU, of which each test reads a part."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

SECTIONS = (
    *("correctness", "llama-2-7b-lora", "numbers", "overhead", "out-of-memory", "quickstart"),
    "floor",
)
"""Those that are run unless others are named, and the shortest of those that must be named."""


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script from the checkout, as a user does."""
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=1600, check=False
    )


@pytest.fixture(scope="module")
def gpu_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the script's documents."""
    folder = tmp_path_factory.mktemp("gpu")
    arguments = ("--device", "cpu", "--small", "--seconds", "1500", "--output", str(folder))
    done = run_script(*arguments, *SECTIONS)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def read(folder: Path, section: str) -> Any:
    """Return the document of a section."""
    return json.loads((folder / f"{section}.json").read_text())


def overhead(folder: Path, name: str) -> dict[str, Any]:
    """Return an entry of the section that runs the benchmarks."""
    (entry,) = [one for one in read(folder, "overhead")["entries"] if one["name"] == name]
    return entry


def test_every_section_passes_on_a_cpu_and_no_other_is_run_unless_it_is_named(
    gpu_results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read(gpu_results, "summary")["sections"]
    assert [section["name"] for section in found if section["passed"]] == list(SECTIONS)
    assert len(list(gpu_results.iterdir())) <= len(SECTIONS) + 3
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.gpu_sections import sections

    asked = argparse.Namespace(
        device="cpu", small=True, only=[], settings=[], rounds=None, output=gpu_results
    )
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
    done = run_script(*arguments, "correctness", "overhead")
    assert done.returncode == 1
    summary = read(tmp_path, "summary")
    assert [section["line"] for section in summary["sections"]] == ["no time was left"] * 2
    assert "FAILED" in done.stdout
