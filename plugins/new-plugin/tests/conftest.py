"""What a command prints depends on nothing that a worker imports anew."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def light_workers(forked_ranks: None) -> None:
    """Fork the ranks of programs that run in this process; those that are started start theirs."""
