"""Requirements held against what is installed, plugins of another contract, and words people use
for what is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_plugins.bare import lay_out
from fault_plugins.distribution import install

from accel_bench import errors
from accel_bench.errors import PluginError, install_command
from accel_bench.plugins.manager import load_class
from accel_bench.plugins.registry import find, installed, unmet_requirement
from accel_bench.plugins.shipped import extras, plugin_meant_by


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path, in which distributions can be laid out."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    for cached in (installed, unmet_requirement):
        cached.cache_clear()
    yield folder
    for cached in (installed, unmet_requirement):
        cached.cache_clear()


@pytest.mark.parametrize(
    ("requirement", "reason"),
    [
        ("base>=1.5", None),
        ("base>=1.5,<1.6", None),
        ("base>=2", "base>=2 is needed, 1.5 is installed"),
        ("base<1.5,>=1", "base<1.5,>=1 is needed, 1.5 is installed"),
        ("BASE_>=9; python_version < '3'", None),
        ("base>=2; python_version >= '3'", "base>=2 is needed, 1.5 is installed"),
        ("base[light]>=1", None),
        ("base[heavy]>=1", "base[heavy]>=1: absent>=3 is not installed"),
        ("base[all]", "base[all]: base[heavy,light]: absent>=3 is not installed"),
        ("base[round]", None),
        ("base[unknown]", None),
        ("pre>=2.0rc1", None),
        ("odd>=1", "odd>=1 is needed, not-a-version is installed"),
        ("odd", None),
    ],
)
def test_a_requirement_is_held_against_version_marker_and_extras(
    site: Path, requirement: str, reason: str | None
) -> None:
    brought = (
        "pydantic; extra == 'light'",
        "absent>=3; extra == 'heavy'",
        "base[heavy,light]; extra == 'all'",
        "base[round]; extra == 'round'",
        "absent; python_version < '3'",
    )
    lay_out(site, "base", "1.5", brought)
    lay_out(site, "pre", "2.0rc2")
    lay_out(site, "odd", "not-a-version")
    assert unmet_requirement(requirement) == reason


def test_everything_that_is_missing_is_listed_and_the_last_names_the_extra(site: Path) -> None:
    requires = ("accel-bench>=0.1,<0.2", "absent>=7.6", "pydantic>=999", "pydantic")
    install(site, "accel-bench-gptq", {"autogptq": "Any"}, "", requires)
    first, second = find("autogptq").unmet()
    assert first == "absent>=7.6 is not installed"
    assert second.startswith("pydantic>=999 is needed, ")
    assert second.endswith(f" is installed; {install_command('gptq')}")


def test_what_a_class_and_its_distribution_both_require_is_said_once(site: Path) -> None:
    install(site, "bench-both", {"both": "Any"}, "", ("absent>=7.6",))
    found = find("both").unmet(("absent>=7.6", "also-absent"))
    assert found == ("absent>=7.6 is not installed", "also-absent is not installed")


# A plugin that was built for another contract.

IMPORTED = "raise SystemExit('its module was imported')\n"


@pytest.mark.parametrize(
    ("requirement", "built_for", "way_out"),
    [
        (
            "accel-bench>=0.2,<0.3",
            "accel-bench>=0.2,<0.3",
            "upgrade accel-bench: pip install --upgrade 'accel-bench>=0.2,<0.3'",
        ),
        (
            "Accel_Bench[parquet]==9.*",
            "Accel_Bench[parquet]==9.*",
            "upgrade accel-bench: pip install --upgrade 'Accel_Bench[parquet]==9.*'",
        ),
        ("accel.bench<0.1", "accel.bench<0.1", "pip install --upgrade bench-other"),
        ("accel-bench~=0.0.3", "accel-bench~=0.0.3", "pip install --upgrade bench-other"),
    ],
)
def test_a_plugin_of_another_contract_is_refused_with_both_ranges_before_its_import(
    site: Path, requirement: str, built_for: str, way_out: str
) -> None:
    install(site, "bench-other", {"other": "Other"}, IMPORTED, (requirement,))
    with pytest.raises(PluginError) as caught:
        load_class("other")
    said = str(caught.value)
    assert said.startswith(f"plugin 'other' (bench-other 1.0) is built for {built_for}; ")
    assert "this is accel-bench 0." in said
    assert "which takes plugins built for accel-bench>=0." in said
    assert said.endswith(way_out)
    assert "\n" not in said
    (listed,) = find("other").unmet()
    assert listed.startswith(f"built for {built_for}; ")


@pytest.mark.parametrize(
    "requires",
    [
        (),
        ("pydantic>=2",),
        ("accel-bench",),
        ("accel-bench>=0.1,<0.2",),
        ("accel-bench>=9; python_version < '3'",),
        ("accel-bench-gptq>=9; extra == 'all'",),
        ("!! no requirement",),
    ],
)
def test_a_plugin_that_asks_for_no_other_contract_is_not_refused(
    site: Path, requires: tuple[str, ...]
) -> None:
    source = "from accel_bench import Plugin\nclass Fits(Plugin):\n    '''Fits.'''\n"
    name = "bench_fits"
    install(site, name, {"fits": "Fits"}, source, requires)
    assert find("fits").wrong_contract is None
    assert load_class("fits").__name__ == "Fits"


def test_our_own_version_is_one_of_the_contract_that_we_take() -> None:
    from packaging.specifiers import SpecifierSet

    from accel_bench import __version__
    from accel_bench.plugin import CONTRACT

    assert SpecifierSet(CONTRACT).contains(__version__, prereleases=True)


# Plugins that are not installed.


@pytest.mark.parametrize(
    ("name", "extra"), [("autogptq", "gptq"), ("bitsandbytes", "bnb"), ("torchao", "torchao")]
)
def test_a_plugin_that_is_not_installed_names_its_extra(
    name: str, extra: str, without_extras: None
) -> None:
    with pytest.raises(PluginError) as caught:
        find(name)
    how = install_command(extra)
    assert str(caught.value) == f"the plugin {name!r} is not installed; {how}"


@pytest.mark.parametrize(
    ("word", "name", "extra"),
    [
        ("gptq", "autogptq", "gptq"),
        ("GPTQ", "autogptq", "gptq"),
        ("auto_gptq", "autogptq", "gptq"),
        ("gptqmodel", "autogptq", "gptq"),
        ("bnb", "bitsandbytes", "bnb"),
        ("qlora", "bitsandbytes", "bnb"),
        ("compile", "torch-compile", "compile"),
    ],
)
def test_a_word_that_people_use_for_a_plugin_is_answered_with_its_name(
    word: str, name: str, extra: str, without_extras: None
) -> None:
    with pytest.raises(PluginError) as caught:
        find(word)
    said = str(caught.value)
    assert said.startswith(f"no plugin is called {word!r}; did you mean {name!r}?")
    assert said.endswith(f"It is not installed: {install_command(extra)}")


LIBRARIES = ("mlflow", "tensorboard", "vision", "wandb")
"""Extras of plugins in the box."""


def test_every_extra_is_installed_by_a_command_that_works_today(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = Path(__file__).parents[2]
    for extra in {plugin.extra for plugin in extras().values()}:
        _, _, package, *_ = install_command(extra).split()
        of_libraries = package in [f"'accel-bench[{one}]'" for one in LIBRARIES]
        assert of_libraries or (root / package / "pyproject.toml").exists()
    assert install_command("tune") == "pip install 'accel-bench[tune]'"  # A library's, no plugin's.
    monkeypatch.setattr(errors, "PLUGINS", root / "nowhere")
    assert install_command("gptq") == "pip install 'accel-bench[gptq]'"


def test_a_plugin_that_is_installed_is_meant_without_a_word_on_installing(site: Path) -> None:
    install(site, "accel-bench-gptq", {"autogptq": "Any"}, "")
    with pytest.raises(PluginError, match=r"did you mean 'autogptq'\?$"):
        find("gptq")


def test_a_named_stack_in_a_list_of_plugins_is_told_how_to_stand() -> None:
    with pytest.raises(PluginError, match=r"is a named stack: .*\{mine: torch-compile-model\}"):
        find("torch-compile-model")


def test_no_two_plugins_are_meant_by_one_word() -> None:
    words = [word for name, extra in extras().items() for word in {name, *extra.also}]
    words += {extra.extra for extra in extras().values()} - set(words)
    assert len(words) == len(set(words))
    assert plugin_meant_by("no-such-word") is None


def test_the_name_of_an_extra_that_brings_several_plugins_means_the_first() -> None:
    assert [name for name, extra in extras().items() if extra.extra == "kernels"] == [
        "fused-kernels",
        "liger",
    ]
    assert plugin_meant_by("kernels") == "fused-kernels"


@pytest.fixture
def without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plugin of an extra is installed."""
    from accel_bench.plugins import registry as listing

    without = tuple(plugin for plugin in installed() if plugin.name not in extras())
    monkeypatch.setattr(listing, "installed", lambda: without)
