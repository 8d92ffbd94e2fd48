"""What lies in the working folder is not imported, whatever its name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fault_plugins.distribution import install_faulty
from faults.program import Program, null_scenario

from accel_bench import python_command

TRAP = "raise SystemExit('imported from the working folder')\n"
"""A module that ends whatever imports it."""


@pytest.fixture
def trapped(program: Program) -> Program:
    """A program in whose working folder modules have the names of others."""
    for name in ("json", "pickle", "random", "yaml"):
        (program.folder / f"{name}.py").write_text(TRAP, encoding="utf8")
    return program


def test_program_and_workers_import_nothing_from_the_working_folder(trapped: Program) -> None:
    finished = trapped.run(null_scenario({"baseline": [], "other": ["witness"]}), "--quiet")
    assert finished.code == 0, finished.err + finished.out
    assert [row.status.value for row in finished.results] == ["ok", "ok"]


@pytest.mark.box
def test_a_process_that_checks_a_plugin_imports_nothing_from_it_either(trapped: Program) -> None:
    finished = trapped.call("plugins", "check", "witness")
    assert finished.code == 0, finished.err + finished.out


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no safe path")
def test_a_foreign_accel_bench_in_the_folder_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "accel_bench.py").write_text(TRAP, encoding="utf8")
    command = python_command("-m", "accel_bench", "--version")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("accel-bench ")


@pytest.mark.box
def test_a_working_folder_that_pythonpath_names_is_imported_from(tmp_path: Path) -> None:
    install_faulty(tmp_path)
    assert Program(tmp_path, site=tmp_path).call("plugins", "check", "witness").code == 0


def test_a_program_that_imports_this_package_keeps_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "sibling.py").write_text("")
    (tmp_path / "theirs" / "__init__.py").write_text("import accel_bench\n")
    (tmp_path / "theirs" / "train.py").write_text("import sibling\n")
    command = [sys.executable, "-m", "theirs.train"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
