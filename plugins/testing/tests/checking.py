"""Check a plugin of the tests, and read the violations that the error lists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fault_plugins.faults import plugin

from accel_bench.testing import CheckReport, check_plugin

NULL = {slot: {"use": "null"} for slot in ("model", "data", "optimizer", "engine")}
"""A scenario in which nothing is computed, for clauses that do not need it."""


def check(folder: Path, text: str, *, name: str = "it", **arguments: Any) -> CheckReport:
    """Check a plugin with this source, on one model and in one dtype unless told otherwise."""
    few: dict[str, Any] = {"archs": (), "dtypes": (), **arguments}
    requires = few.pop("requires", ("accel-bench>=0.1,<0.2",))
    with plugin(folder, text, name, requires):
        return check_plugin(name, **few)


def violations(folder: Path, text: str, **arguments: Any) -> list[str]:
    """The clauses that the error lists, each as `name: sentence`."""
    with pytest.raises(AssertionError) as caught:
        check(folder, text, **arguments)
    return re.findall(r"^  violated +(.*)$", str(caught.value), re.MULTILINE)
