"""Fixtures of all tests, those beside the plugins too."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from browser import Browser, find_browser, open_browser
from several_ranks.launcher import Forked

from accel_bench import Run, testing
from accel_bench.builtin.local import Local


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Run]:
    """Return `make_run(**scenario)`: a CPU run of one rank whose scenario is read as JSON is."""

    def build(**scenario: Any) -> Run:
        return testing.make_run(tmp_path, scenario)

    return build


@pytest.fixture
def homeless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder of a user without a home, whose own tables nothing names."""

    def unknown(number: int) -> NoReturn:
        raise KeyError(number)

    monkeypatch.chdir(tmp_path)
    for name in ("ACCEL_BENCH_PRICES", "HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    return tmp_path


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless browser; CI installs one, elsewhere the tests are skipped without one."""
    if find_browser() is None:
        reason = "no chromium-headless-shell; apt-get install chromium-headless-shell"
        if os.environ.get("ACCEL_BENCH_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    with open_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def forked_ranks() -> Iterator[None]:
    """Have the launcher of this machine fork the ranks, which then import nothing anew.

    How it starts processes, and ends them, is tested in tests/faults and plugins/cluster/tests.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Local, "launch_ranks", Forked.launch_ranks)
        yield
