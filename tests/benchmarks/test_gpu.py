"""The script for a GPU: one small run of its sections on a CPU, of which each test reads a part.

The commands of most sections are run in this process, which has imported torch already; what
`accel-bench run` starts are real processes. `OWN_PROCESS` are run as the script runs them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import runpy
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.program import call

from accel_bench.testing import run_scenario

ROOT = Path(__file__).resolve().parents[2]

# A change to what the script calls is seen by the tests of the benchmarks and of the kit; what only
# the whole script shows is seen before a release, and before a GPU is used.
pytestmark = [
    pytest.mark.release,
    pytest.mark.timeout(1800),
    # What torch and transformers say while they train is not ours to mend.
    pytest.mark.filterwarnings("ignore"),
]

USUAL = ("correctness", "llama-2-7b-lora", "numbers", "overhead", "out-of-memory")
NAMED = ("floor", "profile-parts", "micro")
SECTIONS = (*USUAL, *NAMED)
"""Those that are run here, of those that must be named some short ones."""

OWN_PROCESS = ("out-of-memory", "micro")
"""Sections that limit their process, or run pytest in it."""

BY_ITSELF = "quickstart"
"""A further one that is run unless others are named: a comparison as llama-2-7b-lora is."""


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    """`benchmarks` is no part of the distribution; the script sets PYTHONPATH for its commands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        patch.setenv("PYTHONPATH", "")
        yield


def run_script(*arguments: str) -> tuple[int, str]:
    """Run the script in this process; return its exit code and what it printed."""
    from benchmarks import gpu

    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--small", *arguments])
        code = gpu.main()
    return code, printed.getvalue()


def run_here(section: Any, printed: Any, log: Any, limit: float) -> str:
    """Run the command of a section in this process; what it prints is its document."""
    _, dash_m, module, *arguments = section.command
    assert (dash_m, limit > 0) == ("-m", True)
    written = io.StringIO()
    if module == "accel_bench":
        done = call(*arguments)
        printed.write(done.out.encode())
        log.write(done.err.encode())
        return f"exit code {done.code}"
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(written):
        patch.setattr(sys, "argv", [module, *arguments])
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    printed.write(written.getvalue().encode())
    return "exit code 0"


@pytest.fixture(scope="module")
def gpu_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the script's documents."""
    from benchmarks import gpu

    folder = tmp_path_factory.mktemp("gpu")
    of_the_script = gpu.run_command

    def run_command(section: Any, *rest: Any) -> str:
        runs = of_the_script if section.name in OWN_PROCESS else run_here
        return runs(section, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "run_command", run_command)
        code, printed = run_script("--seconds", "1500", "--output", str(folder), *SECTIONS)
    assert code == 0, printed + (folder / "log.txt").read_text()
    return folder


def read(folder: Path, section: str) -> Any:
    """Return the document of a section."""
    return json.loads((folder / f"{section}.json").read_text())


def overhead(folder: Path, name: str) -> dict[str, Any]:
    """Return an entry of the section that runs the benchmarks."""
    (entry,) = [one for one in read(folder, "overhead")["entries"] if one["name"] == name]
    return entry


def usual_sections(folder: Path) -> dict[str, Any]:
    """Sections that are run unless others are named, by name."""
    from benchmarks.gpu_sections import sections

    asked = argparse.Namespace(
        device="cpu", small=True, only=[], settings=[], rounds=None, output=folder
    )
    return {one.name: one for one in sections(asked, folder) if not one.on_request}


def test_every_section_passes_on_a_cpu_and_no_other_is_run_unless_it_is_named(
    gpu_results: Path,
) -> None:
    found = read(gpu_results, "summary")["sections"]
    assert [section["name"] for section in found if section["passed"]] == list(SECTIONS)
    assert len(list(gpu_results.iterdir())) <= len(SECTIONS) + 3
    assert list(usual_sections(gpu_results)) == [*USUAL, BY_ITSELF]


def test_the_settings_of_the_quickstart_s_section_let_every_stack_train(tmp_path: Path) -> None:
    _, _, module, *arguments = usual_sections(tmp_path)[BY_ITSELF].command
    assert module == "accel_bench"
    assert call(*arguments, "--dry-run").code == 0
    pairs = [word.partition("=") for word in arguments if "=" in word]
    settings = {key: json.loads(value) if value.isdigit() else value for key, _, value in pairs}
    found = run_scenario("quickstart", settings=settings)
    assert len(found) > 2
    assert all(result.status.completed for result in found.values()), found


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


def test_a_profile_s_parts_are_recorded_and_nsight_s_marks_say_that_they_need_a_gpu(
    gpu_results: Path,
) -> None:
    found = read(gpu_results, "profile-parts")
    assert found["memory"][0]["peak_bytes"] > found["memory"][0]["saved_bytes"] > 0
    assert {one["reason"] for one in found["fields"]} == {"rank 0 used no GPU"}
    (refusal,) = found["nsight"]["warnings"]
    assert refusal.startswith("error: stack 'lora': --nvtx marks steps for Nsight, which records C")


def test_chosen_micro_benchmarks_are_checked_and_timed_twice(gpu_results: Path) -> None:
    cells = read(gpu_results, "micro")["cells"]
    assert len(cells) == 6
    assert {one["flush"] for one in cells} == {False, True}
    assert all(0 <= one["distance"] <= one["tolerance"] for one in cells)
    assert not any(one["cache_flushed"] for one in cells), "a CPU's is not"


def test_what_a_named_section_finds_is_packed_into_one_file(gpu_results: Path) -> None:
    with tarfile.open(gpu_results / "everything.tar.gz") as archive:
        floor, names = archive.extractfile("documents/floor.json"), archive.getnames()
        assert floor is not None
        assert floor.read() == (gpu_results / "floor.json").read_bytes()
    assert "documents/summary.json" in names
    assert not any("everything" in name or "cache" in name for name in names)


def test_a_section_for_which_no_time_is_left_is_recorded_as_failed(tmp_path: Path) -> None:
    arguments = ("--seconds", "0", "--output", str(tmp_path))
    code, printed = run_script(*arguments, "correctness", "overhead")
    assert code == 1
    summary = read(tmp_path, "summary")
    assert [section["line"] for section in summary["sections"]] == ["no time was left"] * 2
    assert "FAILED" in printed
