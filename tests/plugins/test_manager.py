"""Plugins are listed without being imported, and called in order with blame where it belongs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_plugins.distribution import install
from faults.program import null_scenario

from accel_bench import Options, Plugin, Task, hookimpl
from accel_bench.errors import HookError, PluginError
from accel_bench.hookspecs import ONE_ANSWER
from accel_bench.plugins.active import ActivePlugin, ActivePlugins
from accel_bench.plugins.manager import activate, load_class
from accel_bench.plugins.registry import find, installed, overview, unmet_requirement
from accel_bench.plugins.validation import hook_arguments
from accel_bench.scenario.models import Scenario, Stack

CALLED: list[str] = []


@pytest.fixture
def installing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Install distributions on the path of this process."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(distribution: str, plugins: dict[str, str], source: str = "", *requires: str) -> None:
        install(tmp_path, distribution, plugins, source, requires)
        installed.cache_clear()

    yield put
    installed.cache_clear()


class First(Plugin[Options]):
    """Writes down that it was called."""

    @hookimpl
    def accelerate_model(self, run: Any) -> str:
        CALLED.append(self.name)
        return self.name


class Breaking(First):
    """Raises."""

    @hookimpl
    def accelerate_model(self) -> None:
        raise ValueError("broken on purpose")


class Exhausted(First):
    """Runs out of memory."""

    @hookimpl
    def accelerate_model(self) -> None:
        raise MemoryError


class Answering(First):
    """Answers for the optimizer."""

    @hookimpl
    def build_optimizer(self) -> str:
        return self.name


class Silent(Answering):
    """Could answer, and does not want to."""

    def claims(self) -> frozenset[str]:
        return frozenset()


class Listing(First):
    """Gives reasons one by one."""

    @hookimpl
    def check_scenario(self) -> Iterator[str]:
        yield "one"
        yield "two"


def member(kind: type[Plugin[Any]], name: str, slot: str | None = None) -> ActivePlugin:
    """A use of a class of this file."""
    return ActivePlugin(kind(Options(), name), name, slot, "these-tests")


def test_hooks_are_called_in_written_order_with_what_they_take() -> None:
    CALLED.clear()
    active = ActivePlugins([member(First, name) for name in ("c", "a", "b")])
    answers = [value for _, value in active.call_all("accelerate_model", run=None)]
    assert CALLED == answers == ["c", "a", "b"]


def test_an_exception_is_blamed_on_the_plugin_and_keeps_its_cause() -> None:
    active = ActivePlugins([member(Breaking, "breaking")])
    with pytest.raises(HookError) as caught:
        list(active.call_all("accelerate_model", run=None))
    error = caught.value
    words = (error.plugin, error.distribution, error.hook, error.problem)
    assert words == (
        "breaking",
        "these-tests",
        "accelerate_model",
        "ValueError: broken on purpose",
    )
    assert isinstance(error.__cause__, ValueError)


def test_an_error_without_words_is_named_by_its_type() -> None:
    active = ActivePlugins([member(Exhausted, "exhausted")])
    with pytest.raises(HookError, match=r"failed in accelerate_model: MemoryError$"):
        list(active.call_all("accelerate_model", run=None))


def test_the_stack_s_plugin_answers_before_the_slot_s() -> None:
    both = [member(Answering, "of-stack"), member(Answering, "of-slot", "optimizer")]
    assert ActivePlugins(both).call_one("build_optimizer") == "of-stack"
    assert ActivePlugins(both[1:]).call_one("build_optimizer") == "of-slot"
    silent = [member(Silent, "of-stack"), both[1]]
    assert ActivePlugins(silent).call_one("build_optimizer") == "of-slot"


def test_a_slot_s_plugin_answers_for_no_other_slot() -> None:
    active = ActivePlugins([member(Answering, "of-slot", "data")])
    assert active.answers("build_optimizer") is None
    assert active.call_one("build_optimizer") is None


def test_what_a_hook_yields_is_a_list() -> None:
    active = ActivePlugins([member(First, "first"), member(Listing, "listing")])
    found = [(one.name, items) for one, items in active.call_lists("check_scenario")]
    assert found == [("listing", ["one", "two"])]


def test_every_plugin_s_tolerance_is_known_that_of_a_slot_too() -> None:
    tolerant = type("Tolerant", (First,), {"loss_tolerance": 0.02})
    strict = type("Strict", (First,), {"loss_tolerance": 0.001})
    members = [member(tolerant, "a"), member(strict, "b"), member(First, "c")]
    found = ActivePlugins([*members, member(tolerant, "slot", "model")]).loss_tolerances
    assert found == {"a": 0.02, "b": 0.001, "slot": 0.02}


def test_a_tolerance_may_depend_on_the_options() -> None:
    def allowed(self: Plugin[Any]) -> float | None:
        return 0.02 if self.name == "coarse" else None

    kind = type("Optional", (First,), {"allowed_loss_difference": allowed})
    plugins = ActivePlugins([member(kind, "coarse"), member(kind, "fine")])
    assert plugins.loss_tolerances == {"coarse": 0.02}


@pytest.mark.parametrize("wrong", ["0.1", -0.1, float("nan"), float("inf")])
def test_a_tolerance_that_is_no_distance_is_refused_with_the_plugin_s_name(wrong: Any) -> None:
    kind = type("Wrong", (First,), {"allowed_loss_difference": lambda self: wrong})
    with pytest.raises(HookError, match=r"plugin 'wrong' .*a number from 0 or None is expected"):
        ActivePlugins([member(kind, "wrong")])


def test_hooks_are_named_in_call_order() -> None:
    names = list(hook_arguments())
    assert set(ONE_ANSWER) < set(names)
    order = ["check_scenario", "prepare_process", "load_data", "load_model", "accelerate_model"]
    order += ["parallelize_model", "build_optimizer", "build_engine", "close_run"]
    assert sorted(order, key=names.index) == order


def test_listing_imports_no_plugin(installing: Callable[..., None]) -> None:
    installing("bench-listed", {"listed": "Sound"}, "raise SystemExit('imported')\n")
    assert find("listed").distribution == "bench-listed"
    assert find("listed").version == "1.0"
    assert "bench_listed" not in sys.modules


def test_unmet_requirements_of_a_distribution_are_listed(installing: Callable[..., None]) -> None:
    requires = ("pydantic", "no-such-package>=2", "also-absent; extra == 'all'")
    installing("bench-listed", {"listed": "Sound"}, "", *requires)
    assert find("listed").unmet() == ("no-such-package>=2 is not installed",)


def test_doubled_names_are_known_with_their_distributions(installing: Callable[..., None]) -> None:
    installing("bench-first", {"same": "Sound"})
    installing("bench-second", {"same": "Sound", "other": "Sound"})
    rivals = {row["distribution"]: row["duplicates"] for row in overview() if row["duplicates"]}
    assert rivals == {"bench-first": ["bench-second"], "bench-second": ["bench-first"]}
    with pytest.raises(PluginError, match="is brought by bench-first and bench-second; write 'be"):
        find("same")
    assert find("Bench_Second:same").distribution == "bench-second"


def test_two_of_one_name_in_one_distribution_are_both_named(
    installing: Callable[..., None], tmp_path: Path
) -> None:
    installing("bench-first", {"same": "One", "adamw": "One", "other": "One"})
    (entries,) = tmp_path.glob("bench_first-*/entry_points.txt")
    more = ["same = bench_first:Two", "adamw = bench_first:Two", "other = bench_first:One"]
    entries.write_text("\n".join([entries.read_text(), *more]))
    installed.cache_clear()
    for name in ("same", "bench-first:same", "bench-first:adamw"):
        with pytest.raises(PluginError) as caught:
            find(name)
        assert f"{name!r} is brought twice by bench-first 1.0" in str(caught.value)
        assert "as bench_first:One and bench_first:Two: one of them needs" in str(caught.value)
    assert find("adamw").distribution == "accel-bench"
    assert find("other").entry.value == "bench_first:One"  # the same line twice is one plugin
    doubled = [row["name"] for row in overview() if "bench-first" in row["duplicates"]]
    assert doubled == ["adamw", *["bench-first:adamw"] * 2, *["bench-first:same"] * 2]


def test_a_shipped_name_means_the_shipped_plugin_and_the_other_is_reached_by_its_distribution(
    installing: Callable[..., None],
) -> None:
    source = "from accel_bench import Plugin\nclass Stranger(Plugin):\n    pass\n"
    installing("bench-stranger", {"adamw": "Stranger", "torchao": "Stranger"}, source)
    assert find("adamw").distribution == "accel-bench"
    assert load_class("bench-stranger:adamw").__name__ == "Stranger"
    assert {"adamw", "bench-stranger:adamw"} <= {row["name"] for row in overview()}
    assert find("bench-stranger:torchao").use == "bench-stranger:torchao"
    if not any(one.distribution == "accel-bench-torchao" for one in installed()):
        with pytest.raises(PluginError, match="'torchao' is not installed; pip install"):
            find("torchao")


def test_a_plugin_of_an_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from accel_bench.plugins import registry as listing

    without = tuple(plugin for plugin in installed() if plugin.name != "torch-compile")
    monkeypatch.setattr(listing, "installed", lambda: without)
    with pytest.raises(PluginError, match=r"pip install \./plugins/compile"):
        find("torch-compile")
    with pytest.raises(PluginError, match="did you mean 'torch-compile'"):
        find("compile")


@pytest.mark.parametrize(
    ("requirement", "words"),
    [
        ("pydantic", None),
        ("pydantic>=2", None),
        ("pydantic>=999", "pydantic>=999 is needed, "),
        ("no-such-package", "no-such-package is not installed"),
        ("no-such-package; python_version < '3'", None),
        ("no-such-package; extra == 'all'", None),
        ("!!", "'!!' is no requirement: "),
    ],
)
def test_requirements_are_held_against_what_is_installed(
    requirement: str, words: str | None
) -> None:
    found = unmet_requirement(requirement)
    assert (found is None) if words is None else str(found).startswith(words)


def null_work(**changes: Any) -> Scenario:
    """A resolved work without torch."""
    work = null_scenario({}, **changes)
    del work["stacks"]
    return Scenario.model_validate_json(json.dumps(work))


def test_what_is_active_is_what_is_named_in_that_order() -> None:
    names = [member.name for member in activate(null_work(), Stack(name="baseline")).plugins]
    assert names == ["causal-lm", "null", "null", "null", "null", "local"]


def test_a_plugin_that_cannot_fill_its_slot_is_refused() -> None:
    with pytest.raises(PluginError, match="plugin 'local' cannot be used as optimizer: it has no"):
        activate(null_work(optimizer={"use": "local"}), Stack(name="baseline"))


@pytest.mark.parametrize("slot", ["model", "data", "optimizer", "engine", "launcher"])
def test_a_slot_that_must_be_filled_cannot_be_empty(slot: str) -> None:
    with pytest.raises(PluginError, match=f"{slot}: none cannot be run"):
        activate(null_work(**{slot: {"use": "none"}}), Stack(name="baseline"))


def test_planning_without_torch_imports_none() -> None:
    code = (
        "import sys; from accel_bench.plugins.manager import activate;"
        "from accel_bench.scenario.models import Scenario, Stack;"
        "activate(Scenario.model_validate({}), Stack(name='baseline'));"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("declaration", "problem"),
    [
        ('conflicts = ("mine",)', "conflicts"),
        ('requires = "numpy"', "requires"),
        ('after = "mine"', "after"),
        ('loss_tolerance = "0.1"', "loss_tolerance"),
        ("Options = None", "Options is not a subclass"),
    ],
)
def test_a_declaration_of_the_wrong_type_breaks_the_plugin(
    installing: Callable[..., None], declaration: str, problem: str
) -> None:
    source = f"from accel_bench import Plugin\nclass P(Plugin):\n    {declaration}\n"
    name = f"wrong-{problem.partition(' ')[0].lower()}"
    installing(name, {name: "P"}, source)
    with pytest.raises(PluginError, match=f"{name}.* is broken: {problem}"):
        load_class(name)


def test_a_constructor_that_exits_is_blamed(installing: Callable[..., None]) -> None:
    source = (
        "from accel_bench import Plugin\nclass P(Plugin):\n"
        "    def __init__(self, options, name=''):\n        raise SystemExit(3)\n"
    )
    installing("rude", {"rude": "P"}, source)
    with pytest.raises(PluginError, match=r"'rude'.* cannot be made: SystemExit: 3"):
        activate(Scenario(), Stack(name="s", uses=({"use": "rude"},)))  # type: ignore[arg-type]


def test_a_plugin_need_not_be_hashable() -> None:
    class Unhashable(First):
        __hash__ = None  # type: ignore[assignment]

    active = ActivePlugins([ActivePlugin(Unhashable(Options(), "u"), "u", None, "d")])
    assert [found for _, found in active.call_all("accelerate_model", run=None)] == ["u"]


def test_the_options_of_the_generic_argument_are_the_plugin_s() -> None:
    class Named(Options):
        factor: float = 1.0

    class Generic(Plugin[Named]):
        """Says its options once."""

    class Child(Generic):
        """Says nothing."""

    assert Generic.Options is Child.Options is Named
    assert First.Options is Options


def test_a_task_that_shows_approximations_more_widens_what_plugins_declare() -> None:
    class Long(Task[Options]):
        """Adds up what each token shows."""

        loss_sensitivity = 4.0

    class Contrast(Task[Options]):
        """Learns from small differences."""

        update_sensitivity = 1.5

    class Most(Task[Options]):
        """Would allow what did not train at all."""

        update_sensitivity = 5.0

    class Coarse(Plugin[Options]):
        """Rounds weights."""

        loss_tolerance = 0.02
        update_tolerance = 0.3

    coarse = ActivePlugin(Coarse(Options()), "coarse", None, "tests")

    def declared(*kinds: type[Task[Options]]) -> tuple[float, float]:
        tasks = [ActivePlugin(kind(Options()), "mine", "task", "tests") for kind in kinds]
        active = ActivePlugins([coarse, *tasks])
        return active.loss_tolerances["coarse"], active.update_tolerances["coarse"]

    assert declared() == (0.02, 0.3)
    assert declared(Long) == pytest.approx((0.08, 0.3))
    assert declared(Contrast) == pytest.approx((0.02, 0.45))
    assert declared(Most) == pytest.approx((0.02, 0.95))
