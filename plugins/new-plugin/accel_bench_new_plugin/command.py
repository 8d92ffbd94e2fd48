"""`accel-bench plugins new`: write the Python distribution of a plugin, which works at once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Annotated

import typer
import yaml

import accel_bench
from accel_bench import hookspecs
from accel_bench.errors import PluginError, did_you_mean
from accel_bench.plugin import CONTRACT
from accel_bench.plugins.describe import slots_of_hooks
from accel_bench.plugins.registry import installed
from accel_bench.plugins.shipped import extras
from accel_bench.plugins.validation import hook_arguments
from accel_bench.scenario.uses import NO_PLUGIN

FILES = Path(__file__).parent / "templates"
"""Folder of the Jinja2 templates of the written files."""

NAME = re.compile(r"[a-z](?:[a-z0-9_-]{0,28}[a-z0-9])?")
"""Pattern of a plugin's name: PEP 508 in small letters, short enough for folders and tables. It has
no dot, which separates keys on the command line."""

RESERVED = frozenset({"baseline", NO_PLUGIN})
"""Names that mean something else in scenario files."""

DEFAULT_HOOKS = ("accelerate_model",)
"""Hooks that are written if the user names none, or only hooks in `NOT_ACTING`."""

REGISTERED = {"report_evidence": "run.on_evidence", "close_run": "run.on_close"}
"""Hooks that are not written, each with the method that other hooks call instead."""

NOT_WRITTEN = {
    "record_result": "copy the dozen lines of a tracker from docs/trackers.md",
    "observe_steps": "copy the whole distribution from docs/metrics.md",
    "sample_lengths": "accel_bench.hookspecs says what it returns, beside load_data",
    "simulate_batch": "accel_bench.hookspecs says what it returns, beside build_batches",
    "build_evaluation_batches": "docs/convergence.md says what it returns, beside build_batches",
}
"""Other hooks that are not written, each with the alternative."""

PARTNERS = {
    "allocate_ranks": "launch_ranks",
    "load_data": "build_batches",
    "build_batches": "load_data",
    "start_metrics": "finish_metrics",
    "finish_metrics": "start_metrics",
}
"""Hooks that are useful only together with another hook."""

NOT_ACTING = frozenset({"check_scenario", "prepare_experiment"})
"""Hooks that change nothing in a run, and are written only together with another hook."""

NOT_CLASS_NAMES = frozenset({*accel_bench.__all__, "Any", "Field", "Iterator", "Path", "Sequence"})
"""Names that the written module imports, which its class cannot have."""


def new(
    name: Annotated[str, typer.Argument(help="What users will write after `use:`.")] = "",
    hooks: Annotated[
        list[str] | None,
        typer.Option(
            "--hook",
            metavar="HOOK",
            help="A hook to implement; again for more. `list` lists them.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="Where to make accel-bench-NAME."),
    ] = Path(),
) -> None:
    """Write a plugin's distribution that works as it stands, with tests that pass.

    Without --hook it accelerates nothing yet: it counts modules in accelerate_model.
    """
    if "list" in (hooks or ()):
        for hook, summary in writable_hooks().items():
            single = f"one answer, {hookspecs.ONE_ANSWER.get(hook) or 'stack'}"
            others = hookspecs.ONLY.get(hook, "all plugins")
            who = single if hook in hookspecs.ONE_ANSWER else others
            typer.echo(fill(f"{hook} ({who}): {summary}", width=79, subsequent_indent="    "))
        return
    if not name:
        raise PluginError("name the plugin: accel-bench plugins new NAME")
    written, chosen = write_plugin(name, hooks or (), output)
    typer.echo(f"written: {written} with the hooks {', '.join(chosen)}")
    typer.echo(f"next: pip install -e '{written}[test]' and pytest {written}; README.md goes on")


def writable_hooks() -> dict[str, str]:
    """Return the hooks that `write_plugin` can write, in call order, each with its summary."""
    documented = {hook: inspect.getdoc(getattr(hookspecs, hook)) or "" for hook in hook_arguments()}
    return {
        hook: text.partition("\n\n")[0].replace("\n", " ")
        for hook, text in documented.items()
        if hook not in (*REGISTERED, *NOT_WRITTEN)
    }


def write_plugin(name: str, hooks: Sequence[str], parent: Path) -> tuple[Path, list[str]]:
    """Write the distribution `accel-bench-NAME` into `parent`; return its folder and its hooks.

    Raises PluginError for an invalid or taken name, for an unknown hook, if the folder exists, and
    if `parent` is a file.
    """
    _check_name(name)
    chosen = _chosen(hooks)
    if parent.exists() and not parent.is_dir():
        raise PluginError(f"{parent} is a file; name a folder with --output")
    folder = parent / _distribution(name)
    if folder.exists():
        raise PluginError(f"{folder} exists; remove it, or choose another name or --output")
    for path, text in plugin_files(name, chosen).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf8")
    return folder, chosen


def plugin_files(name: str, hooks: Sequence[str]) -> dict[str, str]:
    """Return the text of each file in the distribution of the plugin `name`, by relative path.

    `hooks` are the names of the plugin's hooks in call order.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(FILES),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    package = f"accel_bench_{name.replace('-', '_')}"
    words = {
        "name": name,
        "distribution": _distribution(name),
        "contract": CONTRACT,
        "package": package,
        "class_name": _class_name(name),
        "hooks": hooks,
        "has": lambda *any_of: not set(any_of).isdisjoint(hooks),
        "slots": slots_of_hooks(hooks),
    }
    templates = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"{package}/__init__.py": "__init__.py",
        f"{package}/impl.py": "impl.py",
        f"{package}/parent.py": "parent.py",
        f"tests/test_{package}.py": "test.py",
    }
    texts = {
        path: environment.get_template(f"{template}.jinja").render(words)
        for path, template in templates.items()
    }
    return {path: text for path, text in texts.items() if text} | {f"{package}/py.typed": ""}


def _check_name(name: str) -> None:
    """Raise PluginError if a plugin's name is invalid, reserved, or taken by another plugin."""
    if not NAME.fullmatch(name):
        raise PluginError(
            f"{name!r} cannot be a plugin's name: small letters and digits, with '-' or '_' "
            "between them, a letter first, at most 30"
        )
    if name in RESERVED or yaml.safe_load(name) != name:
        raise PluginError(
            f"{name!r} cannot be a plugin's name: in a scenario file it means something else"
        )
    owners = {plugin.name: plugin.distribution for plugin in installed()}
    if name in owners:
        raise PluginError(f"the plugin {name!r} is installed already, by {owners[name]}")
    if name in extras():
        raise PluginError(f"{name!r} is a plugin of accel-bench: {extras()[name].command}")


def _chosen(hooks: Sequence[str]) -> list[str]:
    """Return the hooks to write, in call order, with the hooks that they need as partners.

    Raises PluginError for a hook that does not exist, or that is not to be written.
    """
    known = list(hook_arguments())
    for hook in hooks:
        if hook not in known:
            raise PluginError(f"there is no hook {hook!r}{did_you_mean(hook, known)}")
        if hook in REGISTERED:
            raise PluginError(
                f"{hook} has nothing to do alone, and is not written: name the hook that acts, "
                f"which calls {REGISTERED[hook]}"
            )
        if hook in NOT_WRITTEN:
            raise PluginError(f"{hook} is not written: {NOT_WRITTEN[hook]}")
    chosen = {*hooks}
    if chosen <= NOT_ACTING:
        chosen |= {*DEFAULT_HOOKS}
    chosen |= {PARTNERS[hook] for hook in chosen if hook in PARTNERS}
    return [hook for hook in known if hook in chosen]


def _distribution(name: str) -> str:
    # As package indexes write names (PEP 503).
    return f"accel-bench-{re.sub('[_-]+', '-', name)}"


def _class_name(name: str) -> str:
    """Return `MyPlugin` for the plugin `my-plugin`; `MyPluginPlugin` if that name is imported."""
    joined = "".join(word.capitalize() for word in re.split("[_-]+", name))
    return f"{joined}Plugin" if joined in NOT_CLASS_NAMES else joined
