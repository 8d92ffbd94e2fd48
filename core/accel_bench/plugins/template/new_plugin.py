"""Write a plugin's distribution that works as it stands, with the hooks that are wanted."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template

import yaml

import accel_bench
from accel_bench.errors import PluginError, did_you_mean
from accel_bench.plugin import CONTRACT
from accel_bench.plugins.compatibility import OWN_DISTRIBUTION
from accel_bench.plugins.extras import extras
from accel_bench.plugins.registry import installed
from accel_bench.plugins.template.python_source import import_lines, joined, sections
from accel_bench.plugins.validation import hook_arguments
from accel_bench.scenario.uses import NO_PLUGIN

FILES = Path(__file__).parent / "plugin"
"""Where the templates lie."""

NAME = re.compile(r"[a-z](?:[a-z0-9_-]{0,28}[a-z0-9])?")
"""A name of PEP 508 in small letters, short enough for folders and tables, without the dot that
separates keys on the command line."""

RESERVED = frozenset({"baseline", NO_PLUGIN})
"""Names that scenario files give a meaning of their own."""

DEFAULT_HOOKS = ("accelerate_model",)
"""What a plugin does where nobody asks for anything."""

ALWAYS = ("report_evidence", "close_run")
"""Hooks that every plugin gets; they stand in the template of the class."""

PARTNERS = {
    "load_data": "build_batches",
    "build_batches": "load_data",
    "start_metrics": "finish_metrics",
    "finish_metrics": "start_metrics",
}
"""Hooks that make sense together alone."""

NOT_ACTING = frozenset({"check_scenario", "prepare_experiment"})
"""Hooks after which a run has nothing to show, so that a plugin needs another one besides."""

CHANGING = frozenset({"load_data", "add_adapter", "build_optimizer"})
"""Hooks by which something else is trained."""

IN_THE_STACK = frozenset({"accelerate_model", "compile_model"})
"""Hooks of a plugin that is compared with the same work without it."""

WITH_PROCESSES = frozenset({"launch_ranks", "parallelize_model"})
"""Hooks that mean nothing in one process, where the kit runs a plugin."""


def write_plugin(name: str, hooks: Sequence[str], parent: Path) -> tuple[Path, list[str]]:
    """Write `accel-bench-NAME` into a folder; return where it is, and the hooks that it has.

    Raises PluginError for a name that cannot be used or is taken, for an unknown hook, for a
    folder that exists and for a parent that is a file.
    """
    _check_name(name)
    chosen = _chosen(hooks)
    if parent.exists() and not parent.is_dir():
        raise PluginError(f"{parent} is a file; name a folder with --folder")
    folder = parent / f"accel-bench-{_normal(name)}"
    if folder.exists():
        raise PluginError(f"{folder} exists; remove it, or choose another name or --folder")
    for path, text in plugin_files(name, chosen).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf8")
    return folder, [*chosen, *ALWAYS]


def plugin_files(name: str, hooks: Sequence[str]) -> dict[str, str]:
    """The files of the distribution by their path in it; `hooks` are in call order."""
    package = f"accel_bench_{name.replace('-', '_')}"
    parts = [sections((FILES / "hooks" / f"{hook}.template").read_text("utf8")) for hook in hooks]
    words = {
        "name": name,
        "distribution": f"accel-bench-{_normal(name)}",
        "package": package,
        "class_name": _class_name(name),
        "dependencies": _dependencies(parts),
        "does": " ".join(joined(parts, "does", "\n").split("\n")),
    }
    files = {
        "pyproject.toml": _filled("pyproject.toml", words),
        "README.md": _filled("README.md", words),
        f"{package}/__init__.py": _light(parts, words),
        f"tests/test_{package}.py": _test(hooks, words),
    }
    for section, idea in (
        ("impl", f"The work of the plugin `{name}`. Imports torch, so hooks import it."),
        ("parent", f"What the plugin `{name}` does in the parent, without torch."),
    ):
        body = joined(parts, section, "\n\n\n")
        if body:
            words_here = {**words, "idea": idea}
            imports = joined(parts, "heavy imports" if section == "impl" else "parent imports")
            files[f"{package}/{section}.py"] = _module("module.py", body, imports, words_here)
    return files


def _check_name(name: str) -> None:
    """Refuse what cannot be a distribution's name, and what is taken."""
    if not NAME.fullmatch(name):
        raise PluginError(
            f"{name!r} cannot be a plugin's name: small letters and digits, with '-' or '_' "
            "between them, a letter first, at most 30"
        )
    if name in RESERVED or yaml.safe_load(name) != name:
        raise PluginError(
            f"{name!r} cannot be a plugin's name: in a scenario file it means something else"
        )
    taken = {plugin.name: plugin.distribution for plugin in installed()}
    if name in taken:
        raise PluginError(f"the plugin {name!r} is installed already, by {taken[name]}")
    if name in extras():
        raise PluginError(f"{name!r} is a plugin of accel-bench: {extras()[name].command}")


def _chosen(hooks: Sequence[str]) -> list[str]:
    """The hooks to write in call order, with those that they need; unknown ones are refused."""
    known = list(hook_arguments())
    for hook in hooks:
        if hook not in known:
            raise PluginError(f"there is no hook {hook!r}{did_you_mean(hook, known)}")
    wanted = {*hooks} - {*ALWAYS} or {*DEFAULT_HOOKS}
    wanted |= {PARTNERS[hook] for hook in wanted if hook in PARTNERS}
    if wanted <= NOT_ACTING:
        wanted |= {*DEFAULT_HOOKS}
    return [hook for hook in known if hook in wanted]


def _light(parts: Sequence[Mapping[str, str]], words: Mapping[str, str]) -> str:
    """The module with options, declarations and hooks."""
    options, declarations = joined(parts, "options", "\n\n"), joined(parts, "declarations")
    state = joined(parts, "state")
    words = {
        **words,
        "options": f"\n{options}\n" if options else "",
        "declarations": f"{declarations}\n" if declarations else "",
        "state": f"{state}\n" if state else "",
    }
    imports = ["from collections.abc import Callable", "from typing import Any"]
    imports += ["from pydantic import Field"] if "Field(" in options else []
    imports += joined(parts, "light imports").splitlines()
    return _module("light.py", joined(parts, "method", "\n\n"), "\n".join(imports), words)


def _test(hooks: Sequence[str], words: Mapping[str, str]) -> str:
    """Tests that pass as they stand, and fail when the plugin breaks the contract."""
    check = '    check_plugin("$name")'
    if CHANGING.intersection(hooks) and IN_THE_STACK.intersection(hooks):
        check = (
            "    # It trains something else than the baseline, so its loss may differ.\n"
            '    check_plugin("$name", other_work=True)'
        )
    more = "" if WITH_PROCESSES.intersection(hooks) else _test_of_a_run(hooks)
    names = "check_plugin, run_plugin" if more else "check_plugin"
    imports = f"from accel_bench.testing import {names}"
    more = Template(more).substitute(words)
    check = Template(check).substitute(words)
    return _filled("test.py", {**words, "imports": imports, "check": check, "more": more})


def _test_of_a_run(hooks: Sequence[str]) -> str:
    """A test that looks at what one run shows."""
    lines = ["", "", "def test_it_shows_what_it_did() -> None:", '    result = run_plugin("$name")']
    lines += ["    assert result.status.completed, result.reasons"]
    rank, metrics = "result.ranks[0]", {"finish_metrics", "start_metrics", "observe_ranks"}
    if "finish_metrics" in hooks:
        lines.append(f'    assert "processor_seconds" in [m.name for m in {rank}.metrics]')
    if "observe_ranks" in hooks:
        lines.append('    assert "watched_seconds" in [m.name for m in result.metrics]')
    if not NOT_ACTING | metrics >= {*hooks}:
        lines.append(f'    assert all({rank}.evidence["$name"].values())')
    return "\n".join([*lines, ""])


def _module(template: str, body: str, imports: str, words: Mapping[str, str]) -> str:
    """A module: its template with the body, and the imports that the text needs."""
    filled = Template(body).substitute(words)
    whole = _filled(template, {**words, "imports": "", "methods": filled, "body": filled})
    public = [
        name
        for name in accel_bench.__all__
        if _is_used(name, whole) and f"from accel_bench import {name}" not in whole
    ]
    errors = [name for name in ("PluginError", "did_you_mean") if _is_used(name, whole)]
    lines = [*imports.splitlines(), *(f"from accel_bench import {name}" for name in public)]
    lines += [f"from accel_bench.errors import {name}" for name in errors]
    lines += ["from typing import Any"] if _is_used("Any", whole) else []
    text = import_lines(lines)
    return _filled(template, {**words, "imports": text, "methods": filled, "body": filled})


def _is_used(name: str, text: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None


def _filled(template: str, words: Mapping[str, str]) -> str:
    """A template with its words; one blank line is left where something stays empty."""
    text = (FILES / f"{template}.template").read_text("utf8")
    return Template(text).substitute(words).rstrip("\n") + "\n"


def _dependencies(parts: Iterable[Mapping[str, str]]) -> str:
    """What the distribution depends on, as TOML writes it."""
    needed = [f"{OWN_DISTRIBUTION}{CONTRACT}"]
    for part in parts:
        needed += part.get("dependencies", "").splitlines()
        needed += ["torch>=2.11"] if "torch" in part.get("heavy imports", "") else []
    return ", ".join(f'"{requirement}"' for requirement in dict.fromkeys(needed))


def _normal(name: str) -> str:
    """A name as package indexes write it (PEP 503)."""
    return re.sub("[_-]+", "-", name)


def _class_name(name: str) -> str:
    """`my-plugin` is `MyPlugin`; what is no name, or one of ours, gets `Plugin` at an end."""
    joined_name = "".join(word.capitalize() for word in re.split("[_-]+", name))
    taken = joined_name in {*accel_bench.__all__, "Any", "Callable", "Field"}
    return f"{joined_name}Plugin" if taken or keyword.iskeyword(joined_name) else joined_name
