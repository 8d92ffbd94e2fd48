"""Make the faulty distribution known to this process and to the workers that it starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fault_plugins.distribution import install_faulty

from accel_bench.plugins.registry import installed


@contextmanager
def faulty_installed(folder: Path) -> Iterator[pytest.MonkeyPatch]:
    """Install it in a folder and put that on the path, for as long as the block lasts."""
    install_faulty(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder))
        # Git must not find the checkout: a file saved while this runs would change every id.
        patch.setenv("GIT_DIR", os.devnull)
        installed.cache_clear()
        yield patch
    installed.cache_clear()
