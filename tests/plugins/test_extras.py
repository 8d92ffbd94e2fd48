"""`pip install 'accel-bench[gptq]'` as a user types it: from wheels, into an empty environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (ROOT, *sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml")))

pytestmark = pytest.mark.long


def run(*command: str | Path) -> str:
    """Run a program that must succeed, with nothing of this environment in sight."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "ACCEL"))}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(1800)
def test_the_extra_brings_the_plugin_with_all_that_it_needs(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    build = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation")
    for source in SOURCES:
        run(*build, "--wheel-dir", wheels, source)
    venv.create(tmp_path / "venv", with_pip=True)
    bin_folder = tmp_path / "venv" / "bin"
    install = (bin_folder / "python", "-m", "pip", "install", "--disable-pip-version-check")
    constraints = ("-c", ROOT / "constraints.txt")
    run(*install, *constraints, "--no-compile", "--find-links", wheels, "accel-bench[gptq]")
    listed = json.loads(run(bin_folder / "accel-bench", "plugins", "--format", "json"))
    plugin = {row["name"]: row for row in listed}["autogptq"]
    assert plugin["distribution"] == "accel-bench-gptq"
    assert plugin["unmet"] == []
    checked = json.loads(
        run(bin_folder / "accel-bench", "plugins", "check", "autogptq", "--format", "json")
    )
    assert checked["usable"], checked
