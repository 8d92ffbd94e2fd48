"""`accel-bench plugins`: a list from metadata alone, and what one plugin offers and needs."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Collection
from pathlib import Path

import pytest
from accel_bench_catalog import plugin_facts
from accel_bench_catalog.plugin_view import ABSENT, NOT_INSTALLED
from accel_bench_catalog.plugins import list_plugins
from cli.program import call, write_nulls
from fault_plugins.distribution import install

from accel_bench.plugins import registry
from accel_bench.plugins.registry import InstalledPlugin, installed
from accel_bench.plugins.shipped import extras, shipped

GOOD = """\
from pydantic import Field
from accel_bench import Options, Plugin, hookimpl


class GoodOptions(Options):
    bits: int = Field(4, ge=2, le=8)
    \"\"\"Bits of a weight.\"\"\"

    names: tuple[str, ...] = ()
    \"\"\"Names of modules.\"\"\"

    path: str
    \"\"\"Where it lies.\"\"\"


class Good(Plugin[GoodOptions]):
    \"\"\"Does good.

    And more.
    \"\"\"

    Options = GoodOptions
    devices = frozenset({"cuda", "cpu"})
    conflicts = frozenset({"example"})
    after = ("lora",)

    @hookimpl
    def accelerate_model(self, run):
        pass

    @hookimpl
    def prepare_process(self):
        pass
"""

BROKEN = {
    "raises": ("raise RuntimeError('on purpose')", "RuntimeError: on purpose"),
    "exits": ("import sys; sys.exit(3)", "sys.exit(3)"),
    "syntax": ("class Plugin(:\n", "SyntaxError"),
    "absent": ("", "has no attribute 'It'"),
    "no-plugin": ("class It: pass\n", "is not a subclass of accel_bench.Plugin"),
    "misspelt": (
        "from accel_bench import Plugin, hookimpl\n"
        "class It(Plugin):\n"
        "    '''Misspells a hook.'''\n"
        "    @hookimpl\n"
        "    def load_modle(self, run): pass\n",
        "did you mean 'load_model'",
    ),
    "argument": (
        "from accel_bench import Plugin, hookimpl\n"
        "class It(Plugin):\n"
        "    '''Wants what there is not.'''\n"
        "    @hookimpl\n"
        "    def load_model(self, run, gpu): pass\n",
        "gpu",
    ),
    "hookless": (
        "from accel_bench import Plugin\nclass It(Plugin):\n    '''Does nothing.'''\n",
        "implements no hook",
    ),
    "wordless": (
        "from accel_bench import Options, Plugin, hookimpl\n"
        "class Some(Options):\n"
        "    bits: int = 4\n"
        "class It(Plugin[Some]):\n"
        "    '''Has an option that nobody explains.'''\n"
        "    Options = Some\n"
        "    @hookimpl\n"
        "    def load_model(self, run): pass\n",
        "option 'bits' has no description",
    ),
}
"""Sources of broken plugins, and what is said of them."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with installed distributions, good and broken."""
    folder = tmp_path_factory.mktemp("site")
    requires = ("no-such-distribution>=2",)
    install(folder, "accel-bench-good", {"good": "Good"}, GOOD, requires)
    for name, (source, _) in BROKEN.items():
        install(folder, f"accel-bench-{name}", {name: "It"}, source)
    install(folder, "accel-bench-rival", {"lora": "It"}, "")
    return folder


def test_the_list_has_name_distribution_version_and_what_is_missing(site: Path) -> None:
    done = call("plugins", "--format", "json", PYTHONPATH=str(site))
    rows = {(row["name"], row["distribution"]): row for row in json.loads(done.out)}
    good = rows["good", "accel-bench-good"]
    assert good["version"] == "1.0"
    assert good["unmet"] == ["no-such-distribution>=2 is not installed"]
    assert rows["example", "accel-bench-example"]["unmet"] == []


def test_a_name_that_two_distributions_bring_is_listed_with_the_rival(site: Path) -> None:
    done = call("plugins", "--format", "json", PYTHONPATH=str(site))
    rows = {row["name"]: row for row in json.loads(done.out) if "lora" in row["name"]}
    assert list(rows) == ["lora", "accel-bench-rival:lora"]
    ours, theirs = rows.values()
    assert (ours["distribution"], ours["duplicates"]) == ("accel-bench", ["accel-bench-rival"])
    assert (theirs["distribution"], theirs["duplicates"]) == ("accel-bench-rival", ["accel-bench"])
    assert ours["does"] != theirs["does"]


def test_broken_plugins_are_listed_like_others(site: Path) -> None:
    done = call("plugins", PYTHONPATH=str(site))
    assert done.code == 0
    assert all(f"accel-bench-{name}" in done.out for name in BROKEN)


def test_the_table_has_names_of_the_json_as_columns() -> None:
    columns = list(json.loads(call("plugins", "--format", "json").out)[0])
    header = call("plugins").out.split("\n")[0].split()
    assert columns[:4] == header == ["name", "fills", "does", "needs"]


def test_the_table_says_why_a_plugin_cannot_be_used(site: Path) -> None:
    printed = call("plugins", PYTHONPATH=str(site)).out
    reason = "good (accel-bench-good 1.0): no-such-distribution>=2 is not installed"
    assert f"cannot be used: {reason}\n" in printed
    assert "\naccel-bench-rival:lora " in printed


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is installed but what is in the box."""
    box = tuple(plugin for plugin in installed() if plugin.distribution == "accel-bench")
    monkeypatch.setattr(registry, "installed", lambda: box)


@pytest.mark.usefixtures("bare")
def test_what_is_shipped_and_not_installed_is_listed_with_what_it_does_and_needs() -> None:
    rows = {row["name"]: row for row in json.loads(call("plugins", "--format", "json").out)}
    gptq = rows["autogptq"]
    assert (gptq["installed"], gptq["usable"], gptq["version"]) == (False, False, None)
    assert (gptq["extra"], gptq["needs"]) == ("gptq", ["an adapter", "bfloat16 or float16"])
    assert gptq["does"].endswith(".")
    assert rows["activation-offload"]["needs"] == ["cuda"]
    assert rows["lora"]["installed"] is rows["lora"]["usable"] is True
    printed = call("plugins").out
    installed_ones, _, absent = printed.partition(NOT_INSTALLED)
    assert "\nlora " in installed_ones
    assert "\nautogptq " in absent
    in_the_box = {plugin.name for plugin in registry.installed()}
    assert set(extras()) - in_the_box <= set(absent.split())
    assert set(extras()) & in_the_box <= set(installed_ones.split())


@pytest.mark.usefixtures("bare")
@pytest.mark.box
def test_the_list_fits_80_columns_and_breaks_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    screen = Terminal()
    with contextlib.redirect_stdout(screen):
        list_plugins("table")
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert set(shipped()) <= {line.split(" ")[0] for line in lines}


def test_show_gives_hooks_options_and_constraints(site: Path) -> None:
    done = call("plugins", "show", "good", "--format", "json", PYTHONPATH=str(site))
    shown = json.loads(done.out)
    assert shown["summary"] == "Does good."
    assert shown["hooks"] == ["prepare_process", "accelerate_model"]
    assert shown["devices"] == ["cpu", "cuda"]
    assert shown["conflicts"] == ["example"]
    assert shown["after"] == ["lora"]
    assert shown["dtypes"] is None
    assert shown["unmet"] == ["no-such-distribution>=2 is not installed"]
    assert shown["options"] == [
        {"name": "bits", "type": "int", "default": 4, "description": "Bits of a weight."},
        {
            "name": "names",
            "type": "tuple[str, ...]",
            "default": [],
            "description": "Names of modules.",
        },
        {"name": "path", "type": "str", "default": "required", "description": "Where it lies."},
    ]


def test_show_prints_the_same_for_people(site: Path) -> None:
    done = call("plugins", "show", "good", PYTHONPATH=str(site))
    assert done.code == 0
    assert "Does good." in done.out
    assert "prepare_process, accelerate_model" in done.out
    assert "Bits of a weight." in done.out


@pytest.mark.parametrize("name", ["torch-compile", "lora", "text", "null"])
def test_every_option_of_ours_says_its_type_default_and_meaning(name: str) -> None:
    shown = json.loads(call("plugins", "show", name, "--format", "json").out)
    assert shown["options"]
    assert all(option["type"] and option["description"] for option in shown["options"])


@pytest.mark.box
@pytest.mark.parametrize("name", [plugin.name for plugin in installed()])
def test_every_installed_plugin_passes_its_check(name: str) -> None:
    if name in ("mlflow", "wandb"):  # `make release` installs them
        pytest.importorskip(name)
    done = call("plugins", "check", name)
    assert (done.code, done.out) == (0, f"{name}: ok\n")


@pytest.mark.parametrize("name", ["exits", "misspelt", "raises", "wordless"])
def test_a_broken_plugin_gives_its_reason(name: str, site: Path) -> None:
    """One for each way to be refused; the check of all, below, finds the reasons of all."""
    done = call("plugins", "check", name, PYTHONPATH=str(site))
    assert done.code == 2
    assert BROKEN[name][1] in done.out
    assert "Traceback" not in done.out + done.err


def test_a_check_for_programs_says_whether_it_is_usable(site: Path) -> None:
    done = call("plugins", "check", "good", "--format", "json", PYTHONPATH=str(site))
    assert done.code == 2
    assert json.loads(done.out) == {
        "name": "good",
        "usable": False,
        "reasons": ["no-such-distribution>=2 is not installed"],
    }


def test_an_endless_import_is_cut_short(tmp_path: Path) -> None:
    install(tmp_path, "accel-bench-endless", {"endless": "It"}, "while True: pass\n")
    variables = {"PYTHONPATH": str(tmp_path), "ACCEL_BENCH_IMPORT_SECONDS": "0.5"}
    done = call("plugins", "check", "endless", **variables)
    assert done.code == 2
    assert "takes more than 0.5 s" in done.out


def test_a_shipped_name_shows_the_shipped_plugin_and_the_other_has_an_address(site: Path) -> None:
    done = call("plugins", "show", "lora", "--format", "json", PYTHONPATH=str(site))
    assert json.loads(done.out)["distribution"] == "accel-bench"
    done = call("plugins", "show", "accel-bench-rival:lora", PYTHONPATH=str(site))
    assert done.code == 2
    assert "plugin 'accel-bench-rival:lora' (accel-bench-rival 1.0) is broken" in done.err


def test_the_list_says_what_can_be_used(site: Path) -> None:
    done = call("plugins", "--format", "json", PYTHONPATH=str(site))
    usable = {row["name"]: row["usable"] for row in json.loads(done.out)}
    assert usable["example"] is True
    assert usable["good"] is False
    assert usable["lora"] is usable["accel-bench-rival:lora"] is True


# `plugins check` of everything, and of a scenario.


@pytest.mark.long
@pytest.mark.parametrize(
    "left_out",
    [
        pytest.param((), id="all", marks=pytest.mark.release),
        pytest.param({*BROKEN} - {"syntax", "hookless"}, id="few"),
    ],
)
def test_a_check_of_all_imports_each_and_ends_with_0_whatever_it_finds(
    site: Path, left_out: Collection[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of another distribution takes a process: by default few of those."""
    others = {f"accel-bench-{name}" for name in left_out}
    if left_out:
        ours = {one.distribution for one in installed()}
        others |= ours - {"accel-bench", "accel-bench-example"}
    monkeypatch.setattr(plugin_facts, "installed", lambda: without(others))
    greedy = "import sys, types\nsys.modules['torch'] = types.ModuleType('torch')\n"
    for name in ("greedy", "also-greedy"):
        if not (site / f"accel_bench_{name.replace('-', '_')}.py").exists():
            install(site, f"accel-bench-{name}", {name: "It"}, greedy + SOUND)
    install(site, "accel-bench-suicidal", {"suicidal": "It"}, "import os; os._exit(5)\n")
    install(site, "accel-bench-newer", {"newer": "It"}, SOUND, ("accel-bench>=7",))
    done = call("plugins", "check", "--format", "json", PYTHONPATH=str(site))
    assert done.code == 0, done.err
    rows = {row["name"]: row for row in json.loads(done.out)}
    assert rows["example"]["usable"]
    assert rows["good"]["reasons"] == ["no-such-distribution>=2 is not installed"]
    for name in BROKEN.keys() - left_out:
        assert BROKEN[name][1] in rows[name]["reasons"][0]
    assert "imports torch at module level" in rows["greedy"]["reasons"][0]
    assert "imports torch at module level" in rows["also-greedy"]["reasons"][0]
    assert rows["suicidal"]["reasons"] == [
        "plugin 'suicidal' (accel-bench-suicidal 1.0) is broken: its import ends the process "
        "(exit code 5)"
    ]
    assert "is built for accel-bench>=7; " in rows["newer"]["reasons"][0]
    assert rows["lora"]["usable"]
    assert "has no attribute 'It'" in rows["accel-bench-rival:lora"]["reasons"][0]


def without(distributions: Collection[str]) -> tuple[InstalledPlugin, ...]:
    """Return the installed plugins but those of some distributions."""
    return tuple(one for one in installed() if one.distribution not in distributions)


SOUND = (
    "from accel_bench import Plugin, hookimpl\n"
    "class It(Plugin):\n"
    "    '''Fits.'''\n"
    "    devices = frozenset({'xpu'})\n"
    "    @hookimpl\n"
    "    def accelerate_model(self, run): pass\n"
)
"""A plugin that fits the hooks, for a device that nobody has."""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the plugin `elsewhere` is installed, which runs on no machine here."""
    install(tmp_path, "accel-bench-elsewhere", {"elsewhere": "It"}, SOUND)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_check_of_a_scenario_says_what_would_be_skipped_and_why(elsewhere: Path) -> None:
    path = write_nulls(elsewhere, stacks="{baseline: [], other: [elsewhere]}")
    with path.open("a") as file:
        file.write("sweep: {train.seed: [1, 2]}\nexclude:\n")
        file.write("- {when: {stack: baseline, train.seed: 2}, because: known to diverge}\n")
    check = ("plugins", "check", "--scenario", path.name)
    done = call(*check, "--format", "json", folder=elsewhere, PYTHONPATH=str(elsewhere))
    assert done.code == 0, done.err
    reason = "elsewhere: does not work with device cpu; it works with xpu"
    found = json.loads(done.out)
    assert found["scenario"] == "nulls"
    assert [(r["stack"], r["sweep"], r["here"], r["reasons"]) for r in found["experiments"]] == [
        ("baseline", {"train.seed": 1}, "runs", []),
        ("other", {"train.seed": 1}, "skipped", [reason]),
        ("baseline", {"train.seed": 2}, "skipped", ["excluded: known to diverge"]),
        ("other", {"train.seed": 2}, "skipped", [reason]),
    ]
    table = call(*check, folder=elsewhere, PYTHONPATH=str(elsewhere)).out
    assert "nulls: 1 of 4 experiments run here" in table
    assert reason in table


def test_a_check_of_a_scenario_of_which_nothing_is_left_ends_with_3(elsewhere: Path) -> None:
    write_nulls(elsewhere, stacks="{other: [elsewhere]}")
    check = ("plugins", "check", "--scenario", "nulls.yaml")
    done = call(*check, folder=elsewhere, PYTHONPATH=str(elsewhere))
    assert done.code == 3
    assert "0 of 1 experiments run here" in done.out
    assert "error: nothing can run here: elsewhere: does not work with device cpu" in done.err


def test_a_name_with_a_scenario_is_checked_as_a_stack_of_it(elsewhere: Path) -> None:
    write_nulls(elsewhere, stacks="{baseline: []}")
    with_scenario = ("--scenario", "nulls.yaml", "--format", "json")
    done = call("plugins", "check", "example", *with_scenario)
    assert done.code == 0, done.err
    assert [row["stack"] for row in json.loads(done.out)["experiments"]] == ["baseline", "example"]
    check = ("plugins", "check", "elsewhere", "--scenario", "nulls.yaml")
    done = call(*check, folder=elsewhere, PYTHONPATH=str(elsewhere))
    assert done.code == 2
    assert "stack 'elsewhere' cannot run here: elsewhere: does not work with device" in done.err


def test_a_check_knows_shipped_scenarios_by_name() -> None:
    found = json.loads(call("plugins", "check", "--scenario", "quickstart", "--format=json").out)
    assert {row["here"] for row in found["experiments"]} == {"runs"}


def test_a_check_of_a_scenario_that_is_none_ends_with_2() -> None:
    done = call("plugins", "check", "--scenario", "quikstart")
    assert done.code == 2
    assert "did you mean 'quickstart'" in done.err


def test_show_words_what_is_not_declared_by_what_it_means() -> None:
    lines = call("plugins", "show", "adamw").out.splitlines()
    shown = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in lines if "  " in line}
    assert (shown["loss_tolerance"], shown["strategy"]) == ("exactly equal", "none")
    assert (shown["fills"], shown["dtypes"]) == ("optimizer", "any")


def test_a_plugin_whose_folder_of_the_box_was_taken_away_is_offered_by_no_empty_extra() -> None:
    shown = {column.key: column.cell({"extra": ""}) for column in ABSENT if column.key == "package"}
    assert shown == {"package": "all of accel-bench: a folder of its box was taken away here"}
