"""What a command prints depends on nothing that a worker imports anew."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def light_workers(request: pytest.FixtureRequest) -> None:
    """Fork the workers, but for modules with the mark `real_ranks`."""
    if not request.node.get_closest_marker("real_ranks"):
        request.getfixturevalue("forked_ranks")
