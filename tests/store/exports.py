"""A results folder with five runs, and the program that exports it and brings it back."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from accel_bench.cli.main import app
from accel_bench.store.database import open_store

from .test_queries import fill


def five_runs(folder: Path) -> Path:
    """A results folder with five runs below another folder."""
    with open_store(folder / "source", write=True) as store:
        fill(store)
    return folder / "source"


def call(*arguments: str | Path) -> str:
    """What the program prints where it ends well."""
    done = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout
