"""What the tests of the kit do without."""

from __future__ import annotations

import pytest
from accel_bench_testing import declared

from accel_bench.testing import run_plugin


@pytest.fixture(scope="session", autouse=True)
def imported_once() -> None:
    """Run a tiny scenario here: processes are then forked with all that a run imports."""
    run_plugin("example")


@pytest.fixture(autouse=True)
def imported_lightly(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no process to import a plugin in, but for the tests that are about the import."""
    if not request.node.get_closest_marker("real_import"):
        nothing: declared.Effects = ([], [], "")
        monkeypatch.setattr(declared, "_effects", lambda *_: (nothing, nothing))
