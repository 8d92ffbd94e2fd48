"""What the list of shipped plugins says is what their classes say."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from accel_bench.documents.presets import how_to_get
from accel_bench.errors import install_command
from accel_bench.plugin import Plugin
from accel_bench.plugins.describe import slots_of
from accel_bench.plugins.shipped import ShippedPlugin, extras, shipped

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = "example"
"""The plugin that is copied and not released."""

DEVICES = {"cpu", "cuda"}
"""Every device type there is."""


def entry_points() -> dict[str, str]:
    """Every plugin of the repository, installed or not, with the place of its class."""
    files = (ROOT / "pyproject.toml", *(ROOT / "plugins").glob("*/pyproject.toml"))
    projects = [tomllib.loads(file.read_text(encoding="utf8"))["project"] for file in files]
    found = {k: v for one in projects for k, v in one["entry-points"]["accel_bench"].items()}
    return {name: value for name, value in found.items() if name != TEMPLATE}


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> dict[str, type[Plugin[Any]]]:
    """The classes: light modules, which import although their libraries are not installed."""
    for folder in (ROOT / "plugins").iterdir():
        monkeypatch.syspath_prepend(folder)
    for name, module in [*sys.modules.items()]:
        # Another test's stand-in of the same name would be found in their place.
        if name.startswith("accel_bench_") and ROOT not in Path(module.__file__ or "").parents:
            monkeypatch.delitem(sys.modules, name)
    places = {name: value.split(":") for name, value in entry_points().items()}
    return {n: getattr(importlib.import_module(m), kind) for n, (m, kind) in places.items()}


def test_the_list_has_every_shipped_plugin_and_no_other() -> None:
    assert set(shipped()) == set(entry_points())


def test_what_it_says_is_what_the_classes_say(kinds: dict[str, type[Plugin[Any]]]) -> None:
    for name, kind in kinds.items():
        listed = shipped()[name].model_dump(
            include={"does", "fills", "adapter", "dtypes", "devices"}
        )
        assert listed == {
            "does": (inspect.getdoc(kind) or "").partition("\n")[0],
            "fills": slots_of(kind),
            "adapter": kind.needs_adapter,
            "dtypes": tuple(sorted(kind.dtypes or ())),
            "devices": () if kind.devices == DEVICES else tuple(sorted(kind.devices or ())),
        }, name


def test_it_names_the_stacks_of_every_extra() -> None:
    folders = (path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
    stacks = "accel_bench_*/sample_configurations/stacks/*.yaml"
    found = {
        (use if isinstance(use, str) else use["use"], file.stem)
        for folder in folders
        for file in folder.glob(stacks)
        for use in yaml.safe_load(file.read_text(encoding="utf8"))["use"]
    }
    listed = {(name, stack) for name, plugin in extras().items() for stack in plugin.stacks}
    assert listed == {(plugin, stack) for plugin, stack in found if plugin != TEMPLATE}


def test_it_names_the_scenarios_of_every_extra() -> None:
    found = {
        file.stem
        for folder in (path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
        for file in folder.glob("accel_bench_*/sample_configurations/scenarios/*.yaml")
    }
    listed = [scenario for plugin in extras().values() for scenario in plugin.scenarios]
    assert sorted(listed) == sorted(found)


@pytest.mark.parametrize(
    ("kind", "name", "extra"), [("stacks", "gptq", "gptq"), ("scenarios", "moe-cpu", "moe")]
)
def test_what_an_extra_brings_is_told_with_the_command_that_installs_it(
    kind: str, name: str, extra: str
) -> None:
    assert how_to_get(kind, name, []) == f"; it is not installed: {install_command(extra)}"
    assert how_to_get(kind, "moe-cpv", ["moe-cpu"]) == "; did you mean 'moe-cpu'?"


def test_needs_are_said_in_words() -> None:
    plugin = ShippedPlugin(does="It.", adapter=True, dtypes=("a", "b"), devices=("cuda",))
    assert plugin.needs == ("an adapter", "a or b", "cuda")
    assert ShippedPlugin(does="It.").needs == ()
