"""`accel-bench doctor`: a report on every machine, and its exit code."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from accel_bench_doctor import noise_floor
from cli.program import call, start, write_nulls
from fault_plugins.bare import lay_out
from fault_plugins.distribution import install

pytestmark = pytest.mark.long


def test_without_the_noise_it_reports_at_once_and_measures_nothing(tmp_path: Path) -> None:
    done = call("doctor", "--no-noise", "--format", "json", folder=tmp_path)
    found = json.loads(done.out)
    assert found["noise"] is None
    assert found["machine"]["versions"]["torch"]
    assert found["disks"]["results"]["path"] == str(tmp_path)
    assert done.code == (1 if found["incompatible"] else 0)
    assert done.err == ""
    assert list(tmp_path.iterdir()) == []


def test_people_get_the_same_as_a_table(tmp_path: Path) -> None:
    done = call("doctor", "--no-noise", folder=tmp_path)
    words = [line.split("  ")[0] for line in done.out.splitlines()]
    assert {"system", "memory", "python", "torch", "driver", "C compiler", "plugins"} <= set(words)
    assert "Noise:" not in done.out
    assert "Traceback" not in done.err


def test_a_known_incompatibility_ends_with_1_and_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    lay_out(tmp_path / "site", "amdsmi", "7.0")
    lay_out(tmp_path / "site", "ray", "2.60")
    # In a process of its own: this one has read already what is installed.
    done = start("doctor", "--no-noise", PYTHONPATH=str(tmp_path / "site"))
    assert done.code == 1
    assert "Does not go together:\n" in done.out
    assert "amdsmi 7.0, ray 2.60: where amdsmi is installed, `import ray` fails" in done.out
    assert "pip uninstall amdsmi" in done.out


def test_a_plugin_that_cannot_be_used_is_listed_with_its_reason(tmp_path: Path) -> None:
    install(tmp_path, "bench-other", {"other": "Other"}, "", ("accel-bench>=7", "absent"))
    done = call("doctor", "--no-noise", "--format", "json", PYTHONPATH=str(tmp_path))
    (other,) = [one for one in json.loads(done.out)["plugins"] if one["name"] == "other"]
    built_for, missing = other["unusable"]
    assert built_for.startswith("built for accel-bench>=7; ")
    assert missing == "absent is not installed"


def test_secrets_of_the_environment_stay_out_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "hf_abcdefghijklmnopqrstuvwxyz"
    folder.mkdir()
    variables = {"MY_API_TOKEN": folder.name, "ACCEL_BENCH_RESULTS": str(folder)}
    done = call("doctor", "--no-noise", "--format", "json", **variables)
    assert folder.name not in done.out


def test_a_noise_floor_that_cannot_be_measured_is_a_reason_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(**settings: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    done = call("doctor", "--format", "json")
    assert done.err.splitlines() == [
        "Measuring the noise of this machine; --no-noise omits it.",
    ]
    assert done.code == 1
    assert json.loads(done.out)["noise"]["problems"] == ["no room"]


def test_the_noise_floor_is_measured_by_ordinary_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten processes without torch; test_noise_floor.py trains the shipped scenario."""
    measure = "{warmup: 1, steps: 2, rounds: 5}"
    light = write_nulls(tmp_path, stacks="{baseline: []}", measure=measure)
    monkeypatch.setattr(noise_floor, "preset_path", lambda *_: light)
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    done = call("doctor", "--format", "json")
    found = json.loads(done.out)
    assert done.code == (1 if found["incompatible"] else 0), done.err
    noise = found["noise"]
    assert noise["rounds"] == 5
    assert noise["ratio"]["low"] <= noise["ratio"]["median"] <= noise["ratio"]["high"]
    assert noise["minimum_detectable_effect"] >= 0.01
    assert noise["words"]
    told, *progress = done.err.splitlines()
    assert told == "Measuring the noise of this machine; --no-noise omits it."
    assert any("round 1 of 5" in line and " left)" in line for line in progress)
    assert not list(folder.iterdir())
