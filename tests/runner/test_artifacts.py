"""What lies in a run's folder: logs of bounded size without secrets, and the list of packages."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

from accel_bench.documents.redaction import Redactor
from accel_bench.runner import artifacts
from accel_bench.runner.artifacts import log_tail, packages_list, redact_file

SECRET = "canary-0123456789"


@pytest.fixture
def redactor() -> Redactor:
    return Redactor.from_environment({"HF_TOKEN": SECRET})


def test_a_file_without_secrets_stays_as_it_is(tmp_path: Path, redactor: Redactor) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"plain \xff bytes"[:5] + b"\n")
    before = path.stat().st_ino
    redact_file(path, redactor, shorten=True)
    assert path.stat().st_ino == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_secret_across_two_blocks_is_taken_out(
    tmp_path: Path, redactor: Redactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "BLOCK_BYTES", 10)
    path = tmp_path / "log"
    path.write_text(f"some {SECRET} words\nand more\n")
    redact_file(path, redactor, shorten=True)
    assert SECRET not in path.read_text()
    assert path.read_text().endswith("words\nand more\n")


def test_a_very_long_log_keeps_its_beginning_and_its_end(
    tmp_path: Path, redactor: Redactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "KEPT_BYTES", 100)
    monkeypatch.setattr(artifacts, "BLOCK_BYTES", 10)
    path = tmp_path / "log"
    path.write_text("".join(f"line {number}\n" for number in range(1000)))
    redact_file(path, redactor, shorten=True)
    text = path.read_text()
    assert text.startswith("line 0\n")
    assert text.endswith("line 999\n")
    assert "bytes left out]" in text
    assert len(text) < 300


@pytest.mark.parametrize("before", ["", "first\n"])
def test_one_very_long_line_is_bounded_and_shows_no_part_of_a_secret(
    tmp_path: Path, redactor: Redactor, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    monkeypatch.setattr(artifacts, "KEPT_BYTES", 1000)
    monkeypatch.setattr(artifacts, "EDGE_CHARACTERS", 100)
    path = tmp_path / "log"
    for place in range(980, 1000):  # the cut is in the secret, at each of its characters
        line = before + "x" * (place - len(before)) + SECRET
        path.write_text(line + "y" * 20_000 + SECRET + "z" * (1980 - place) + "\n")
        redact_file(path, redactor, shorten=True)
        text = path.read_text()
        assert len(text) < 2000
        assert "canary" not in text and "6789" not in text
        assert text.startswith(f"{before}x")
        assert text.endswith("z\n")
        assert "bytes left out]\n" in text


def test_what_is_not_to_be_shortened_stays_whole(
    tmp_path: Path, redactor: Redactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "KEPT_BYTES", 100)
    path = tmp_path / "log"
    path.write_text(SECRET + "x" * 1000)
    redact_file(path, redactor, shorten=False)
    assert path.read_text().endswith("x" * 1000)


def test_the_tail_of_a_missing_log_is_empty(tmp_path: Path) -> None:
    assert log_tail(tmp_path / "nothing") == ""


def test_the_list_of_packages_pins_each_distribution_once_and_marks_checkouts() -> None:
    lines = packages_list().splitlines()
    assert f"pydantic=={metadata.version('pydantic')}" in lines
    names = [line.partition("==")[0].lower() for line in lines]
    assert names == sorted(set(names))
    (own,) = (line for line in lines if line.startswith("accel-bench=="))
    version = re.escape(metadata.version("accel-bench"))
    assert re.fullmatch(rf"accel-bench=={version}( @ [0-9a-f]{{7,40}}(\+dirty\S*)?)?", own)
