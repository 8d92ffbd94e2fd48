"""The distribution of faulty plugins, and programs that find it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_plugins.distribution import install_faulty
from faults.program import Program

collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `accel-bench-faulty` is installed."""
    folder = tmp_path_factory.mktemp("site")
    install_faulty(folder)
    return folder


@pytest.fixture
def program(tmp_path: Path, site: Path) -> Iterator[Program]:
    """A program with an empty results folder, which knows the faulty plugins."""
    program = Program(tmp_path, site)
    yield program
    program.end()
