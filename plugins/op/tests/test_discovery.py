"""Executors and benchmarks by entry point; unusable ones do not hide others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from accel_bench_op import Benchmark, find_benchmarks, find_executors
from accel_bench_op.discovery import discover_benchmarks, discover_executors
from accel_bench_op.targets import TESTS, _tests

from accel_bench.errors import PluginError

from .distribution import install

SOURCE = """
from accel_bench_op import Benchmark, Executor

class Doubled(Benchmark):
    name = "doubled"

    def make_batch(self):
        return (2,), {}

    def fn(self):
        return lambda x: 2 * x

class Fast(Executor):
    pass

class Eager(Executor):
    name = "eager"

class Wrong:
    pass
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "stranger_micro", raising=False)
    return tmp_path


def test_what_is_in_the_box_is_there() -> None:
    assert {"eager", "inductor", "thunder"} <= find_executors().keys()
    assert {"llama_mlp", "rms_norm"} <= find_benchmarks().keys()
    assert {"test_llama_mlp", "test_rms_norm"} <= TESTS.keys()


def test_an_executor_without_its_library_says_what_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a test of one's own, too, which calls it without asking whether it can run."""
    monkeypatch.setattr("accel_bench_op.executors.find_spec", lambda module: None)
    with pytest.raises(PluginError, match="thunder needs lightning-thunder: pip install light"):
        find_executors()["thunder"](abs)


def test_another_distribution_brings_its_own(site: Path) -> None:
    groups = {
        "accel_bench.micro": {"doubled": "stranger_micro:Doubled"},
        "accel_bench.executors": {"stranger-fast": "stranger_micro:Fast"},
    }
    install(site, groups, SOURCE)
    assert find_benchmarks()["doubled"].__module__ == "stranger_micro"
    assert find_executors()["stranger-fast"].name == "stranger-fast"


def test_a_module_brings_all_benchmarks_that_it_defines(site: Path) -> None:
    install(site, {"accel_bench.micro": {"all": "stranger_micro"}}, SOURCE)
    assert "doubled" in find_benchmarks()


BROKEN = [
    ("executors", "stranger_micro:Wrong", "is no subclass of accel_bench_op.Executor"),
    ("executors", "stranger_micro:Doubled", "is no subclass of accel_bench_op.Executor"),
    (
        "executors",
        "stranger_micro:Eager",
        "its name 'eager' is that of the executor 'eager' of accel-bench ",
    ),
    ("executors", "stranger_micro:Gone", "is broken: AttributeError"),
    ("executors", "stranger_gone", "is broken: ModuleNotFoundError"),
    ("micro", "stranger_micro:Wrong", "is neither a subclass of accel_bench_op.Benchmark"),
    ("micro", "json", "nor a module that defines one"),
]


@pytest.mark.parametrize(("group", "value", "message"), BROKEN)
def test_one_that_cannot_be_used_is_a_warning_with_its_distribution(
    site: Path, group: str, value: str, message: str
) -> None:
    groups = {
        "accel_bench.micro": {"doubled": "stranger_micro:Doubled"},
        "accel_bench.executors": {"fast": "stranger_micro:Fast"},
    }
    groups[f"accel_bench.{group}"]["theirs"] = value
    install(site, groups, SOURCE)
    find, name = (find_executors, "fast") if group == "executors" else (find_benchmarks, "doubled")
    with pytest.warns(UserWarning, match="'theirs' of stranger-micro 1.0 is broken: ") as caught:
        found = find()
    (one,) = caught
    assert message in str(one.message)
    # The others are there, those in the box among them.
    assert {name, "eager" if group == "executors" else "rms_norm"} < found.keys()
    assert all(
        type(kind).__module__ != "stranger_micro" for key, kind in found.items() if key == "eager"
    )


def test_of_two_strangers_with_one_name_none_is_used(site: Path) -> None:
    source = SOURCE.replace('name = "doubled"', 'name = "twice"')
    source += """
class Again(Doubled):
    name = "twice"
"""
    groups = {"accel_bench.micro": {"a": "stranger_micro:Doubled", "b": "stranger_micro:Again"}}
    install(site, groups, source)
    found = discover_benchmarks()
    assert "twice" not in found.usable
    problem = found.problem_of("twice")
    assert problem.startswith("the benchmark 'b' of stranger-micro 1.0 is broken: ")
    assert "its name 'twice' is that of the benchmark 'a' of stranger-micro 1.0" in problem
    assert found.problem_of("rms_norm") == ""


def test_one_class_by_two_entry_points_is_one_benchmark(site: Path) -> None:
    groups = {"accel_bench.micro": {"all": "stranger_micro", "one": "stranger_micro:Doubled"}}
    install(site, groups, SOURCE)
    found = discover_benchmarks()
    assert "doubled" in found.usable
    assert not found.unusable


def test_two_classes_of_one_module_with_one_name_are_no_choice(site: Path) -> None:
    source = (
        SOURCE
        + """
class Again(Doubled):
    name = "doubled"
"""
    )
    install(site, {"accel_bench.micro": {"all": "stranger_micro"}}, source)
    (one,) = discover_benchmarks().unusable
    assert "two classes are called 'doubled'; rename one of them" in one.problem


def test_only_asking_for_it_by_name_is_an_error(site: Path) -> None:
    groups = {"accel_bench.executors": {"theirs": "stranger_gone:Executor"}}
    install(site, groups, SOURCE)
    found = discover_executors()
    problem = "the executor 'theirs' of stranger-micro 1.0 is broken: ModuleNotFoundError"
    assert found.problem_of("theirs").startswith(problem)
    # A broken module may be what would have brought another name.
    assert found.problem_of("eagr").startswith("no executor 'eagr'; did you mean 'eager'?; the e")
    assert found.problem_of("eager") == ""


def test_a_module_that_ends_the_process_is_left_out(site: Path) -> None:
    install(site, {"accel_bench.micro": {"theirs": "stranger_micro"}}, "raise SystemExit(3)")
    (one,) = discover_benchmarks().unusable
    assert (one.name, one.distribution) == ("theirs", "stranger-micro 1.0")
    assert one.problem.endswith("is broken: SystemExit: 3")


def test_a_wrong_declaration_is_named_with_the_class_and_the_distribution(site: Path) -> None:
    source = SOURCE.replace('name = "doubled"', 'name = "do/ubled"')
    install(site, {"accel_bench.micro": {"theirs": "stranger_micro"}}, source)
    with pytest.warns(UserWarning, match=r"stranger-micro 1.0.*Doubled: name 'do/ubled'"):
        assert "rms_norm" in find_benchmarks()


def test_two_benchmarks_that_would_be_one_test_are_an_error() -> None:
    kinds: dict[str, Any] = {"a-b": Benchmark, "a.b": Benchmark}
    with pytest.raises(PluginError, match=r"'a\.b' of .* and another one .* both be test_a_b"):
        _tests(kinds, {})
