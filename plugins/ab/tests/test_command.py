"""`accel-bench ab`: words of the command line, and real commands without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from accel_bench_ab.figures import find_figure
from accel_bench_ab.plugin import digests_of
from accel_bench_ab.variants import compared_commands, split_commands, two_sides
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
    assert names("x", "{_x y}", varied=["_x y=1,2"]) == ["x-y.1", "x-y.2"]
    varied = ["lr=1,2", "size=a/b,c"]
    assert names("x", "{lr}", "{size}", varied=varied)[:2] == ["lr.1-size.a-b", "lr.1-size.c"]
    assert names("{lr}", "--", "y", varied=["lr=1,2"]) == ["A-lr.1", "A-lr.2", "B"]


@pytest.mark.parametrize(
    ("varied", "reason"),
    [("lr=1,2", "no command holds {lr}"), ("lr", "expected NAME"), ("lr=1,,2", "expected NAME")],
)
def test_values_that_change_nothing_are_refused(varied: str, reason: str) -> None:
    with pytest.raises(ScenarioError, match=reason):
        names("x", varied=[varied])


def test_revisions_are_work_trees_that_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
    hook = tmp_path / ".git" / "hooks" / "post-checkout"
    hook.write_text("#!/bin/sh\ntouch hooked\n")
    hook.chmod(0o755)
    monkeypatch.setenv("ACCEL_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path / "below")
    folders = []
    for _ in range(2):
        with compared_commands(["cat", "a.txt"], [], "HEAD~1..main", None) as found:
            assert [one.name for one in found] == ["HEAD-1", "main"]
            texts = [Path(one.folder, "a.txt").read_text() for one in found]
            assert texts == ["1", "2"]
            assert found[1].revision == git("rev-parse", "main").strip()
            assert not [*Path(found[0].folder).parent.glob("hooked")]
            folders.append([one.folder for one in found])
        assert not Path(found[0].folder).exists()
    assert folders[0] == folders[1], "they are part of an experiment's identity"
    assert len(git("worktree", "list").splitlines()) == 1
    with monkeypatch.context() as hook_of_git:
        (tmp_path / "below" / "a.txt").write_text("staged")
        git("add", "-u")
        hook_of_git.setenv("GIT_DIR", str(tmp_path / ".git"))
        hook_of_git.setenv("GIT_INDEX_FILE", str(tmp_path / ".git" / "index"))
        assert names("x", refs="HEAD~1..main") == ["HEAD-1", "main"]
    assert git("diff", "--cached", "--name-only").split() == ["below/a.txt"]
    assert names("x", refs="main..main") == ["1-main", "2-main"]
    assert names("x", refs="HEAD~1..@") == ["HEAD-1", git("rev-parse", "HEAD")[:10]]
    (tmp_path / "below" / "a.txt").write_text("3")
    with compared_commands(["x"], [], "main..main", None):
        assert "not committed are in neither revision" in capsys.readouterr().err
    with pytest.raises(ScenarioError, match="has no commit 'nowhere'"):
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


@pytest.mark.parametrize(
    "line", ["--no-binary :all:", "--index-url https://example.org", "version = 1", "[[package]]"]
)
def test_lock_files_that_say_more_than_pins_are_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "new.lock").write_text(f"a==1\n{line}\n")
    with pytest.raises(ScenarioError, match=r"entry 2: .*PIP_INDEX_URL.*`uv export`"):
        names("python", environments=f"{tmp_path}/new.lock..{tmp_path}/new.lock")


def test_a_lock_file_that_pins_a_part_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new.lock").write_text("pytest==1\n")
    build = "accel_bench_ab.bisect_packages.build_lock"
    monkeypatch.setattr(build, lambda _: Path(sys.executable))
    with pytest.raises(ScenarioError, match=r"need .*, which no line pins"):
        names("python", environments=f"{tmp_path}/new.lock..{tmp_path}/new.lock")


def test_two_paths_may_lead_upwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    for name in ("old", "new"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path / "here")
    assert two_sides("../old..../new", "--env", paths=True) == ("../old", "../new")
    with pytest.raises(ScenarioError, match="expected OLD"):
        two_sides("../old..../new", "--ref")


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
    assert "peak_rss_bytes" not in known, "this Python is smaller than accel-bench's"
    assert known["wall_seconds"][0] > 0


def test_a_saved_scenario_is_one_that_runs(tmp_path: Path) -> None:
    words = ["--vary", "v=1,2", "--no-observe", "--timeout", "77", "--save", "ab.yaml"]
    done = call("ab", *words, "--", sys.executable, "-c", PRINTS, "{v}", folder=tmp_path)
    assert (done.code, done.out) == (0, "")
    assert "timeout_seconds: 77" in (tmp_path / "ab.yaml").read_text()
    done = call("run", "ab.yaml", "--rounds", "1", folder=tmp_path)
    assert done.code == 0, done.err
    assert "calls/s" in done.out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--metric", "p50=([0-9"], "no regular expression"),
        (["--metric", "wall_seconds=x"], "has another meaning already"),
        (["--metric", "p50=x", "--metric", "p50=y"], "has another meaning already"),
        (["--steps", "5", "--by", "wall"], "--steps counts steps that are seen"),
        (["--steps", "5", "--no-observe"], "--steps counts steps that are seen"),
        (["--by", "steps", "--no-observe"], "--by steps counts what is observed"),
        (["true"], "each command stands behind a `--`, the first one too"),
        (["--ref", "main..other", "--save", "ab.yaml"], "which go with the session"),
    ],
)
def test_options_that_mean_nothing_are_refused_before_a_run(
    words: list[str], reason: str, tmp_path: Path
) -> None:
    done = call("ab", *words, "--", "true", "--", "true", folder=tmp_path)
    assert done.code == 2
    assert reason in " ".join(done.err.split())
    assert not (tmp_path / "ab.yaml").exists() or not (tmp_path / "ab.yaml").read_text()


def test_a_dry_run_starts_nothing_and_takes_all_options(tmp_path: Path) -> None:
    script = f"open({str(tmp_path / 'started')!r}, 'w')"
    words = ["--", sys.executable, "-c", script]
    done = call("ab", "--steps", "5", "--dry-run", *words, *words, folder=tmp_path)
    assert done.code == 0, done.err
    assert not (tmp_path / "started").exists()


def test_the_files_of_a_command_are_part_of_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    for name in ("train.py", "a.yaml", "pack/run.py", "pack/__main__.py"):
        (tmp_path / name).write_text(name)
    words = ["python", "-m", "pack.run", "--config=a.yaml", "train.py", "--lr=1"]
    assert {*digests_of(words, tmp_path)} == {"pack/run.py", "a.yaml", "train.py"}
    assert {*digests_of(["python", "-m", "pack"], tmp_path)} == {"pack/__main__.py"}
    unreadable = tmp_path / "unreadable"
    unreadable.mkdir(mode=0)
    assert not digests_of(["python", "-c", "x = 1; " * 99, "unreadable/a", "\0"], tmp_path)
    before = digests_of(words, tmp_path)
    (tmp_path / "a.yaml").write_text("lr: 2")
    assert digests_of(words, tmp_path) != before


def test_a_file_of_an_earlier_run_has_no_figure_of_this_one(tmp_path: Path) -> None:
    writes = "import sys; len(sys.argv) > 1 and open('out.json', 'w').write('{\"p50\": 3}')"
    (tmp_path / "out.json").write_text('{"p50": 2}')
    words = [
        "--by",
        "wall",
        "--rounds",
        "1",
        "--metric",
        "p50=json:out.json#p50",
        "--format",
        "json",
    ]
    commands = ["--", sys.executable, "-c", writes, "yes", "--", sys.executable, "-c", writes]
    done = call("ab", *words, *commands, folder=tmp_path)
    found = [
        {one["name"]: (one["value"], one["reason"]) for one in row["metrics"]}["p50"]
        for row in json.loads(done.out)["experiments"]
    ]
    assert found == [(3.0, ""), (None, "out.json was not written by this run")]


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
    "text",
    [
        '{"p50": 1}\n100% 10/10 {"p50": 5} \nend',
        '{"p50": 1}\n 50%\r100%{"p50": 5}\r\n',
        '{"p50": 1}\n{\n  "p50": 5,\n  "inner": {"p50": 2}\n}\n{x}',
        '{"p50": 1}\n{"p50": 5, "inner": {}}\n',
    ],
)
def test_an_object_may_stand_behind_a_progress_bar(text: str, tmp_path: Path) -> None:
    assert find_figure("json:p50", text, tmp_path) == (5.0, "")


def test_of_several_groups_the_one_that_matches_counts(tmp_path: Path) -> None:
    assert find_figure(r"(\d+)ms|(\d+)us", "p50 7us", tmp_path) == (7.0, "")


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("accuracy=(.*)", "nothing that matches"),
        ("loss=(.*)", "is no number"),
        ("json:a.b", "no JSON object"),
        ("json:out.json#speed", "could not be read"),
        ("json:deep.json#speed", "could not be read"),
        ("json:large.json#speed", "is no number"),
    ],
)
def test_a_figure_that_is_not_there_has_a_reason(where: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text('{"a":' * 100_000)
    (tmp_path / "large.json").write_text(f'{{"speed": 1{"0" * 400}}}')
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


def test_a_script_without_an_interpreter_cannot_be_started(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("true\n")
    script.chmod(0o755)
    words = ["--by", "wall", "--rounds", "1", "--format", "json"]
    done = call("ab", *words, "--", str(script), "--", str(script), "2", folder=tmp_path)
    assert done.code == 1
    assert "a script begins with `#!`" in json.loads(done.out)["experiments"][0]["reasons"][0]


def test_a_command_that_takes_too_long_may_clean_up(tmp_path: Path) -> None:
    script = "trap 'touch cleaned; exit' INT TERM; sleep 60 & wait"
    words = ["--by", "wall", "--rounds", "1", "--timeout", "2"]
    done = call("ab", *words, "--", "sh", "-c", script, "--", "true", folder=tmp_path)
    assert done.code == 1
    assert (tmp_path / "cleaned").exists()


def test_a_look_at_a_command_that_fails_shows_its_end(tmp_path: Path) -> None:
    words = ["--", sys.executable, "-c", "raise SystemExit('no such model')"]
    done = call("ab", "--results", str(tmp_path), *words, *words, folder=tmp_path)
    assert done.code != 0
    assert "exit code 1" in done.err
    assert "no such model" in done.err
