"""The folder of caches is this user's own, and never part of a results folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from runner.job_factory import make_job

from accel_bench.errors import StoreError
from accel_bench.machine.caches import cache_folder
from accel_bench.machine.info import read_machine
from accel_bench.runner.attempt import make_attempt


def test_a_results_folder_of_somebody_else_brings_no_cache(tmp_path: Path) -> None:
    root = tmp_path / "results"
    (root / "cache" / "inductor").mkdir(parents=True)
    job = make_job(tmp_path)
    made = make_attempt(root, tmp_path, "s", read_machine(), experiment=job.experiment)
    assert Path(made.job.cache_folder) == cache_folder()
    assert not cache_folder().is_relative_to(root)


@pytest.mark.parametrize(
    ("variables", "where"),
    [
        ({"ACCEL_BENCH_CACHE": "mine"}, "mine"),
        ({"ACCEL_BENCH_CACHE": "./mine/."}, "mine"),
        ({"XDG_CACHE_HOME": "{}/xdg"}, "xdg/accel-bench"),
        ({"XDG_CACHE_HOME": "relative"}, "home/.cache/accel-bench"),
        ({}, "home/.cache/accel-bench"),
    ],
)
def test_it_is_made_for_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], where: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("ACCEL_BENCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    assert cache_folder() == cache_folder() == tmp_path / where
    assert cache_folder().stat().st_mode & 0o777 == 0o700


def test_a_link_and_a_folder_that_others_can_enter_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    for name, why in (("open", "chmod 700"), ("link", "is a link"), ("file", "cannot be made")):
        monkeypatch.setenv("ACCEL_BENCH_CACHE", str(tmp_path / name))
        with pytest.raises(StoreError, match=rf"{name}.*{why}.*ACCEL_BENCH_CACHE"):
            cache_folder()


@pytest.mark.parametrize("chosen", ["", "~/mine"])
def test_without_a_home_no_folder_called_tilde_is_made(
    homeless: Path, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    monkeypatch.setenv("ACCEL_BENCH_CACHE", chosen)
    with pytest.raises(StoreError, match=r"'~.* no home folder here; let ACCEL_BENCH_CACHE name"):
        cache_folder()
    assert list(homeless.iterdir()) == []


def test_a_file_system_without_modes_is_named_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mkdir(path: Path, mode: int = 0o777) -> None:
        really(path)
        path.chmod(0o755)

    really = os.mkdir
    monkeypatch.setattr(os, "mkdir", mkdir)
    monkeypatch.setenv("ACCEL_BENCH_CACHE", str(tmp_path / "caches"))
    for _ in range(2):
        with pytest.raises(StoreError, match="does not keep owners or modes; let ACCEL_BENCH"):
            cache_folder()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_the_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCEL_BENCH_CACHE", str(tmp_path / "theirs"))
    os.chown(cache_folder(), 12345, 12345)
    with pytest.raises(StoreError, match="another user"):
        cache_folder()
