"""`accel-bench ab`: words of the command line, and real commands without torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from accel_bench_ab.command import split_commands
from accel_bench_ab.figures import find_figure
from cli.program import call

from accel_bench.errors import ScenarioError


def test_commands_stand_between_two_dashes() -> None:
    found = split_commands(["python", "a.py", "--lr", "1", "--", "python", "b.py"])
    assert [(one.name, [*one.command]) for one in found] == [
        ("A", ["python", "a.py", "--lr", "1"]),
        ("B", ["python", "b.py"]),
    ]


def test_one_command_alone_is_refused() -> None:
    with pytest.raises(ScenarioError, match="two commands or more"):
        split_commands(["python", "a.py", "--"])


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (r"loss[ =]([\d.]+)", 1.5),
        (r"\d+", 7.0),
        ("json:latency.0.p50", 12.0),
        ("json:out.json#speed", 3.0),
    ],
)
def test_figures_are_the_last_in_the_output(where: str, value: float, tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text('{"speed": 3}')
    text = 'loss 2.5\n{"latency": [{"p50": 11}]}\nloss=1.5\n{"latency": [{"p50": 12}]}\nend 7'
    assert find_figure(where, text, tmp_path) == (value, "")


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("accuracy=(.*)", "nothing that matches"),
        ("loss=(.*)", "is no number"),
        ("json:a.b", "no JSON object"),
        ("json:out.json#speed", "could not be read"),
    ],
)
def test_a_figure_that_is_not_there_has_a_reason(where: str, reason: str, tmp_path: Path) -> None:
    value, why = find_figure(where, "loss=none", tmp_path)
    assert value is None
    assert reason in why


def test_a_command_that_fails_says_with_which_code(tmp_path: Path) -> None:
    words = ["--", sys.executable, "-c", "raise SystemExit(3)"]
    arguments = ["--rounds", "1", "--results", str(tmp_path), "--format", "json"]
    done = call("ab", *arguments, *words, *words, folder=tmp_path)
    assert done.code == 1
    summary = json.loads(done.out)
    assert summary["experiments"][0]["reasons"][0] == "the command ended with exit code 3"
