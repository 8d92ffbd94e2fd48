"""`docs/export.md`: its commands print what it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from accel_bench_export.equivalents import Equivalents
from cli.program import call

pytestmark = pytest.mark.box

PAGE = Path(__file__).parents[3] / "docs" / "export.md"
BLOCKS = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ accel-bench (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


def blocks(kind: str) -> list[str]:
    return [text for name, text in BLOCKS.findall(PAGE.read_text("utf8")) if name == kind]


def test_the_commands_of_the_page_print_what_stands_below_them(tmp_path: Path) -> None:
    (tmp_path / "chats.yaml").write_text(blocks("yaml")[0])
    shown = [found for text in blocks("console") for found in COMMAND.findall(text)]
    assert len(shown) == 4
    for command, output in shown:
        done = call(*shlex.split(command), folder=tmp_path)
        assert (done.code, done.err + done.out) == (0, output)


def test_the_declaration_of_the_page_is_one() -> None:
    import yaml

    declared = {"plugins": yaml.safe_load(blocks("yaml")[1])}
    (found,) = Equivalents.model_validate(declared, strict=False).plugins.values()
    assert found[0].settings("trainer") == {"use_liger_kernel": True}
