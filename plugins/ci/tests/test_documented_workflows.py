"""Steps of docs/ci.md's workflows, run in a scratch repository with a tiny scenario."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

PAGE = Path(__file__).parents[3] / "docs" / "ci.md"
GATE = """\
name: gate
model: {use: null}
data: {use: null, sequence_length: 16}
optimizer: {use: null}
engine: {use: null, step_seconds: 0.02}
stacks:
  base: {set: {resources.environment: base}}
  branch: {set: {resources.environment: branch}}
baseline: base
environments:
  base: {python: .ci/base}
  branch: {python: .ci/branch}
measure: {warmup: 1, steps: 5}
"""


def workflow(name: str) -> Any:
    """Return a file that the page shows."""
    found = re.search(rf"```yaml\n# {re.escape(name)}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found
    return yaml.safe_load(found[1])


def github() -> dict[str, str]:
    """Return the commands of each step by its name."""
    steps = workflow(".github/workflows/speed.yml")["jobs"]["gate"]["steps"]
    return {step["name"]: step["run"] for step in steps if "run" in step}


def gitlab() -> list[str]:
    job = workflow(".gitlab-ci.yml")["gate"]
    return [*job["before_script"], *job["script"]]


class Repository:
    """A repository with a base and a branch, whose environments see this one's packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "gate.yaml").write_text(GATE)
        self.run("git init -q -b main . && git add gate.yaml && git commit -qm base")
        self.run("git checkout -qb branch && git commit -q --allow-empty -m branch")

    def run(self, commands: str) -> subprocess.CompletedProcess[str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        person = {"NAME": "me", "EMAIL": "me@example.org"}
        people = {f"GIT_{who}_{key}": value for who in ("AUTHOR", "COMMITTER")
                  for key, value in person.items()}  # fmt: skip
        return subprocess.run(
            ["bash", "-e", "-c", commands],
            cwd=self.folder,
            env={**os.environ, **people, "PATH": path, "BASE": "main"},
            capture_output=True,
            text=True,
            check=False,
        )

    def install(self) -> None:
        """Make the environments of the page, without an index of packages."""
        for name in ("base", "branch"):
            done = self.run(f"python3 -m venv --without-pip .ci/{name}")
            assert done.returncode == 0, done.stderr
            (site,) = (self.folder / ".ci" / name).glob("lib/python*/site-packages")
            packages = sysconfig.get_path("purelib")
            (site / "ours.pth").write_text(f"import site; site.addsitedir({packages!r})\n")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    made = Repository(tmp_path_factory.mktemp("repository"))
    assert made.run(github()["base"]).returncode == 0
    made.install()
    return made


def fewer_rounds(commands: str) -> str:
    """Return the page's gate with a tolerance that a busy machine keeps, and few rounds."""
    return commands.replace("3% --max-rounds 30", "40% --max-rounds 5")


def test_both_workflows_make_the_work_tree_of_the_base_alike() -> None:
    assert github()["base"] == gitlab()[0]
    assert github()["count"] == gitlab()[-2]
    assert gitlab()[-1].removesuffix(" --junit gate.xml") in github()["gate"]


def test_an_unchanged_branch_passes_and_leaves_a_comment(repository: Repository) -> None:
    done = repository.run(fewer_rounds(github()["gate"]))
    assert done.returncode == 0, done.stderr
    comment = (repository.folder / "comment.md").read_text()
    assert comment.startswith("## gate: ")
    assert "branch against base" in comment


def test_a_second_job_in_a_kept_folder_makes_the_work_tree_again(repository: Repository) -> None:
    cleaned = repository.run("git clean -ffdxq -e .ci/base -e .ci/branch && ls .ci")
    assert cleaned.stdout.split() == ["base", "branch"]  # as `checkout` leaves it
    done = repository.run(github()["base"])
    assert done.returncode == 0, done.stderr
    assert (repository.folder / ".ci" / "source" / "gate.yaml").is_file()


@pytest.mark.parametrize(
    ("fork", "written", "warned"),
    [("true", False, False), ("false", True, False), ("false", True, True)],
)
def test_a_comment_makes_no_job_red(
    fork: str, written: bool, warned: bool, repository: Repository
) -> None:
    (repository.folder / "comment.md").write_text("## gate: passed\n")
    (repository.folder / "asked").unlink(missing_ok=True)
    stub = repository.folder / "gh"
    stub.write_text(f'#!/bin/sh\necho "$@" > asked\nexit {int(warned)}\n')
    stub.chmod(0o755)
    step = github()["comment"].replace("${{ github.event.number }}", "7")
    variables = f'export PATH="$PWD:$PATH" FORK={fork} GITHUB_STEP_SUMMARY=summary.md'
    done = repository.run(f"{variables}\n{step}")
    stub.unlink()
    assert done.returncode == 0, done.stderr
    assert (repository.folder / "asked").is_file() == written
    assert ("::warning::" in done.stdout) == warned
    assert "gate: passed" in (repository.folder / "summary.md").read_text()


def test_the_comment_waits_for_its_file_and_no_token_is_left_to_the_branch() -> None:
    steps = workflow(".github/workflows/speed.yml")["jobs"]["gate"]["steps"]
    assert "hashFiles('comment.md')" in steps[-1]["if"]
    assert steps[0]["with"]["persist-credentials"] is False
    assert [step["name"] for step in steps if "GH_TOKEN" in step.get("env", {})] == ["comment"]


def test_an_open_gate_is_a_warning_and_a_slower_one_is_red(repository: Repository) -> None:
    gate = github()["gate"]
    stub = repository.folder / "accel-bench"
    stub.write_text('#!/bin/sh\nexit "$CODE"\n')
    stub.chmod(0o755)
    ends = {
        code: repository.run(f'export PATH="$PWD:$PATH" CODE={code}\n{gate}')
        for code in (0, 1, 2, 3, 4, 5)
    }
    stub.unlink()
    assert {code: done.returncode for code, done in ends.items()} == {
        0: 0,
        1: 1,
        2: 2,
        3: 3,
        4: 4,
        5: 0,
    }
    assert "::warning::" in ends[5].stdout
    assert workflow(".gitlab-ci.yml")["gate"]["allow_failure"] == {"exit_codes": 5}


@pytest.mark.release
def test_the_count_of_an_unchanged_step_passes_and_of_a_larger_one_is_red(
    repository: Repository,
) -> None:
    step = "name: step\nmodel: {id: tiny-llama-cpu}\ndata: {use: synthetic, sequence_length: 16}\n"
    step += "train: {micro_batch_size: 1}\nstacks: {baseline: []}\n"
    (repository.folder / "step.yaml").write_text(step)
    count = github()["count"]
    saved = repository.run("accel-bench scenarios count step.yaml --save step.ledger.json")
    assert saved.returncode == 0, saved.stderr
    assert repository.run(count).returncode == 0
    (repository.folder / "step.yaml").write_text(step.replace("length: 16", "length: 32"))
    assert repository.run(count).returncode == 1
