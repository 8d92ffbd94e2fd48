"""How the suite runs: the longest files first, each within a budget, and the slowest listed.

The budget is counted in seconds of processor time, of the test process and of the programs that
its tests have started and waited for. Other work on the machine makes a test wait, which costs no
processor time: a budget in seconds of a clock would fail on a busy machine. It also makes every
second of processor time do less where processors share a core, so the budget grows by as much as
the other files took longer than `costs.json` says.
"""

from __future__ import annotations

import gc
import json
import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

BUDGET_SECONDS = 60.0
"""Processor time that the tests of one file may take which do not carry the mark `long`."""

OVER_BUDGET = 7
"""Exit code if no test failed but a file is over its budget; a second run would change nothing."""

LISTED = 10
"""Files that are listed at the end; `--slowest-tests` lists tests too."""

COSTS = Path(__file__).with_name("costs.json")
"""Processor seconds of the files that take more than a few, as `--write-costs` measured them."""

WORTH_WRITING_SECONDS = 3.0
"""Files that take less need no place in the order."""

COLLECTED_EVERY = 50
"""Tests that thaw the heap until garbage of earlier tests is looked for in all of it."""

USUAL_THRESHOLD = gc.get_threshold()
"""How often garbage is looked for, once all tests are collected."""

SPENT = pytest.StashKey[tuple[float, float]]()
"""Processor time and clock when the last phase of a test ended."""

THAWED = pytest.StashKey[int]()
"""How often a test found a heap that a run before it had thawed."""


@dataclass
class FileCost:
    """What the tests of one file took, in seconds."""

    processor: float = 0.0
    """Of all its tests."""

    clock: float = 0.0
    """The same by the clock, which other work on the machine makes longer."""

    budgeted: float = 0.0
    """Processor time of the tests without the mark `long`."""

    tests: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Processor time of each test, with the fixtures that it is the first to use."""


# Imports and collected tests leave next to no garbage, and a sixth of the time would go into it.
gc.set_threshold(1_000_000, *USUAL_THRESHOLD[1:])


def pytest_collection_finish() -> None:
    """Look for garbage as usual, while tests run."""
    gc.set_threshold(*USUAL_THRESHOLD)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that updates the order."""
    help_text = f"write what each file took to {COSTS.name}: the longest start first"
    parser.addoption("--write-costs", action="store_true", help=help_text)
    help_text = "list the N tests that took most processor time"
    parser.addoption("--slowest-tests", type=int, default=0, metavar="N", help=help_text)


def pytest_configure(config: pytest.Config) -> None:
    """Let the process that prints the report add up what the test processes have measured."""
    if not hasattr(config, "workerinput"):
        write = config.getoption("--write-costs")
        config.pluginmanager.register(Budget(read_costs(), defaultdict(FileCost), write), "budget")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only a release needs, and put the longest files first."""
    if "release" not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("release")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("release")]
    costs = read_costs()
    items.sort(key=lambda item: -costs.get(file_of(item.nodeid), 0.0))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Start to count."""
    item.stash[SPENT] = spent()
    freeze_heap(item.config)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    """Note in the report of each phase what it took."""
    report = yield
    before, item.stash[SPENT] = item.stash[SPENT], spent()
    report.processor_seconds, report.clock_seconds = (
        now - then for now, then in zip(item.stash[SPENT], before, strict=True)
    )
    report.is_long = any(item.get_closest_marker(mark) for mark in ("long", "release"))
    return report


class Heap:
    """Knows whether the heap is frozen: to count what is would walk through all of it."""

    def __init__(self) -> None:
        self.is_thawed = True
        self._unfreeze = gc.unfreeze

    def unfreeze(self) -> None:
        """Stand in for `gc.unfreeze`."""
        self._unfreeze()
        self.is_thawed = True


HEAP = Heap()
gc.unfreeze = HEAP.unfreeze


def freeze_heap(config: pytest.Config) -> None:
    """Let the collector look at what this test makes, and not at all that is imported.

    A run collects garbage before its window, and lets the collector look at everything after it:
    half a second for a run of tiny models, which would take less itself.
    """
    if not HEAP.is_thawed:
        return
    HEAP.is_thawed = False
    thawed = config.stash[THAWED] = config.stash.get(THAWED, 0) + 1
    if thawed % COLLECTED_EVERY == 0:
        gc.collect()
    gc.freeze()


class Budget:
    """Adds up what each file took; fails the run when one is over its budget."""

    def __init__(
        self, costs: dict[str, float], files: dict[str, FileCost], write: bool = False
    ) -> None:
        self._costs = costs
        self._files = files
        self._write = write

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add one phase of one test."""
        if not hasattr(report, "processor_seconds"):
            return  # The test process died before it could say.
        file = self._files[file_of(report.nodeid)]
        file.processor += report.processor_seconds
        file.clock += report.clock_seconds
        file.budgeted += 0.0 if report.is_long else report.processor_seconds
        file.tests[report.nodeid] += report.processor_seconds

    def allowed(self, path: str) -> float:
        """Return the processor seconds of a file, on a machine as slow as the others find it."""
        others = {other: cost for other, cost in self._costs.items() if other != path}
        expected = sum(cost for other, cost in others.items() if other in self._files)
        measured = sum(self._files[other].processor for other in others if other in self._files)
        return BUDGET_SECONDS * max(1.0, measured / expected if expected else 1.0)

    def over_budget(self) -> list[str]:
        """Return the files whose tests without the mark `long` take too much."""
        return [path for path, file in self._files.items() if file.budgeted > self.allowed(path)]

    def slowest_tests(self, number: int) -> list[tuple[str, float]]:
        """Return the tests that took most, and the processor seconds of each."""
        tests = [pair for file in self._files.values() for pair in file.tests.items()]
        return sorted(tests, key=lambda pair: -pair[1])[:number]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that is over budget; write the costs where that is asked for."""
        if self.over_budget() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = OVER_BUDGET
        if self._write:
            measured = {path: file.processor for path, file in self._files.items()}
            write_costs({**self._costs, **measured})

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the slowest files, and those that are over budget."""
        if not self._files:
            return
        slowest = sorted(self._files.items(), key=lambda pair: -pair[1].processor)[:LISTED]
        terminalreporter.section("slowest files")
        total = sum(file.processor for file in self._files.values())
        for path, file in slowest:
            line = f"{file.processor:7.1f} s of processor, {file.clock:7.1f} s of clock  {path}"
            terminalreporter.write_line(line)
        terminalreporter.write_line(f"{total:7.1f} s of processor in {len(self._files)} files")
        for test, seconds in self.slowest_tests(terminalreporter.config.option.slowest_tests):
            terminalreporter.write_line(f"{seconds:7.1f} s of processor  {test}")
        for path in self.over_budget():
            taken, allowed = self._files[path].budgeted, self.allowed(path)
            line = (
                f"{path}: {taken:.0f} s of processor, {allowed:.0f} allowed: make it faster, "
                "split it, or mark its long tests `long`"
            )
            terminalreporter.write_line(line, red=True)


def spent() -> tuple[float, float]:
    """Return processor time of this process and of those it has waited for, and the clock."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages), time.monotonic()


def file_of(nodeid: str) -> str:
    """Return the path in the identifier of a test."""
    return nodeid.partition("::")[0]


def read_costs() -> dict[str, float]:
    """Return the processor seconds of files as they were last written."""
    costs: dict[str, float] = json.loads(COSTS.read_text(encoding="utf8"))
    return costs


def write_costs(costs: dict[str, float]) -> None:
    """Write the costs of files that are still there and worth a place, the longest first."""
    root = COSTS.parents[1]
    kept = {
        path: round(seconds, 1)
        for path, seconds in sorted(costs.items(), key=lambda pair: -pair[1])
        if seconds >= WORTH_WRITING_SECONDS and (root / path).exists()
    }
    COSTS.write_text(f"{json.dumps(kept, indent=1)}\n", encoding="utf8")
