"""What the doctor prints for people."""

from __future__ import annotations

from pathlib import Path

import pytest
from accel_bench_doctor.checks import Conflict, TorchBuild, examine
from accel_bench_doctor.noise_floor import NoiseFloor
from accel_bench_doctor.view import examination_report, noise_report

from accel_bench.machine.info import read_machine
from accel_bench.report.formats import render_report
from accel_bench.scenario.environment import ABOUT_WAITING


def test_the_table_has_the_build_of_torch_and_each_conflict_its_remedy(tmp_path: Path) -> None:
    conflict = Conflict(found={"ray": "2.60", "apex": ""}, because="they fail", do="remove one")
    examined = examine(read_machine(), tmp_path).model_copy(
        update={"torch": TorchBuild(version="2.13.0", cuda="13.0"), "incompatible": (conflict,)}
    )
    text = render_report(examination_report(examined), "table")
    assert "2.13.0, built for CUDA 13.0\n" in text
    assert "Does not go together:\n\n  ray 2.60, apex -: they fail\n    remove one\n" in text
    assert "No known incompatibility" not in text
    without = examined.model_copy(update={"torch": None, "incompatible": ()})
    text = render_report(examination_report(without), "table")
    assert "torch  " in text
    assert "not installed\n" in text
    assert "No known incompatibility.\n" in text


def test_the_noise_floor_is_a_sentence_with_its_spread_load_and_problems() -> None:
    floor = NoiseFloor(words="It is quiet.", spread=0.02, load=("busy",), problems=("it broke",))
    text = render_report(noise_report(floor), "table")
    spread = "2 % spread of the step time across processes"
    assert text == f"Noise: It is quiet.\n\n{spread}\nbusy\nit broke\n"


def test_it_says_how_threads_wait_and_how_to_have_it_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ABOUT_WAITING:
        monkeypatch.delenv(name, raising=False)
    examined = examine(read_machine(), tmp_path)
    text = " ".join(render_report(examination_report(examined), "table").split())
    assert "OpenMP threads sleep while they wait (OMP_WAIT_POLICY=passive)" in text
    assert "environment.OMP_WAIT_POLICY: active" in text
    monkeypatch.setenv("GOMP_SPINCOUNT", "10000")
    text = " ".join(render_report(examination_report(examined), "table").split())
    assert "OpenMP threads wait as the environment says: GOMP_SPINCOUNT=10000" in text
