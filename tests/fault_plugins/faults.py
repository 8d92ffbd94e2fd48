"""Small plugins of which each breaks one clause of the contract, and one that breaks none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fault_plugins.distribution import install

from accel_bench.plugins.registry import installed

RANGE = ("accel-bench>=0.1,<0.2",)
"""What a distribution of the tests depends on, where that is not the fault."""

SOURCE = """\
'''A plugin of the tests.'''
{top}
import os
from pydantic import Field
from accel_bench import Options, Plugin, hookimpl


class It(Plugin[Options]):
    '''Counts modules.'''
    {declared}

    def __init__(self, options, name=""):
        super().__init__(options, name)
        self.count = 0
        {making}

    @hookimpl
    def accelerate_model(self, run):
        self.count = len(list(run.model.modules())) if hasattr(run.model, "modules") else 1
        {acting}

    @hookimpl
    def report_evidence(self, run):
        return {evidence}

    @hookimpl
    def close_run(self, run):
        {closing}

    {more}
"""


def source(
    *,
    top: str = "",
    declared: str = "",
    acting: str = "pass",
    evidence: str = "{'modules': self.count}",
    closing: str = "pass",
    making: str = "pass",
    more: str = "",
) -> str:
    """The module of a plugin that keeps the contract, but for what is given."""
    return SOURCE.format(
        top=top,
        declared=declared,
        acting=acting,
        evidence=evidence,
        closing=closing,
        making=making,
        more=more,
    )


@contextmanager
def plugin(
    folder: Path, text: str, name: str = "it", requires: tuple[str, ...] = RANGE
) -> Iterator[str]:
    """Install a module as a distribution of its own, for as long as the block lasts."""
    distribution = f"accel-bench-{folder.name.replace('_', '-').lower()}"
    install(folder, distribution, {name: "It"}, text, requires)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        installed.cache_clear()
        yield name
    installed.cache_clear()
