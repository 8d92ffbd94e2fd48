"""`accel-bench plugins new`: its plugin is installed, listed, checked, run, tested, removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from cli.program import call

SCENARIO = """\
model: {overrides: {num_hidden_layers: 2}}
data: {sequence_length: 32}
measure: {warmup: 1, steps: 2, rounds: 1}
"""
"""Scenario of a few seconds."""


def test_what_was_written_and_what_comes_next_is_said(tmp_path: Path) -> None:
    done = call("plugins", "new", "mine", "--hook", "finish_metrics", "--output", str(tmp_path))
    assert done.code == 0, done.err
    first, second = done.out.splitlines()
    folder = tmp_path / "accel-bench-mine"
    assert first == f"written: {folder} with the hooks start_metrics, finish_metrics"
    assert second == f"next: pip install -e '{folder}[test]' and pytest {folder}; README.md goes on"
    written = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))
    assert written == [
        "README.md",
        "accel_bench_mine/__init__.py",
        "accel_bench_mine/py.typed",
        "pyproject.toml",
        "tests/test_accel_bench_mine.py",
    ]


def test_the_hooks_that_can_be_written_are_listed_without_a_name() -> None:
    done = call("plugins", "new", "--hook", "list")
    assert done.code == 0, done.err
    assert "accelerate_model (all plugins): Return the accelerated model" in done.out
    assert "load_data (one answer, data): Return the dataset" in done.out
    assert "record_result" not in done.out  # It is copied from a page of the documentation.
    assert max(map(len, done.out.splitlines())) < 80
    assert call("plugins", "new").code == 2


def test_a_name_that_is_taken_ends_with_code_2(tmp_path: Path) -> None:
    done = call("plugins", "new", "lora", "--output", str(tmp_path))
    assert done.code == 2
    assert "the plugin 'lora' is installed already, by accel-bench" in done.err


def test_the_readme_tells_the_five_steps(tmp_path: Path) -> None:
    call("plugins", "new", "mine", "--output", str(tmp_path))
    text = (tmp_path / "accel-bench-mine" / "README.md").read_text()
    assert [f"{number}. " in text for number in range(1, 7)] == [True] * 5 + [False]
    assert "accel-bench run --plugin mine" in text
    assert "$" not in text


class Environment:
    """A fresh environment that sees the packages of this one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run([sys.executable, "-m", "venv", "--system-site-packages", str(folder)])
        # This environment may be virtual itself: then the new one sees the one below it alone.
        site = next(folder.glob("lib/python*/site-packages"))
        line = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
        (site / "outer.pth").write_text(line)

    def python(self, *arguments: str, cwd: Path | None = None) -> str:
        """Run the environment's Python; return its output. Fails the test on an error."""
        return self._run([str(self.folder / "bin" / "python"), *arguments], cwd)

    def program(self, *arguments: str, cwd: Path | None = None) -> str:
        """Run accel-bench in the environment."""
        return self.python("-m", "accel_bench", *arguments, cwd=cwd)

    def names(self) -> set[str]:
        """Names of listed plugins."""
        return {row["name"] for row in json.loads(self.program("plugins", "--format", "json"))}

    @staticmethod
    def _run(command: list[str], cwd: Path | None = None) -> str:
        variables = {**os.environ, "GIT_DIR": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        variables.pop("PYTHONPATH", None)
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=cwd, env=variables, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.mark.release
def test_a_new_plugin_is_installed_listed_checked_run_tested_and_removed(tmp_path: Path) -> None:
    fresh = Environment(tmp_path / "venv")
    assert "afternoon" not in fresh.names()
    fresh.program("plugins", "new", "afternoon", "--output", str(tmp_path))
    project = tmp_path / "accel-bench-afternoon"
    install = ("install", "--quiet", "--no-deps", "--no-build-isolation")
    fresh.python("-m", "pip", *install, str(project))
    assert "afternoon" in fresh.names()
    assert fresh.program("plugins", "check", "afternoon").strip() == "afternoon: ok"
    (tmp_path / "tiny.yaml").write_text(SCENARIO)
    arguments = ("run", "tiny.yaml", "--plugin", "afternoon", "-q", "--format", "json")
    document = json.loads(fresh.program(*arguments, cwd=tmp_path))
    stacks = {row["stack"]: row for row in document["experiments"]}
    assert stacks["afternoon"]["status"] == "ok", stacks["afternoon"]["reasons"]
    assert stacks["afternoon"]["evidence"]["afternoon"]["counted_modules"] > 10
    assert "2 passed" in fresh.python("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=project)
    fresh.python("-m", "pip", "uninstall", "--quiet", "--yes", "accel-bench-afternoon")
    assert "afternoon" not in fresh.names()
