"""`accel-bench ab`: words of the command line, and real commands without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from accel_bench_ab.figures import find_figure
from accel_bench_ab.variants import compared_commands, requirements_of, split_commands
from cli.program import call

from accel_bench.errors import ScenarioError


def names(*words: str, varied: Sequence[str] = (), **sides: str | None) -> list[str]:
    """Return the names of the compared commands."""
    both = sides.get("refs"), sides.get("environments")
    with compared_commands(words, varied, *both) as commands:
        return [one.name for one in commands]


def test_commands_stand_between_two_dashes() -> None:
    found = split_commands(["python", "a.py", "--lr", "1", "--", "python", "b.py"])
    assert [(one.name, [*one.command]) for one in found] == [
        ("A", ["python", "a.py", "--lr", "1"]),
        ("B", ["python", "b.py"]),
    ]


def test_one_command_alone_is_refused() -> None:
    with pytest.raises(ScenarioError, match="two commands or more"):
        names("python", "a.py", "--")


def test_a_command_is_run_with_each_value() -> None:
    with compared_commands(["x", "--lr={lr}"], ["lr=1e-4,2e-4"], None, None) as found:
        assert [(one.name, one.command[1]) for one in found] == [
            ("lr.1e-4", "--lr=1e-4"),
            ("lr.2e-4", "--lr=2e-4"),
        ]
    varied = ["lr=1,2", "size=a/b,c"]
    assert names("x", "{lr}", "{size}", varied=varied)[:2] == ["lr.1-size.a-b", "lr.1-size.c"]
    assert names("{lr}", "--", "y", varied=["lr=1,2"]) == [
        "A-lr.1",
        "A-lr.2",
        "B-lr.1",
        "B-lr.2",
    ]


@pytest.mark.parametrize(
    ("varied", "reason"),
    [("lr=1,2", "no command holds {lr}"), ("lr", "expected NAME"), ("lr=1,,2", "expected NAME")],
)
def test_values_that_change_nothing_are_refused(varied: str, reason: str) -> None:
    with pytest.raises(ScenarioError, match=reason):
        names("x", varied=[varied])


def test_revisions_are_work_trees_that_go(tmp_path: Path, monkeypatch: Any) -> None:
    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run(
            ["git", *who, *words], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout

    git("init", "-q", "-b", "main")
    for number in (1, 2):
        (tmp_path / "below").mkdir(exist_ok=True)
        (tmp_path / "below" / "a.txt").write_text(str(number))
        git("add", "-A")
        git("commit", "-qm", str(number))
    monkeypatch.chdir(tmp_path / "below")
    with compared_commands(["cat", "a.txt"], [], "HEAD~1..main", None) as found:
        assert [one.name for one in found] == ["HEAD-1", "main"]
        texts = [Path(one.folder, "a.txt").read_text() for one in found]
        assert texts == ["1", "2"]
        assert found[1].revision == git("rev-parse", "main").strip()
    assert not Path(found[0].folder).exists()
    assert len(git("worktree", "list").splitlines()) == 1
    with pytest.raises(ScenarioError, match="rev-parse"):
        names("x", refs="main..nowhere")


def test_environments_are_folders_or_lists_of_requirements(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "python").touch()
    sides = f"{tmp_path}/old..{tmp_path}/new"
    with compared_commands(["python"], [], None, sides) as found:
        assert [(one.name, one.programs) for one in found] == [
            ("old", f"{tmp_path}/old/bin"),
            ("new", f"{tmp_path}/new/bin"),
        ]
    lock = tmp_path / "a.lock"
    lock.write_text(
        "# made by pip\n--no-binary :all:\na==1 \\\n    --hash=sha256:1\nb==2  # via a\n"
    )
    assert requirements_of(lock) == ("a==1", "b==2")
    lock.write_text('version = 1\n[[package]]\nname = "a"\n')
    with pytest.raises(ScenarioError, match="no list of requirements"):
        requirements_of(lock)


PRINTS = "import sys; print('p50=' + sys.argv[1]); print('{\"speed\": 3}')"


def test_commands_without_torch_are_compared_by_wall_time_and_their_own(tmp_path: Path) -> None:
    figures = ["--metric", "p50=p50=([0-9.]+)", "--metric", "speed=json:speed", "--higher", "speed"]
    words = ["--vary", "v=10,30", "--compare", "p50", "--rounds", "5", "--format", "json", *figures]
    done = call("ab", *words, "--", sys.executable, "-c", PRINTS, "{v}", folder=tmp_path)
    assert done.code == 0, done.err
    assert "v.10: steps not seen: no process of it loaded torch" in done.err
    base, other = json.loads(done.out)["experiments"]
    assert (base["counts"], other["verdict"]) == ("calls", "worse")
    assert other["ratio"]["median"] == pytest.approx(1 / 3)
    known = {one["name"]: (one["value"], one["better"]) for one in other["metrics"]}
    assert known["speed"] == (3.0, "higher")
    assert known["wall_seconds"][0] > 0


def test_a_saved_scenario_is_one_that_runs(tmp_path: Path) -> None:
    words = ["--vary", "v=1,2", "--no-observe", "--save", "ab.yaml"]
    done = call("ab", *words, "--", sys.executable, "-c", PRINTS, "{v}", folder=tmp_path)
    assert (done.code, done.out) == (0, "")
    done = call("run", "ab.yaml", "--rounds", "1", folder=tmp_path)
    assert done.code == 0, done.err
    assert "calls/s" in done.out


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
    arguments = ["--by", "wall", "--rounds", "1", "--results", str(tmp_path), "--format", "json"]
    done = call("ab", *arguments, *words, *words, folder=tmp_path)
    assert done.code == 1
    summary = json.loads(done.out)
    assert summary["experiments"][0]["reasons"][0] == "the command ended with exit code 3"


def test_a_look_at_a_command_that_fails_shows_its_end(tmp_path: Path) -> None:
    words = ["--", sys.executable, "-c", "raise SystemExit('no such model')"]
    done = call("ab", "--results", str(tmp_path), *words, *words, folder=tmp_path)
    assert done.code != 0
    assert "exit code 1" in done.err
    assert "no such model" in done.err
