"""Commits that `bisect` searches: first parents between two commits of a git repository."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from accel_bench.documents.canonical import digest
from accel_bench.documents.files import locked
from accel_bench.errors import ScenarioError
from accel_bench.machine.caches import cache_folder
from accel_bench_ab.bisect_history import Prepared, Version, VersionError, run_program

DIGITS = 10
"""Number of hexadecimal digits of a commit's displayed hash."""

NO_HOOKS = ("-c", "core.hooksPath=/dev/null")
"""Options of git that disable a repository's hooks."""


def check_out(root: Path, tree: Path, commit: str) -> None:
    """Check a commit of the repository `root` out into a new work tree at `tree`.

    An existing work tree is replaced. Raises ScenarioError if git fails.
    """
    remove_tree(root, tree)
    git(root, *NO_HOOKS, "worktree", "add", "--force", "--detach", str(tree), commit)


def remove_tree(root: Path, tree: Path) -> None:
    """Remove the git work tree at `tree`, also after an interrupted checkout.

    `root` is a folder of the tree's repository.
    """
    with suppress(ScenarioError):
        git(root, "worktree", "remove", "--force", "--force", str(tree))
    shutil.rmtree(tree, ignore_errors=True)


def commit_of(root: Path, name: str) -> str:
    """Return the full hash of a commit in the repository `root`.

    `name` is a hash, branch or tag. Raises ScenarioError if the repository has no such commit.
    """
    try:
        return git(root, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
    except ScenarioError as error:
        raise ScenarioError(f"{root} has no commit {name!r}") from error


class CommitHistory:
    """Commits from a good commit to a bad commit, along the first parents of the bad commit."""

    def __init__(self, good: str, bad: str, build: Sequence[str], folder: Path) -> None:
        """Read the commits from the repository that contains `folder`.

        `build` is a command to run in each work tree; empty for none. Raises ScenarioError if the
        first parents of `bad` do not lead to `good`.
        """
        self._root = Path(git(folder, "rev-parse", "--show-toplevel"))
        self._below = folder.resolve().relative_to(self._root)
        self._build = tuple(build)
        self._ids = self._read(good, bad)
        self.versions = [self._version(commit) for commit in self._ids]
        self.identity = [str(self._root), str(self._below), *self._build, *self._ids]
        key = digest([str(self._root), *self._build], 24)
        self._trees = cache_folder() / "bisect" / key
        self._used: dict[str, int] = {}  # Locked files, until the end of the process at the latest.

    def _read(self, good: str, bad: str) -> list[str]:
        ends = [commit_of(self._root, end) for end in (good, bad)]
        if ends[0] == ends[1]:
            raise ScenarioError(f"{good}..{bad}: both are the same commit")
        between = git(
            self._root, "rev-list", "--first-parent", "--reverse", f"{ends[0]}..{ends[1]}"
        ).split()
        if self._is_ancestor(*reversed(ends)):
            raise ScenarioError(
                f"{good}..{bad}: the bad commit is an ancestor of the good one: write {bad}..{good}"
            )
        if not (between and self._is_ancestor(*ends)):
            raise ScenarioError(
                f"{good}..{bad}: the good commit must be an ancestor of the bad one; "
                f"`git merge-base {good} {bad}` prints one that is"
            )
        if (parent := git(self._root, "rev-parse", f"{between[0]}^1")) != ends[0]:
            raise ScenarioError(
                f"{good}..{bad}: {good} came in by a merge, and commits beside it lack it; take "
                f"{parent[:DIGITS]}, the last one before that on the line of first parents"
            )
        return [ends[0], *between]

    def _is_ancestor(self, older: str, newer: str) -> bool:
        with suppress(ScenarioError):
            git(self._root, "merge-base", "--is-ancestor", older, newer)
            return True
        return False

    def _version(self, commit: str) -> Version:
        title = git(self._root, "show", "--no-patch", "--format=%s", commit)
        return Version(commit[:DIGITS], title)

    def prepare(self, version: int, environment: bool) -> Prepared:
        """Check the commit of index `version` out and build it, unless this was done before.

        Each commit has a work tree of its own. `environment` has no effect. Raises VersionError if
        the commit cannot be built.
        """
        commit = self._ids[version]
        tree, complete = self._trees / commit, self._trees / f"{commit}.complete"
        with locked(self._trees / f"{commit}.lock"):
            if commit not in self._used:
                self._used[commit] = self._open_use(commit)
                fcntl.flock(self._used[commit], fcntl.LOCK_SH)
            if not (complete.exists() and tree.is_dir()):
                check_out(self._root, tree, commit)
                folder = tree / self._below
                if not folder.is_dir():
                    raise VersionError(f"the commit has no folder {self._below}")
                if self._build:
                    run_program(self._build, folder)
                complete.touch()
        below = tree / self._below
        return Prepared(folder=below, revision=commit, requirements=(str(below),))

    def decides_on(self, name: str) -> bool:
        """Return whether the path `name`, a word of the command, leads into the repository.

        Each commit's work tree has its own copy of a file at a relative path into the repository.
        """
        here = self._root / self._below
        return not os.path.isabs(name) and (here / name).resolve().is_relative_to(self._root)

    def close(self, answered: bool = True) -> None:
        """End the search; if it was `answered`, remove the work trees that no other search uses."""
        while self._used:
            os.close(self._used.popitem()[1])
        trees = {commit: self._trees / commit for commit in self._ids if answered}
        for commit, tree in trees.items():
            if not tree.exists():
                continue
            with locked(self._trees / f"{commit}.lock"), os.fdopen(self._open_use(commit)) as use:
                with suppress(BlockingIOError):
                    fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    (self._trees / f"{commit}.complete").unlink(missing_ok=True)
                    remove_tree(self._root, tree)

    def _open_use(self, commit: str) -> int:
        """Return an open descriptor of the file by which searches lock a commit's work tree."""
        return os.open(self._trees / f"{commit}.used", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)


def git(folder: Path, *arguments: str) -> str:
    """Return the output of a git command in `folder`, without its last line end.

    Raises ScenarioError if the command fails.
    """
    try:
        return run_program(["git", *arguments], folder).rstrip("\n")
    except VersionError as error:
        raise ScenarioError(str(error)) from error
