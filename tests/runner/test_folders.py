"""Folders of attempts lie inside the root under safe names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from accel_bench.documents.files import slug
from accel_bench.errors import StoreError
from accel_bench.runner.artifacts import run_folder

HOSTILE = [
    "../../etc/passwd",
    "/absolute/path",
    "..",
    ".",
    "",
    "line\nbreak",
    "nul\0byte",
    "n" * 300,
    "a/b",
    "a\\b",
    "~root",
    "$(reboot)",
    "héllo wörld",
    "\udcff",
    "-rf",
    ".hidden",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_name_becomes_a_plain_one(text: str) -> None:
    name = slug(text)
    assert re.fullmatch(r"[A-Za-z0-9_+][A-Za-z0-9._+-]{0,99}", name)
    assert ".." not in name


@pytest.mark.parametrize("text", ["nf4", "gptq+fused-kernels", "seq_2048-r0.a1", "n" * 100])
def test_a_plain_name_stays_as_it_is(text: str) -> None:
    assert slug(text) == text


def test_different_names_have_different_slugs() -> None:
    names = [*HOSTILE, "a-b", "a b", "n" * 301, "n" * 100, "absolute-path"]
    assert len({slug(name) for name in names}) == len(names)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_run_folder_of_any_name_lies_inside_the_root(tmp_path: Path, name: str) -> None:
    root = tmp_path / "results"
    folder = run_folder(root, name, name)
    assert folder.is_dir()
    assert folder.resolve().parent.parent == root / "runs"
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


def test_a_run_folder_is_never_used_twice(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "monday", "lora-r0-a0")
    assert folder == tmp_path / "runs" / "monday" / "lora-r0-a0"
    with pytest.raises(StoreError, match="never used twice"):
        run_folder(tmp_path, "monday", "lora-r0-a0")


@pytest.mark.parametrize("tag", HOSTILE)
def test_the_folder_of_a_sweep_point_lies_inside_that_of_the_session(
    tmp_path: Path, tag: str
) -> None:
    folder = run_folder(tmp_path, "monday", "lora", tag)
    expected = tmp_path / "runs" / "monday"
    assert folder.resolve() == (expected / slug(tag) if tag else expected) / "lora"


@pytest.mark.parametrize("link", ["runs", "runs/monday", "runs/monday/bs_4"])
def test_a_link_that_leads_out_of_the_root_is_refused(tmp_path: Path, link: str) -> None:
    root, outside = tmp_path / "results", tmp_path / "outside"
    outside.mkdir()
    (root / link).parent.mkdir(parents=True)
    (root / link).symlink_to(outside, target_is_directory=True)
    with pytest.raises(StoreError, match="leads out of"):
        run_folder(root, "monday", "lora", "bs_4")
    assert list(outside.iterdir()) == []
