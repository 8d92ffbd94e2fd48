"""What would be without effect in a plugin's class is refused when that plugin is used."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_plugins.distribution import install

from accel_bench import Plugin, hookimpl
from accel_bench.errors import PluginError
from accel_bench.plugin import Options
from accel_bench.plugins.manager import load_class
from accel_bench.plugins.registry import installed
from accel_bench.plugins.validation import validation_problems, wrong_declarations


def made(**attributes: object) -> type[Plugin[Options]]:
    return type("It", (Plugin,), attributes)


def test_a_hook_without_its_mark_is_named() -> None:
    (problem,) = validation_problems(made(load_model=lambda self, run: None))
    assert problem.startswith("load_model is never called: write @hookimpl above it")


def test_an_override_of_a_marked_hook_needs_a_mark_of_its_own() -> None:
    base = made(load_model=hookimpl(lambda self, run: None))
    mine = type("Mine", (base,), {"load_model": lambda self, run: None})
    assert validation_problems(mine)[0].startswith("load_model is never called")
    assert not validation_problems(type("Its", (base,), {}))


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
def test_a_misspelt_declaration_is_named_with_what_was_meant(name: str, meant: str) -> None:
    kind = made(**{name: frozenset({"float32"})})
    for one in (kind, type("Its", (kind,), {})):
        (problem,) = wrong_declarations(one)
        assert problem.startswith(f"{name} declares nothing; did you mean '{meant}'")


def test_attributes_and_methods_of_the_author_are_left_alone() -> None:
    own = {"limit": 3, "model": None, "_dtype": "x", "mode": property(int), "task": lambda self: 1}
    kind = made(**own, Options=Options, dtypes=frozenset({"float32"}))
    assert not wrong_declarations(kind) and not validation_problems(kind)


SLIP = """
from accel_bench import Options, Plugin, hookimpl

class Broken(Plugin[Options]):
    '''Has a slip.'''
    confilcts = frozenset({"x"})

class Sound(Plugin[Options]):
    '''Has none.'''
    @hookimpl
    def accelerate_model(self, run): ...
"""


def test_a_slip_in_one_class_costs_that_plugin_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "accel-bench-two", {"broken": "Broken", "sound": "Sound"}, SLIP)
    monkeypatch.syspath_prepend(str(tmp_path))
    installed.cache_clear()
    try:
        assert load_class("sound").__name__ == "Sound"
        with pytest.raises(PluginError, match=r"'broken'.*confilcts declares nothing"):
            load_class("broken")
    finally:
        installed.cache_clear()
