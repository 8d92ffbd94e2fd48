"""The commands of docs/ab.md, as printed there."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from accel_bench_ab.command import AbOptions
from cli.program import call

PAGE = (Path(__file__).parents[3] / "docs" / "ab.md").read_text(encoding="utf8")


def commands() -> list[list[str]]:
    """Return the words of each command of the page, without the program's own name."""
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the script of the page."""
    found = re.search(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    (tmp_path / "train.py").write_text(found[1])
    return tmp_path


def test_every_option_of_the_page_exists() -> None:
    known = {f"--{name.replace('_', '-')}" for name in AbOptions.__dataclass_fields__}
    used = {word for one in commands() for word in one[: one.index("--")] if word[:2] == "--"}
    assert {"--steps", "--vary", "--ref", "--env", "--metric", "--save"} <= used <= known


@pytest.mark.release
@pytest.mark.parametrize("place", [0, 1, 2, 5, 6])
def test_the_commands_of_the_page_run(place: int, folder: Path) -> None:
    words = commands()[place]
    words = [sys.executable if word == "python" else word for word in words]
    done = call("ab", "--rounds", "1", *words[1:], folder=folder, OMP_NUM_THREADS="1")
    assert done.code == 0, done.err
    if "--save" in words:
        assert (folder / "ab.yaml").exists()
    else:
        assert re.search(r"^A |^batch.4 ", done.out, re.MULTILINE)
        assert "tokens/s" in done.out
