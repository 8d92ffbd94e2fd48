"""Executors and benchmarks are found by entry point; what cannot be used names its distribution."""

from __future__ import annotations

from pathlib import Path

import pytest
from micro.distribution import install

from accel_bench.errors import PluginError
from accel_bench.micro import find_benchmarks, find_executors
from accel_bench.micro.targets import TESTS

SOURCE = """
from accel_bench.micro import Benchmark, Executor

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


@pytest.mark.parametrize(
    ("group", "value", "message"),
    [
        ("executors", "stranger_micro:Wrong", "is no subclass of accel_bench.micro.Executor"),
        ("executors", "stranger_micro:Doubled", "is no subclass of accel_bench.micro.Executor"),
        ("executors", "stranger_micro:Eager", "is called 'eager', as "),
        ("executors", "stranger_micro:Gone", "cannot be imported: AttributeError"),
        ("executors", "stranger_gone", "cannot be imported: ModuleNotFoundError"),
        ("micro", "stranger_micro:Wrong", "is neither a subclass of accel_bench.micro.Benchmark"),
        ("micro", "json", "nor a module that defines one"),
    ],
)
def test_what_cannot_be_used_is_an_error_with_the_distribution(
    site: Path, group: str, value: str, message: str
) -> None:
    install(site, {f"accel_bench.{group}": {"theirs": value}}, SOURCE)
    find = find_executors if group == "executors" else find_benchmarks
    with pytest.raises(
        PluginError, match=r"entry point 'theirs'.* of stranger-micro 1.0"
    ) as caught:
        find()
    assert message in str(caught.value)


def test_a_wrong_declaration_is_an_error_with_the_class_and_the_distribution(site: Path) -> None:
    source = SOURCE.replace('name = "doubled"', 'name = "do/ubled"')
    install(site, {"accel_bench.micro": {"theirs": "stranger_micro"}}, source)
    with pytest.raises(PluginError, match=r"stranger-micro 1.0.*Doubled: name 'do/ubled'"):
        find_benchmarks()
