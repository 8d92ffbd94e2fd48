"""Write a plugin's distribution that works as it stands, with the hooks that are wanted."""

from __future__ import annotations

import ast
import keyword
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

import accel_bench
from accel_bench.errors import PluginError, did_you_mean
from accel_bench.plugin import CONTRACT
from accel_bench.plugins.compatibility import OWN_DISTRIBUTION
from accel_bench.plugins.registry import installed
from accel_bench.plugins.shipped import extras
from accel_bench.plugins.validation import hook_arguments
from accel_bench.scenario.uses import NO_PLUGIN

FILES = Path(__file__).parent / "plugin"
"""Folder of the Jinja2 templates."""

FUTURE = "from __future__ import annotations"
"""The line of a template that its imports follow."""

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

WITHOUT_EVIDENCE = NOT_ACTING | {"start_metrics", "finish_metrics", "observe_ranks"}
"""Hooks that leave nothing in a plugin's evidence as they are written."""

WITH_PROCESSES = frozenset({"launch_ranks", "parallelize_model"})
"""Hooks that mean nothing in one process, where the kit runs a plugin."""

MODULES = frozenset("contextlib inspect itertools os signal subprocess sys time torch".split())
"""Modules that the templates use by their name."""

FROM = {
    "accel_bench": frozenset(accel_bench.__all__),
    "accel_bench.errors": frozenset({"PluginError", "did_you_mean"}),
    "accel_bench.testing": frozenset({"check_plugin", "run_plugin"}),
    "collections.abc": frozenset("Callable Iterable Iterator Mapping Sequence".split()),
    "itertools": frozenset({"islice"}),
    "pathlib": frozenset({"Path"}),
    "peft": frozenset({"LoraConfig", "get_peft_model"}),
    "pydantic": frozenset({"Field"}),
    "torch": frozenset({"nn"}),
    "torch.nn.parallel": frozenset({"DistributedDataParallel"}),
    "typing": frozenset({"Any"}),
}
"""Names that the templates use, by the module that they are imported from."""

REQUIREMENTS = {"peft": "peft>=0.21", "torch": "torch>=2.11"}
"""What the distribution depends on where its work imports a module."""


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
    """Return the files of the distribution by their path in it; `hooks` are in call order."""
    package = f"accel_bench_{name.replace('-', '_')}"
    words: dict[str, Any] = {
        "name": name,
        "distribution": f"accel-bench-{_normal(name)}",
        "package": package,
        "class_name": _class_name(name),
        "hooks": hooks,
        "other_work": CHANGING.intersection(hooks) and IN_THE_STACK.intersection(hooks),
        "runs_in_process": not WITH_PROCESSES.intersection(hooks),
        "shows_evidence": not WITHOUT_EVIDENCE.issuperset(hooks),
    }
    modules = {part: _module(f"{part}.py", words) for part in ("__init__", "impl", "parent")}
    needed = [f"{OWN_DISTRIBUTION}{CONTRACT}"]
    for module, requirement in REQUIREMENTS.items():
        if re.search(rf"^(import|from) {module}\b", modules["impl"], re.MULTILINE):
            needed.append(requirement)
    return {
        "pyproject.toml": _rendered("pyproject.toml", {**words, "dependencies": needed}),
        "README.md": _rendered("README.md", words),
        f"tests/test_{package}.py": _module("test.py", words),
        **{f"{package}/{part}.py": text for part, text in modules.items() if text},
    }


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


def _rendered(template: str, words: Mapping[str, Any]) -> str:
    """Return a template of the folder `plugin` with its words filled in."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(FILES),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    return templates.get_template(f"{template}.jinja").render(words)


def _module(template: str, words: Mapping[str, Any]) -> str:
    """Return a module with the imports of what it uses; empty where no hook has a part in it."""
    text = _rendered(template, words)
    tree = ast.parse(text)
    if not any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree.body):
        return ""
    return text.replace(FUTURE, f"{FUTURE}\n\n{_imports(tree)}", 1)


def _imports(tree: ast.Module) -> str:
    """Return the imports of the names that a module uses and does not import itself.

    Standard library first, `import x` before `from x import y`, as ruff sorts them.
    """
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    inside = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    used -= {alias.name for node in inside for alias in node.names}
    groups: dict[bool, list[str]] = {True: [], False: []}
    for module in sorted(MODULES & used):
        groups[_is_standard(module)].append(f"import {module}")
    for module, names in sorted(FROM.items()):
        if names & used:
            groups[_is_standard(module)].append(_from(module, names & used))
    return "\n\n".join("\n".join(group) for group in groups.values() if group)


def _is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _from(module: str, names: Iterable[str]) -> str:
    """Return one import; names in the order of ruff: constants, classes, then functions."""
    ordered = sorted(names, key=lambda name: (not name[0].isupper(), name))
    line = f"from {module} import {', '.join(ordered)}"
    if len(line) <= 88:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in ordered), ")"])


def _normal(name: str) -> str:
    """A name as package indexes write it (PEP 503)."""
    return re.sub("[_-]+", "-", name)


def _class_name(name: str) -> str:
    """`my-plugin` is `MyPlugin`; what is no name, or one of ours, gets `Plugin` at an end."""
    joined_name = "".join(word.capitalize() for word in re.split("[_-]+", name))
    taken = joined_name in {*accel_bench.__all__, "Any", "Callable", "Field"}
    return f"{joined_name}Plugin" if taken or keyword.iskeyword(joined_name) else joined_name
