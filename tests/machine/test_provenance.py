"""Which code a distribution is: its commit, and what differs from it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from accel_bench.machine.provenance import _sources_digest, git_state


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one committed file."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "code.py").write_text("a = 1\n")
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    for arguments in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(folder), *arguments], check=True)
    return folder


def state(folder: Path) -> str:
    """What the checkout is now."""
    git_state.cache_clear()
    return git_state(folder)


def test_a_clean_checkout_is_its_commit(checkout: Path) -> None:
    assert len(state(checkout)) == 10
    assert "dirty" not in state(checkout)


def test_a_changed_file_gives_another_state_for_each_content(checkout: Path) -> None:
    (checkout / "code.py").write_text("a = 2\n")
    first = state(checkout)
    (checkout / "code.py").write_text("a = 3\n")
    assert "dirty" in first
    assert state(checkout) != first


def test_an_untracked_file_gives_another_state_for_each_content(checkout: Path) -> None:
    (checkout / "new.py").write_text("b = 1\n")
    first = state(checkout)
    (checkout / "new.py").write_text("b = 2\n")
    assert "dirty" in first
    assert state(checkout) != first


def test_a_report_or_a_scenario_that_git_does_not_track_changes_no_state(checkout: Path) -> None:
    clean = state(checkout)
    (checkout / "accel-bench-report.html").write_text("<p>")
    (checkout / "my.yaml").write_text("name: mine\n")
    assert state(checkout) == clean


def test_sources_without_git_are_told_apart_by_their_content(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("a = 1\n")
    first = _sources_digest(tmp_path)
    (tmp_path / "code.py").write_text("a = 2\n")
    _sources_digest.cache_clear()
    assert _sources_digest(tmp_path) != first


def test_a_package_is_a_source_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "__init__.py").write_text("a = 1\n")
    first = _sources_digest(tmp_path)
    (tmp_path / "cache" / "__init__.py").write_text("a = 2\n")
    _sources_digest.cache_clear()
    assert _sources_digest(tmp_path) != first


@pytest.mark.parametrize("folder", ["gpu-results/works/cache/inductor/ab", ".venv", "cache"])
def test_modules_that_a_compiler_writes_are_no_sources(tmp_path: Path, folder: str) -> None:
    (tmp_path / "code.py").write_text("a = 1\n")
    first = _sources_digest(tmp_path)
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "generated.py").write_text("b = 1\n")
    _sources_digest.cache_clear()
    assert _sources_digest(tmp_path) == first


def test_an_environment_in_the_checkout_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / ".venv" / "lib").mkdir(parents=True)
    listed: list[Path] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (listed.append(Path(path)), scandir(path))[1])
    _sources_digest(tmp_path)
    assert sorted(listed) == [tmp_path, tmp_path / "package"]
