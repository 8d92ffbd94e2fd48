"""Plugins that are broken, doubled, misspelt or out of place are refused before anything starts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from fault_plugins.distribution import SOUND, install
from faults.program import Finished, Program, null_scenario, write_scenario

from accel_bench.result import Status

BROKEN = {
    "syntax": ("def broken(:\n", "SyntaxError"),
    "raises": ("raise ValueError('no licence')\n", "ValueError: no licence"),
    "exits": ("import sys; sys.exit(7)\n", "its import calls sys.exit(7)"),
    "endless": ("while True: pass\n", "its import takes more than 1 s"),
    "leaves": ("import os; os._exit(0)\n", "its import ends the process (exit code 0)"),
    "crashes": (
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)\n",
        "its import ends the process (SIGSEGV)",
    ),
    "deaf": (
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n"
        "while True: pass\n",
        "its import takes more than 1 s",
    ),
    "missing": ("import no_such_module\n", "No module named 'no_such_module'"),
    "no-plugin": ("class Sound: pass\n", "is not a subclass of accel_bench.Plugin"),
    "heavy": ("import torch\n" + SOUND, "imports torch at module level"),
}
"""Modules that cannot be imported, and what is said of them. The one with torch comes last."""

ENDS_WORKERS = "import os\nif 'ACCEL_BENCH_PARENT' in os.environ: os._exit(0)\n"
"""An import that returns in the parent, and ends a worker."""

MISPLACED_SOURCE = f"""{SOUND}
import os
import signal
import time
from accel_bench.errors import PluginError

class WithOptions(Options):
    bits: int = 4

class Optional(Sound, Plugin[WithOptions]):
    Options = WithOptions

class Later(Sound):
    after = ("sound",)

class Earlier(Sound):
    before = ("later",)

class Chicken(Sound):
    after = ("egg",)

class Egg(Sound):
    after = ("chicken",)

class Enemy(Sound):
    conflicts = frozenset({{"sound"}})

class One(Plugin[Options]):
    @hookimpl
    def build_optimizer(self, run):
        return None

class Name(Plugin[Options]):
    @hookimpl
    def accelerate_modle(self, run):
        return None

class Argument(Plugin[Options]):
    @hookimpl
    def accelerate_model(self, rnu):
        return None

class Wrapper(Plugin[Options]):
    @hookimpl(wrapper=True)
    def accelerate_model(self, run):
        return (yield)

class Maker(Sound):
    def __init__(self, options, name=""):
        raise RuntimeError("no licence")

class Claimer(One):
    def claims(self):
        raise RuntimeError("no licence")

class Printer(Sound):
    def fingerprint(self, experiment):
        raise RuntimeError("no licence")

class Object(Sound):
    def fingerprint(self, experiment):
        return object()

class Checker(Sound):
    @hookimpl
    def check_scenario(self):
        raise RuntimeError("no licence")

class Lazy(Sound):
    @hookimpl
    def check_scenario(self):
        yield "first"
        raise RuntimeError("no licence")

class Wording(Sound):
    @hookimpl
    def check_scenario(self):
        return "no licence"

class Sleeper(Sound):
    @hookimpl
    def check_scenario(self):
        time.sleep(3600)

class Endless(One):
    def claims(self):
        time.sleep(3600)

class Refuser(Sound):
    @hookimpl
    def check_scenario(self):
        raise PluginError("no licence")

class Numbers(Sound):
    @hookimpl
    def check_scenario(self):
        return [1]

class Unmade(Sound):
    def __init__(self, options, name=""):
        os._exit(0)

class Unclaimed(One):
    def claims(self):
        os._exit(0)

class Unprinted(Sound):
    def fingerprint(self, experiment):
        os.kill(os.getpid(), signal.SIGSEGV)

class Unchecked(Sound):
    @hookimpl
    def check_scenario(self):
        os._exit(0)
"""
MISPLACED: dict[str, tuple[list[Any], str]] = {
    "two-of-one-name": (
        ["same"],
        "the plugin 'same' is brought by bench-first and bench-second; write 'bench-first:same' or",
    ),
    "two-in-one-distribution": (
        ["doubled"],
        "the plugin 'doubled' is brought twice by bench-twins 1.0, as bench_twins:Sound and "
        "bench_twins:Other: one of them needs another name",
    ),
    "two-claims": (["one", "two"], "'one' and 'two' both claim build_optimizer"),
    "unknown": (["soundd"], "no plugin is called 'soundd'; did you mean 'sound'?"),
    "option": (
        [{"use": "optional", "bist": 8}],
        "plugin 'optional': unknown key 'bist'; did you mean 'bits'?",
    ),
    "text": (
        [{"use": "optional", "bits": "four"}],
        "plugin 'optional': bits: Input should be a valid integer",
    ),
    "twice": (["sound", "sound"], "stack 'tested' uses 'sound' twice"),
    "order": (["later", "sound"], "write ['sound', 'later'] instead"),
    "long-order": (
        ["later", "sound", "earlier"],
        "['later', 'sound', 'earlier'] does not work; write ['sound', 'earlier', 'later'] instead",
    ),
    "circle": (["chicken", "egg"], "chicken, egg each want to stand before the other"),
    "conflict": (["enemy", "sound"], "'enemy' conflicts with 'sound'"),
    "hook": (
        ["name"],
        "plugin 'name' (bench-second) does not fit the hooks: there is no hook "
        "'accelerate_modle'; did you mean 'accelerate_model'?",
    ),
    "argument": (
        ["argument"],
        "plugin 'argument' (bench-second) does not fit the hooks: accelerate_model has no argument "
        "'rnu'; did you mean 'run'?",
    ),
    "wrapper": (["wrapper"], "accelerate_model is a wrapper"),
    "maker": (["maker"], "(bench-second) cannot be made: RuntimeError: no licence"),
    "claimer": (["claimer"], "(bench-second) failed in claims: RuntimeError: no licence"),
    "printer": (["printer"], "(bench-second) failed in fingerprint: RuntimeError: no licence"),
    "object": (["object"], "(bench-second) failed in fingerprint: TypeError"),
    "checker": (["checker"], "plugin 'checker' (bench-second) failed in check_scenario: Runtime"),
    "lazy": (["lazy"], "plugin 'lazy' (bench-second) failed in check_scenario: RuntimeError"),
    "sleeper": (["sleeper"], "(bench-second) failed in check_scenario: it did not return within 1"),
    "endless-claims": (["endless-claims"], "failed in claims: it did not return within 1 s"),
    "refuser": (["refuser"], "plugin 'refuser' (bench-second) failed in check_scenario: no lic"),
    "wording": (["wording"], "failed in check_scenario: returned str where a list is expected"),
    "numbers": (
        ["numbers"],
        "failed in check_scenario: returned 1 where a list of texts is expected",
    ),
    "unmade": (["unmade"], "'unmade' (bench-second) failed in __init__: it ends the process (exit"),
    "unclaimed": (
        ["unclaimed"],
        "'unclaimed' (bench-second) failed in claims: it ends the process",
    ),
    "unprinted": (["unprinted"], "failed in fingerprint: it ends the process (SIGSEGV)"),
    "unchecked": (
        ["sound", "unchecked"],
        "plugin 'unchecked' (bench-second) failed in check_scenario: it ends the process",
    ),
}
"""Stacks that cannot be used, and what is said of them."""

TRIED_APART = ("checker", "sleeper", "two-claims", "unchecked", "unclaimed", "unmade", "unprinted")
"""Some of them are planned in a trial's process first; after torch is imported, none is."""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """A program among whose plugins everything is wrong that can be."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "site").mkdir()
    program = Program(folder, folder / "site", {"ACCEL_BENCH_IMPORT_SECONDS": "1"})
    for name, (source, _) in BROKEN.items():
        install(program.site, f"bench-{name}", {name: "Sound"}, source)
    (program.site / "torch.py").write_text("", encoding="utf8")
    words = "optional later earlier chicken egg enemy one name argument wrapper maker claimer "
    words += "printer object checker lazy wording numbers sound sleeper refuser "
    words += "unmade unclaimed unprinted unchecked"
    plugins = {word: word.title() for word in words.split()} | {"endless-claims": "Endless"}
    install(program.site, "bench-first", {"same": "Sound"}, SOUND)
    install(program.site, "bench-twins", {"doubled": "Sound"}, SOUND)
    (twins,) = program.site.glob("bench_twins-*/entry_points.txt")
    twins.write_text(f"{twins.read_text()}doubled = bench_twins:Other\n", encoding="utf8")
    install(program.site, "bench-double", {"double": "Sound"}, ENDS_WORKERS + SOUND)
    both = {**plugins, "two": "One", "same": "Sound"}
    install(program.site, "bench-second", both, MISPLACED_SOURCE)
    return program


@pytest.fixture(scope="module")
def validated(broken: Program) -> Finished:
    """The program after it was asked about them without torch: one of them imports it."""
    wrong = sorted((*BROKEN, *TRIED_APART), key=lambda name: name == "heavy")
    return broken.finish(broken.start("scenarios", "check", *files_of(broken, wrong)))


@pytest.fixture(scope="module")
def planned(broken: Program) -> Finished:
    """The program after it was asked about the others with torch, which needs no trials."""
    import torch  # noqa: F401

    return broken.call("scenarios", "check", *files_of(broken, {*MISPLACED} - {*TRIED_APART}))


def files_of(broken: Program, names: Iterable[str]) -> list[str]:
    """Write a scenario with each of them as a stack."""
    files = []
    for name in names:
        uses = [name] if name in BROKEN else MISPLACED[name][0]
        scenario = null_scenario({"baseline": [], "tested": uses})
        files.append(str(write_scenario(broken.folder / f"{name}.yaml", scenario)))
    return files


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.box
def test_a_broken_one_is_named_with_its_distribution(validated: Finished, name: str) -> None:
    assert validated.code == 2
    line = next(text for text in validated.err.splitlines() if f"plugin '{name}'" in text)
    assert f"plugin '{name}' (bench-{name} 1.0)" in line
    assert BROKEN[name][1] in line


@pytest.mark.parametrize("name", MISPLACED)
@pytest.mark.box
def test_what_cannot_be_used_is_said_with_the_way_out(
    validated: Finished, planned: Finished, name: str
) -> None:
    assert MISPLACED[name][1] in (validated if name in TRIED_APART else planned).err


@pytest.mark.box
def test_all_of_that_is_said_without_a_traceback(validated: Finished, planned: Finished) -> None:
    said = validated.err + planned.err
    assert "Traceback" not in said
    assert len(said.splitlines()) == len(BROKEN) + len(MISPLACED)


@pytest.mark.parametrize(
    "name",
    [
        *("endless", "leaves", "order", "checker"),
        *(pytest.param(one, marks=pytest.mark.release) for one in ("hook", "refuser", "unchecked")),
    ],
)
@pytest.mark.box
def test_nothing_is_started_for_them(broken: Program, name: str) -> None:
    files_of(broken, [name])
    call = broken.call_apart if name in ("leaves", "unchecked") else broken.call
    finished = call("run", f"{name}.yaml")
    assert finished.code == 2
    assert "Traceback" not in finished.err
    assert not broken.results_folder.exists()


@pytest.mark.parametrize(
    "command",
    [
        ("plugins", "show", "leaves"),
        # The next one runs a scenario as `run` does above.
        pytest.param(("gate", "leaves.yaml", "--stack", "tested"), marks=pytest.mark.release),
    ],
)
@pytest.mark.box
def test_no_command_ends_with_0_because_a_plugin_ends_the_process(
    broken: Program, command: tuple[str, ...]
) -> None:
    files_of(broken, ["leaves"])
    finished = broken.call_apart(*command)
    assert finished.code == 2
    assert "plugin 'leaves' (bench-leaves 1.0) is broken: its import ends" in finished.err


@pytest.mark.parametrize("name", ["syntax", "endless"])
@pytest.mark.box
def test_check_says_what_is_wrong_with_it(broken: Program, name: str) -> None:
    finished = broken.call("plugins", "check", name)
    assert finished.code == 2
    assert f"plugin '{name}' (bench-{name} 1.0) is broken" in finished.out
    assert BROKEN[name][1] in finished.out


@pytest.mark.box
def test_check_knows_the_right_names_too(broken: Program) -> None:
    finished = broken.call("plugins", "check", "argument")
    assert finished.code == 2
    assert "accelerate_model has no argument 'rnu'; did you mean 'run'?" in finished.out


@pytest.mark.box
def test_all_of_them_are_listed_from_metadata_alone(broken: Program) -> None:
    finished = broken.call("plugins", "--format", "json")
    assert finished.code == 0
    listed = {row["name"]: row["distribution"] for row in json.loads(finished.out)}
    assert listed.items() >= {name: f"bench-{name}" for name in BROKEN}.items()


def test_they_harm_nobody_who_does_not_name_them(broken: Program, tmp_path: Path) -> None:
    program = Program(tmp_path, broken.site, broken.environment)
    finished = program.run(null_scenario({"baseline": [], "sound": ["sound"]}), "--quiet")
    assert finished.code == 0
    assert len(finished.results) == 2


def test_one_whose_import_ends_the_worker_is_named_in_its_row(
    broken: Program, tmp_path: Path
) -> None:
    program = Program(tmp_path, broken.site, broken.environment)
    finished = program.run(null_scenario({"baseline": [], "ended": ["sound", "double"]}), "--quiet")
    assert finished.code == 1
    row = finished.result("ended")
    assert (row.status, row.phase) == (Status.FAILED, "activation")
    assert row.reasons == (
        "ended by exit 0 in activation of plugin 'double' (bench-double) after 0 steps, without a "
        "result",
    )
