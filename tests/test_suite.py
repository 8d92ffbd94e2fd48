"""The budget of a file grows with what the other files took, never with its own time."""

from __future__ import annotations

from pathlib import Path

from suite import BUDGET_SECONDS, Budget, FileCost, read_costs

ROOT = Path(__file__).resolve().parents[1]

COSTS = {"a.py": 10.0, "b.py": 10.0, "c.py": 40.0}


def budget(**processor: float) -> Budget:
    """Return a budget after a run in which these files took so many seconds."""
    files = {f"{name}.py": FileCost(processor=s, budgeted=s) for name, s in processor.items()}
    return Budget(COSTS, files)


def test_a_file_over_its_budget_is_listed() -> None:
    assert budget(a=BUDGET_SECONDS + 1).over_budget() == ["a.py"]
    assert budget(a=BUDGET_SECONDS + 1, b=9, c=40).over_budget() == ["a.py"]


def test_a_slower_machine_allows_as_much_more() -> None:
    slow = budget(a=BUDGET_SECONDS + 1, b=15, c=60)
    assert slow.allowed("a.py") == 1.5 * BUDGET_SECONDS
    assert not slow.over_budget()


def test_the_slowest_tests_are_listed_over_all_files() -> None:
    files = {"a.py": FileCost(), "b.py": FileCost()}
    files["a.py"].tests.update({"a.py::one": 1.0, "a.py::two": 3.0})
    files["b.py"].tests.update({"b.py::three": 2.0})
    slowest = Budget(COSTS, files).slowest_tests(2)
    assert slowest == [("a.py::two", 3.0), ("b.py::three", 2.0)]


def test_each_file_that_has_costs_is_there() -> None:
    costs = read_costs()
    assert costs
    assert [path for path in costs if not (ROOT / path).is_file()] == []
