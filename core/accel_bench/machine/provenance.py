"""Versions of installed distributions, with the git commit of an editable install."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

GENERATED_FOLDERS = frozenset(
    {"accel_bench_results", "build", "cache", "dist", "gpu-results", "node_modules", "__pycache__"}
)
"""Names of folders whose files are generated, and no sources unless the folder is a package."""

CODE = (".py", ".pyx", ".so", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h")
"""Endings of code files. Untracked files with other endings, such as a report, are ignored."""

COMMIT_DIGITS = 10
"""Number of digits to which the hash of a commit is shortened."""


@cache
def distribution_version(name: str) -> str:
    """Return the version of a distribution; `0.1.0+commit[.dirty-hash]` for an editable one.

    Returns an empty string for a distribution that is not installed.
    """
    try:
        package = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return ""
    commit = commit_of(package)
    return f"{package.version}+{commit}" if commit else package.version


def commit_of(distribution: metadata.Distribution) -> str:
    """Return an editable install's commit, or a digest of its sources; empty for other installs."""
    folder = _editable_folder(distribution)
    if folder is None:
        return ""
    return git_state(folder) or _sources_digest(folder)


@cache
def git_state(folder: Path) -> str:
    """Return a checkout's commit, with a hash of uncommitted changes; empty without a commit."""
    arguments = ("--porcelain=v2", "--branch", "--untracked-files=normal", "--", ".")
    lines = _git(folder, "status", *arguments).splitlines()
    commits = [line.split()[-1] for line in lines if line.startswith("# branch.oid ")]
    if not commits or commits == ["(initial)"]:
        return ""
    commit = commits[0][:COMMIT_DIGITS]
    if all(line.startswith("# ") for line in lines):
        return commit
    changes = _git(folder, "diff", "HEAD", "--", ".")
    untracked = _git(folder, "ls-files", "--others", "--exclude-standard", "--", ".").splitlines()
    names = [name for name in untracked if name.endswith(CODE)]
    if not changes and not names:
        return commit
    content = [_digest(folder / name) for name in names]
    parts = "\0".join([changes, "\n".join(names), *content])
    return f"{commit}.dirty-{hashlib.sha256(parts.encode()).hexdigest()[:8]}"


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


@cache
def _sources_digest(folder: Path) -> str:
    """Return a digest of a folder's Python sources, for code that git does not track."""
    sources = sorted(_sources(folder))
    digest = hashlib.sha256()
    for path in sources:
        digest.update(f"{path.relative_to(folder)}\0{_digest(path)}\0".encode())
    return f"sources-{digest.hexdigest()[:8]}"


def _sources(folder: Path) -> Iterator[Path]:
    """Yield the Python files below a folder, except in hidden and in generated folders."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _is_generated(Path(place, name))]
        yield from (Path(place, name) for name in files if name.endswith(".py"))


def _is_generated(folder: Path) -> bool:
    """Return whether a folder is hidden, or has a name in GENERATED_FOLDERS and is no package."""
    if folder.name.startswith("."):
        return True
    return folder.name in GENERATED_FOLDERS and not (folder / "__init__.py").exists()


def _editable_folder(distribution: metadata.Distribution) -> Path | None:
    """Return the source folder of an editable install, or None for any other install."""
    try:
        record = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return None
    if not record.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlparse(record.get("url", "")).path))


def _git(folder: Path, *arguments: str) -> str:
    """Return the output of a git command in a folder; empty if it fails or git is missing."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
