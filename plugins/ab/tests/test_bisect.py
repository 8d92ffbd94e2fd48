"""`accel-bench bisect` over real commits: found, skipped, stopped, and gone on with."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accel_bench_ab.bisect_commits import CommitHistory
from accel_bench_ab.bisect_history import Prepared, Version, VersionError
from accel_bench_ab.bisect_rounds import BisectRounds
from accel_bench_ab.bisect_search import Bisection, Comparing, MoreRounds
from accel_bench_ab.bisect_subject import CommandSubject
from accel_bench_ab.scenario import CommandSettings
from cli.program import call

from accel_bench.cli.request import Invocation
from accel_bench.errors import ScenarioError
from accel_bench.planning.plan import PlanRequest

PAGE = Path(__file__).parents[3] / "docs" / "bisect.md"

FAST, SLOW = "import time", "import time; time.sleep(0.15)"


def git(folder: Path, *arguments: str) -> str:
    """What git prints."""
    names = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    done = subprocess.run(
        ["git", *names, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(folder: Path, title: str, **files: str) -> str:
    """Commit the text of Python files; return the commit's short name."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", title)
    return git(folder, "rev-parse", "HEAD")[:10]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository, with caches of its own."""
    monkeypatch.setenv("ACCEL_BENCH_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    return folder


@pytest.mark.long
def test_the_slow_commit_of_eight_is_found_though_it_was_stopped_and_one_fails(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [commit(repository, "Begin", work=FAST), commit(repository, "Document")]
    git(repository, "checkout", "-q", "-b", "side")
    aside = commit(repository, "Aside", other="1")
    git(repository, "checkout", "-q", "main")
    git(repository, "merge", "-q", "--no-ff", "-m", "Merge the side", "side")
    names.append(git(repository, "rev-parse", "HEAD")[:10])
    names.append(commit(repository, "Break", work="raise SystemExit(7)"))
    names.append(commit(repository, "Mend", work=FAST))
    names.append(commit(repository, "Sleep longer", work=SLOW))
    names += [commit(repository, title) for title in ("Test", "Release")]

    git(repository, "tag", "v1.0", names[0])
    # The page's command: its `python` is this one.
    page = PAGE.read_text(encoding="utf8")
    written = shlex.split(page.partition("```bash\n")[2].partition("\n```")[0])
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

    def bisect(*more: str) -> tuple[int, dict[str, object]]:
        words = ["--results", str(tmp_path / "results"), "--format", "json"]
        done = call(*written[1:3], *words, *more, *written[3:], folder=repository)
        assert done.out, done.err
        return done.code, json.loads(done.out)

    code, report = bisect("--max-runs", "16")
    assert code == 5
    assert report["answer"] == "inconclusive"
    assert "--max-runs 16" in str(report["conclusion"])
    assert report["runs"] == 16
    code, report = bisect()
    assert (code, report["answer"]) == (0, "culprit"), report
    assert (report["last_good"], report["first_bad"]) == (names[4], names[5])
    assert report["versions"] == 8, "commits of the side are no versions of their own"
    found = {one["version"]: one for one in report["measured"]}  # type: ignore[attr-defined]
    assert aside not in found
    assert found[names[3]]["found"] == "skipped"
    assert "exit code 7" in found[names[3]]["reason"]
    assert not git(repository, "worktree", "list").count("\n"), "work trees are removed"
    known = report["runs"]
    assert bisect()[1]["runs"] == known, "an answer that is known runs nothing"


def test_a_build_that_fails_skips_its_commit_with_the_reason(repository: Path) -> None:
    good = commit(repository, "Begin", build="open('made', 'w').close()")
    bad = commit(repository, "Break", build="raise SystemExit('no compiler')")
    history = CommitHistory(good, bad, [sys.executable, "build.py"], repository)
    folder = history.prepare(0, True).folder
    assert folder is not None
    assert (folder / "made").exists()
    (folder / "made").unlink()
    history.prepare(0, True)
    assert not (folder / "made").exists(), "it is built once"
    with pytest.raises(VersionError, match="ended with 1: no compiler"):
        history.prepare(1, True)
    history.close()
    assert not folder.exists()


def test_what_a_build_leaves_behind_is_not_waited_for(repository: Path) -> None:
    good, bad = commit(repository, "Begin"), commit(repository, "Change")
    words = ["sh", "-c", "sleep 600 & echo $! > pid"]
    history = CommitHistory(good, bad, words, repository)
    folder = history.prepare(0, True).folder
    assert folder is not None
    left = Path("/proc", (folder / "pid").read_text().strip(), "stat")
    until = time.monotonic() + 60.0
    while left.exists() and left.read_text().split()[2] != "Z":
        assert time.monotonic() < until
        time.sleep(0.01)
    history.close()


def test_a_version_whose_program_is_missing_is_skipped(repository: Path) -> None:
    skipped = SimpleNamespace(skipped=("no program './run.sh'",), experiment="middle")
    subject: Any = SimpleNamespace(
        needs_environment=True,
        identity=[],
        plan=lambda ready, rounds: SimpleNamespace(planned=[skipped]),
        version_of=str,
    )
    versions = [Version(name, "") for name in ("good", "middle", "bad")]
    history: Any = SimpleNamespace(
        versions=versions, identity=[], prepare=lambda version, environment: Prepared()
    )
    store: Any = SimpleNamespace(folder=repository)
    search = Bisection(3, 0.02, 80)
    rounds = BisectRounds(history, subject, search, store, lambda **_: None, print, 100)  # type: ignore[arg-type,return-value]
    rounds._measure(MoreRounds(Comparing("probe", (0, 1, 2)), 5))
    assert search.skipped == {1: "no program './run.sh'"}


def test_a_build_that_was_cut_off_begins_anew(repository: Path) -> None:
    good, bad = commit(repository, "Begin", a="1"), commit(repository, "Change", a="2")
    history = CommitHistory(good, bad, (), repository)
    folder = history.prepare(1, True).folder
    assert folder is not None
    (folder / "half").touch()
    folder.with_name(f"{folder.name}.complete").unlink()
    history.prepare(1, True)
    assert (folder / "a.py").read_text() == "2"
    assert not (folder / "half").exists()


def test_work_trees_that_another_search_measures_in_stay(repository: Path) -> None:
    good, bad = commit(repository, "Begin"), commit(repository, "Change")
    ended, running = (CommitHistory(good, bad, (), repository) for _ in range(2))
    folders = [ended.prepare(0, True).folder, ended.prepare(1, True).folder]
    assert running.prepare(1, True).folder == folders[1]
    ended.close()
    assert [folder.exists() for folder in folders if folder] == [False, True]
    running.close()
    assert not any(folder.exists() for folder in folders if folder)


def test_files_that_no_commit_decides_on_are_known(repository: Path) -> None:
    good, bad = commit(repository, "Begin"), commit(repository, "Change")
    history = CommitHistory(good, bad, (), repository)
    names = ("main.py", "sub/new.py", "../bench.py", str(repository / "main.py"))
    assert [*map(history.decides_on, names)] == [True, True, False, False]


def test_a_good_commit_that_is_no_ancestor_is_refused(repository: Path) -> None:
    first, second = commit(repository, "Begin"), commit(repository, "Change")
    with pytest.raises(ScenarioError, match=f"write {first}..{second}"):
        CommitHistory(second, first, (), repository)
    git(repository, "checkout", "-q", "-b", "side", first)
    beside = commit(repository, "Beside")
    with pytest.raises(ScenarioError, match="must be an ancestor"):
        CommitHistory(beside, second, (), repository)


def test_a_script_that_no_commit_has_is_named(repository: Path, tmp_path: Path) -> None:
    ends = "..".join([commit(repository, "Begin"), commit(repository, "Change")])
    (repository / "new.py").write_text("")
    words = ("--results", str(tmp_path / "results"), "--", sys.executable, "new.py")
    done = call("bisect", ends, *words, folder=repository)
    assert done.code == 2
    assert "has no new.py, which is not committed there" in done.err


def test_a_good_commit_beside_the_line_is_refused_with_one_on_it(repository: Path) -> None:
    first = commit(repository, "Begin")
    git(repository, "checkout", "-q", "-b", "side")
    good = commit(repository, "Good", aside="1")
    git(repository, "checkout", "-q", "main")
    before = commit(repository, "Change")
    git(repository, "merge", "-q", "--no-ff", "-m", "Merge the side", "side")
    with pytest.raises(ScenarioError, match=f"came in by a merge.* take {first}"):
        CommitHistory(good, "main", (), repository)
    assert len(CommitHistory(before, "main", (), repository).versions) == 2
    with pytest.raises(ScenarioError, match="both are the same commit"):
        CommitHistory(good, good, (), repository)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["main"], "expected GOOD..BAD"),
        (["main...other"], "expected GOOD..BAD"),
        (["nothing..main"], "has no commit 'nothing'"),
        (["main.py..other.txt"], "there is no file 'other.txt'"),
        (["main..main", "--build", "make 'x"], "--build make 'x: No closing quotation"),
        (["HEAD~1..main"], "an end cannot be measured"),
    ],
)
def test_ends_that_are_none_are_refused(words: list[str], reason: str, repository: Path) -> None:
    commit(repository, "Before", main="0")
    commit(repository, "Begin", main="1")
    done = call("bisect", *words, "--", "false", folder=repository)
    assert done.code == 2
    assert reason in " ".join(done.err.split())


def test_other_settings_and_modules_are_another_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def identity(*overrides: tuple[str, object]) -> list[str]:
        request, invoked = PlanRequest(overrides=overrides), Invocation.__new__(Invocation)
        return CommandSubject(["work"], CommandSettings(), request, invoked).identity

    monkeypatch.delenv("PYTHONPATH", raising=False)
    known = identity()
    assert identity(("environment.A", "1")) != known
    monkeypatch.setenv("PYTHONPATH", "src")
    assert identity() != known
