"""A new plugin: every hook works as written, names are checked, nothing is overwritten."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import pytest
from accel_bench_new_plugin.command import NOT_WRITTEN, REGISTERED, plugin_files, write_plugin
from cli.program import call
from imported_modules import imported
from kit import declared
from packaging.requirements import Requirement
from several_ranks.scenarios import forking

from accel_bench.documents.load import load_file
from accel_bench.errors import PluginError
from accel_bench.plugins.registry import installed
from accel_bench.plugins.validation import hook_arguments
from accel_bench.testing import check_plugin, run_plugin

pytestmark = pytest.mark.long

WRITTEN = [hook for hook in hook_arguments() if hook not in {*REGISTERED, *NOT_WRITTEN}]
"""Hooks that have a part in the templates, in call order."""

ACTING = sorted(set(WRITTEN) - {"allocate_ranks", "launch_ranks", "parallelize_model"})
"""Hooks that one process can call."""

TOGETHER = (
    ["load_model", "load_data", "compile_model", "build_loss", "build_optimizer", "check_scenario"],
    [
        *("prepare_process", "add_adapter", "accelerate_model", "build_batches", "build_engine"),
        *("start_metrics", "finish_metrics", "observe_ranks", "prepare_experiment"),
    ],
)
"""Combinations of hooks in one plugin, which cover `ACTING`."""

NOTHING: declared.Effects = ([], [], "")
"""Modules that importing and planning with a light plugin may load."""

TWO_RANKS = """\
model: {{overrides: {{num_hidden_layers: 2}}}}
data: {{sequence_length: 32}}
measure: {{warmup: 1, steps: 2, rounds: 1}}
resources: {{device: cpu, devices: 2}}
parallel: {{use: {name}}}
stacks: {{alone: []}}
"""
"""A small scenario in which the plugin joins two ranks."""


def install_written(folder: Path, hooks: Sequence[str]) -> str:
    """Write a plugin, and lay it out as pip would install it; return its name."""
    name = f"new-{'-'.join(hooks).replace('_', '-')[:24]}".strip("-")
    written, _ = write_plugin(name, hooks, folder)
    project = load_file(written / "pyproject.toml").data["project"]
    info = written / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    requires = [f"Requires-Dist: {requirement}" for requirement in project["dependencies"]]
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", "Version: 0.1.0", *requires]
    (info / "METADATA").write_text("\n".join([*lines, ""]))
    ((key, value),) = project["entry-points"]["accel_bench"].items()
    (info / "entry_points.txt").write_text(f"[accel_bench]\n{key} = {value}\n")
    return name


@contextmanager
def written_and_installed(folder: Path, hooks: Sequence[str]) -> Iterator[str]:
    """Write and install a plugin, for as long as the block lasts."""
    name = install_written(folder, hooks)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder / f"accel-bench-{name}"))
        installed.cache_clear()
        yield name
    installed.cache_clear()


ALONE = [pytest.param([hook], marks=pytest.mark.release) for hook in ACTING]


def test_every_hook_is_tried_with_others() -> None:
    assert {hook for hooks in TOGETHER for hook in hooks} == {*ACTING}


@pytest.mark.parametrize("hooks", [*ALONE, *TOGETHER], ids="+".join)
def test_what_is_written_keeps_the_contract_and_acts(
    hooks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if hooks != TOGETHER[-1]:
        # One process imports all of them, in the test below; what planning brings is proven of one.
        monkeypatch.setattr(declared, "_effects", lambda *_: (NOTHING, NOTHING))
    trains_other = {"build_optimizer", "load_data", "add_adapter"} & {*hooks}
    with written_and_installed(tmp_path, hooks) as name:
        report = check_plugin(name, archs=(), dtypes=(), other_work=bool(trains_other))
    assert {"runs", "evidence"} <= {clause.name for clause in report.proven}


def test_importing_what_is_written_brings_no_heavy_package_and_sets_nothing(
    tmp_path: Path,
) -> None:
    """What `check_plugin` proves of one plugin by a process, of all of them by one."""
    names = [install_written(tmp_path, hooks) for hooks in ([], *([hook] for hook in WRITTEN))]
    folders = [str(tmp_path / f"accel-bench-{name}") for name in names]
    modules = [f"accel_bench_{name.replace('-', '_')}" for name in names]
    program = (
        "import os, sys\n"
        "import accel_bench\n"
        f"sys.path += {folders}\n"
        "before = dict(os.environ)\n"
        f"import {', '.join(modules)}\n"
        "assert dict(os.environ) == before\n"
    )
    assert not imported(program, {*declared.HEAVY})


@pytest.mark.parametrize("hook", ["allocate_ranks", "launch_ranks", "parallelize_model"])
def test_what_needs_processes_is_written_without_a_run_in_process(
    hook: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declared, "_effects", lambda *_: (NOTHING, NOTHING))
    with written_and_installed(tmp_path, [hook]) as name:
        assert check_plugin(name).violated == ()
    test = next((tmp_path / f"accel-bench-{name}" / "tests").glob("test_*.py")).read_text()
    assert "run_plugin" not in test


def test_ranks_that_it_joins_send_no_buffers(tmp_path: Path) -> None:
    name = install_written(tmp_path, ["parallelize_model"])
    (tmp_path / "two.yaml").write_text(TWO_RANKS.format(name=name))
    path = {"PYTHONPATH": str(tmp_path / f"accel-bench-{name}")}
    with forking(tmp_path / "site") as forked:
        words = ("run", "two.yaml", "-q", "--oversubscribe", "--format", "json", *forked)
        done = call(*words, folder=tmp_path, **path)
    assert done.code == 0, done.err
    (row,) = json.loads(done.out)["experiments"]
    # A busy machine degrades a run too, for reasons of its own.
    assert row["status"] in {"ok", "degraded"}, row["reasons"]
    assert not [reason for reason in row["reasons"] if "buffers" in reason]


def test_the_plugin_that_is_written_by_default_counts(tmp_path: Path) -> None:
    with written_and_installed(tmp_path, []) as name:
        shown = run_plugin(name, counted="LlamaRMSNorm").ranks[0].evidence[name]
        assert shown["counted_modules"] == 5
        assert shown["calls"] >= 5 * 6
        failed = run_plugin(name, counted="LlamaRMSNrom")
    assert "has no LlamaRMSNrom; did you mean 'LlamaRMSNorm'?" in failed.reasons[0]


@pytest.mark.parametrize("name", ["mine", "run", "path", "p4bit", "a_b-c", "x" * 30])
def test_every_name_makes_files_that_parse(name: str, tmp_path: Path) -> None:
    files = plugin_files(name, WRITTEN)
    for path, text in files.items():
        if path.endswith(".py"):
            ast.parse(text, path)
            assert max(map(len, text.splitlines())) <= 100, path
    (tmp_path / "pyproject.toml").write_text(files["pyproject.toml"])
    project = load_file(tmp_path / "pyproject.toml").data["project"]
    (target,) = project["entry-points"]["accel_bench"].values()
    package, _, kind = target.partition(":")
    assert f"class {kind}(Plugin[" in files[f"{package}/__init__.py"]
    assert Requirement(project["dependencies"][0]).name == "accel-bench"


@pytest.mark.parametrize("together", [1, pytest.param(2, marks=pytest.mark.release)])
def test_what_is_written_is_clean_and_formatted(tmp_path: Path, together: int) -> None:
    for number, hooks in enumerate([*map(list, combinations(WRITTEN, together)), WRITTEN]):
        write_plugin(f"p{number}", hooks, tmp_path)
        write_plugin(f"{'p' * 27}{number}", hooks, tmp_path)
    rules = ["--select", "B,E,F,I,UP,W", "--line-length", "100"]
    for arguments in (["check", *rules], ["format", "--line-length", "100", "--check"]):
        command = [sys.executable, "-m", "ruff", arguments[0], "--isolated", *arguments[1:]]
        done = subprocess.run(
            [*command, "--no-cache", str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Mine", "small letters and digits"),
        ("-mine", "small letters and digits"),
        ("../mine", "small letters and digits"),
        ("", "small letters and digits"),
        ("x" * 31, "at most 30"),
        ("a.b", "small letters and digits"),
        ("4bit", "a letter first"),
        ("true", "in a scenario file it means something else"),
        ("off", "in a scenario file it means something else"),
        ("null", "in a scenario file it means something else"),
        ("none", "in a scenario file it means something else"),
        ("baseline", "in a scenario file it means something else"),
        ("example", "is installed already, by accel-bench-example"),
        ("lora", "is installed already, by accel-bench"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=said):
        write_plugin(name, (), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_hook_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="no hook 'load_modle'; did you mean 'load_model'"):
        write_plugin("mine", ["load_modle"], tmp_path)


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "accel-bench-mine").mkdir()
    with pytest.raises(PluginError, match="accel-bench-mine exists; remove it, or choose another"):
        write_plugin("mine", (), tmp_path)
    assert list((tmp_path / "accel-bench-mine").iterdir()) == []


def test_a_parent_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PluginError, match="file is a file; name a folder with --output"):
        write_plugin("mine", (), tmp_path / "file")


def test_partners_and_something_that_acts_are_added(tmp_path: Path) -> None:
    _, hooks = write_plugin("mine", ["load_data", "finish_metrics"], tmp_path)
    assert hooks == ["load_data", "build_batches", "start_metrics", "finish_metrics"]
    _, hooks = write_plugin("other", ["check_scenario"], tmp_path)
    assert hooks == ["check_scenario", "accelerate_model"]


@pytest.mark.parametrize(
    ("hook", "instead"), [("close_run", "run.on_close"), ("report_evidence", "run.on_evidence")]
)
def test_a_hook_that_is_not_written_is_refused(hook: str, instead: str, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=f"{hook} has nothing to do alone.*calls {instead}"):
        write_plugin("mine", [hook], tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("hook", "used"),
    [
        ("accelerate_model", "`accel-bench run --plugin mine`"),
        ("build_optimizer", "`optimizer: {use: mine}`; for a comparison, `stacks: {mine: {set: "),
        ("load_data", "the slot data of a scenario"),
        ("finish_metrics", "`metrics: [memory, mine]`"),
    ],
)
def test_the_readme_says_how_a_plugin_of_its_kind_is_used(hook: str, used: str) -> None:
    assert used in plugin_files("mine", [hook])["README.md"]


def test_types_are_marked() -> None:
    assert plugin_files("mine", ["load_data"])["accel_bench_mine/py.typed"] == ""


@pytest.mark.parametrize(
    ("hooks", "slots"),
    [
        (["load_data", "load_model"], "data, model"),
        (["build_loss"], "task"),
        (["accelerate_model"], ""),
    ],
)
def test_the_readme_names_the_slots_that_the_hooks_fill(hooks: list[str], slots: str) -> None:
    readme = plugin_files("mine", hooks)["README.md"]
    assert (f"{slots} of a scenario" in readme) == bool(slots)
