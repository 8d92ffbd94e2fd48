"""History of commits between two commits of the working folder's repository, by first parents."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
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


class CommitHistory:
    """Commits from a good one to a bad one, along the first parents of the bad one."""

    def __init__(self, good: str, bad: str, build: Sequence[str], folder: Path) -> None:
        """Read the commits of the repository of a folder. Raises ScenarioError."""
        self._root = Path(_git(folder, "rev-parse", "--show-toplevel"))
        self._below = folder.resolve().relative_to(self._root)
        self._build = tuple(build)
        self._ids = self._read(good, bad)
        self.versions = [self._version(one) for one in self._ids]
        self.identity = [str(self._root), str(self._below), *self._build, *self._ids]
        key = digest([str(self._root), *self._build], 24)
        self._trees = cache_folder() / "bisect" / key

    def _read(self, good: str, bad: str) -> list[str]:
        ends = [self._commit_of(end) for end in (good, bad)]
        between = _git(
            self._root, "rev-list", "--first-parent", "--reverse", f"{ends[0]}..{ends[1]}"
        ).split()
        try:
            _git(self._root, "merge-base", "--is-ancestor", *ends)
        except ScenarioError:
            between = []
        if not between:
            raise ScenarioError(
                f"{good}..{bad}: the good commit must be an ancestor of the bad one; "
                f"`git merge-base {good} {bad}` prints one that is"
            )
        return [ends[0], *between]

    def _commit_of(self, name: str) -> str:
        try:
            return _git(
                self._root, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}"
            )
        except ScenarioError as error:
            raise ScenarioError(f"{self._root} has no commit {name!r}") from error

    def _version(self, commit: str) -> Version:
        title = _git(self._root, "show", "--no-patch", "--format=%s", commit)
        return Version(commit[:DIGITS], title)

    def prepare(self, version: int, environment: bool) -> Prepared:
        """Check a commit out into its own work tree and build it, unless that was done before.

        Raises VersionError if it cannot be built.
        """
        commit = self._ids[version]
        tree, complete = self._trees / commit, self._trees / f"{commit}.complete"
        with locked(self._trees / f"{commit}.lock"):
            if not (complete.exists() and tree.is_dir()):
                self._remove(tree)
                _git(self._root, *NO_HOOKS, "worktree", "add", "--force", "--detach", str(tree),
                     commit)  # fmt: skip
                folder = tree / self._below
                if not folder.is_dir():
                    raise VersionError(f"the commit has no folder {self._below}")
                if self._build:
                    run_program(self._build, folder)
                complete.touch()
        return Prepared(folder=tree / self._below, requirements=(str(tree / self._below),))

    def close(self) -> None:
        """Remove the work trees."""
        for commit in self._ids:
            self._remove(self._trees / commit)
            (self._trees / f"{commit}.complete").unlink(missing_ok=True)

    def _remove(self, tree: Path) -> None:
        shutil.rmtree(tree, ignore_errors=True)
        _git(self._root, "worktree", "prune")


def _git(folder: Path, *arguments: str) -> str:
    """Return the output of a git command, without its last line end. Raises ScenarioError."""
    try:
        return run_program(["git", *arguments], folder).rstrip("\n")
    except VersionError as error:
        raise ScenarioError(str(error)) from error
