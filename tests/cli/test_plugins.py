"""`accel-bench plugins`: a list from metadata alone, and what one plugin offers and needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.program import call, start
from fault_plugins.distribution import install

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
    done = start("plugins", "--format", "json", PYTHONPATH=str(site))
    rows = {(row["name"], row["distribution"]): row for row in json.loads(done.out)}
    good = rows["good", "accel-bench-good"]
    assert good["version"] == "1.0"
    assert good["unmet"] == ["no-such-distribution>=2 is not installed"]
    assert rows["example", "accel-bench-example"]["unmet"] == []


def test_a_name_that_two_distributions_bring_is_listed_with_the_rival(site: Path) -> None:
    done = start("plugins", "--format", "json", PYTHONPATH=str(site))
    rows = [row for row in json.loads(done.out) if row["name"] == "lora"]
    assert [row["distribution"] for row in rows] == ["accel-bench", "accel-bench-rival"]
    assert [row["duplicates"] for row in rows] == [["accel-bench-rival"], ["accel-bench"]]


def test_broken_plugins_are_listed_like_others(site: Path) -> None:
    done = start("plugins", PYTHONPATH=str(site))
    assert done.code == 0
    assert all(f"accel-bench-{name}" in done.out for name in BROKEN)


def test_the_table_has_the_names_of_the_json_as_columns() -> None:
    columns = list(json.loads(call("plugins", "--format", "json").out)[0])
    assert call("plugins").out.split("\n")[0].split() == columns


def test_show_gives_hooks_options_and_constraints(site: Path) -> None:
    done = start("plugins", "show", "good", "--format", "json", PYTHONPATH=str(site))
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
    done = start("plugins", "show", "good", PYTHONPATH=str(site))
    assert done.code == 0
    assert "Does good." in done.out
    assert "prepare_process, accelerate_model" in done.out
    assert "Bits of a weight." in done.out


@pytest.mark.parametrize("name", ["torch-compile", "lora", "text", "null"])
def test_every_option_of_ours_says_its_type_default_and_meaning(name: str) -> None:
    shown = json.loads(call("plugins", "show", name, "--format", "json").out)
    assert shown["options"]
    assert all(option["type"] and option["description"] for option in shown["options"])


@pytest.mark.parametrize(
    "name", [row["name"] for row in json.loads(call("plugins", "--format", "json").out)]
)
def test_every_installed_plugin_passes_its_check(name: str) -> None:
    done = call("plugins", "check", name)
    assert (done.code, done.out) == (0, f"{name}: ok\n")


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_broken_plugin_gives_its_reason(name: str, site: Path) -> None:
    done = start("plugins", "check", name, PYTHONPATH=str(site))
    assert done.code == 2
    assert BROKEN[name][1] in done.out
    assert "Traceback" not in done.out + done.err


def test_a_check_for_programs_says_whether_it_is_usable(site: Path) -> None:
    done = start("plugins", "check", "good", "--format", "json", PYTHONPATH=str(site))
    assert done.code == 2
    assert json.loads(done.out) == {
        "name": "good",
        "usable": False,
        "reasons": ["no-such-distribution>=2 is not installed"],
    }


def test_an_endless_import_is_cut_short(tmp_path: Path) -> None:
    install(tmp_path, "accel-bench-endless", {"endless": "It"}, "while True: pass\n")
    variables = {"PYTHONPATH": str(tmp_path), "ACCEL_BENCH_IMPORT_SECONDS": "0.5"}
    done = start("plugins", "check", "endless", **variables)
    assert done.code == 2
    assert "takes more than 0.5 s" in done.out


def test_a_doubled_plugin_cannot_be_shown_and_both_are_named(site: Path) -> None:
    done = start("plugins", "show", "lora", PYTHONPATH=str(site))
    assert done.code == 2
    assert "brought by accel-bench and accel-bench-rival" in done.err
