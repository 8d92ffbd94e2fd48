"""What would be without effect in a plugin's class is refused when the class is made."""

from __future__ import annotations

import subprocess
import sys

import pytest

from accel_bench import Plugin, hookimpl, hookspecs
from accel_bench.errors import PluginError
from accel_bench.plugin import HOOKS, Options
from accel_bench.plugins.validation import hook_arguments


def made(**attributes: object) -> type:
    return type("It", (Plugin,), attributes)


def test_a_hook_without_its_mark_is_refused() -> None:
    with pytest.raises(PluginError, match=r"It\.load_model is never called: write @hookimpl above"):
        made(load_model=lambda self, run: None)


def test_an_override_of_a_marked_hook_needs_a_mark_of_its_own() -> None:
    base = made(load_model=hookimpl(lambda self, run: None))
    with pytest.raises(PluginError, match=r"Mine\.load_model is never called"):
        type("Mine", (base,), {"load_model": lambda self, run: None})
    assert issubclass(type("Its", (base,), {}), base)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("confilcts", "conflicts"),
        ("dtype", "dtypes"),
        ("need_adapter", "needs_adapter"),
        ("options", "Options"),
        ("loss_tolerence", "loss_tolerance"),
    ],
)
def test_a_misspelt_declaration_is_refused_with_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(PluginError, match=rf"It\.{name} declares nothing; did you mean '{meant}'"):
        made(**{name: frozenset({"float32"})})


def test_attributes_and_methods_of_the_author_are_left_alone() -> None:
    own = {"limit": 3, "model": None, "_dtype": "x", "mode": property(int), "task": lambda self: 1}
    assert made(**own, Options=Options, dtypes=frozenset({"float32"}))


def test_the_names_of_hooks_are_those_of_the_contract() -> None:
    assert HOOKS == [*hook_arguments()]
    assert {*HOOKS} <= {*vars(hookspecs)}


def test_an_import_of_the_base_alone_brings_the_hooks_along() -> None:
    program = "from accel_bench import Plugin\nclass Mine(Plugin):\n    def load_model(self): ...\n"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Mine.load_model is never called: write @hookimpl above it" in done.stderr
