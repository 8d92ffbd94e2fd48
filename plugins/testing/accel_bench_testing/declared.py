"""Checks of the plugin contract that need no run: import, hooks, options, declarations, needs."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

from packaging.requirements import Requirement
from pydantic import BeforeValidator, PlainValidator, WrapValidator

from accel_bench.documents.program import python_command
from accel_bench.documents.validate import validate
from accel_bench.errors import AccelBenchError, PluginError
from accel_bench.plugin import CONTRACT, Options, Plugin
from accel_bench.plugins.describe import implemented, options_of
from accel_bench.plugins.doors import OWN_DISTRIBUTION
from accel_bench.plugins.registry import InstalledPlugin, is_on_contract
from accel_bench.plugins.validation import validation_problems, wrong_declarations
from accel_bench.runner.outcome import describe_exit
from accel_bench.scenario.uses import slot_defaults
from accel_bench_testing.clause_process import not_ended
from accel_bench_testing.report import Clause, judged, proven, unproven, violated
from accel_bench_testing.trial_runs import TrialRuns

HEAVY = (
    "accelerate",
    "datasets",
    "numpy",
    "pandas",
    "peft",
    "scipy",
    "tokenizers",
    "torch",
    "transformers",
)
"""Packages that a plugin's module must not import at its top level."""

Effects: TypeAlias = tuple[list[str], list[str], str]
"""Effects of an import: new top-level packages, changed environment variables, and output."""

PROGRAM = """\
import contextlib, io, json, os, sys, tempfile
import accel_bench.plugins.manager
from accel_bench.errors import AccelBenchError
from accel_bench.job import Job
from accel_bench.machine.parent import put_process_between
from accel_bench_testing.tiny import plan_trial, this_machine

def effects(act, *arguments, **named):
    before, modules, printed = dict(os.environ), set(sys.modules), io.StringIO()
    with contextlib.redirect_stdout(printed):
        act(*arguments, **named)
    names = {name.partition(".")[0] for name in set(sys.modules) - modules}
    changed = {n for n in {*before, *os.environ} if before.get(n) != os.environ.get(n)}
    return sorted(names), sorted(changed), printed.getvalue()[:1000]

def plan(name, *trial):
    with contextlib.suppress(AccelBenchError), tempfile.TemporaryDirectory() as folder:
        # What goes wrong is reported where the plugin is to be run.
        planned = plan_trial(name, *trial).plugin
        job = Job(run_id="kit", experiment=planned.experiment, folder=folder, cache_folder=folder)
        for plugin in planned.active.plugins:
            if plugin.name == name:
                watching = planned.active.call_plugin(plugin, "observe_ranks", job=job, ranks=[])
                watching and watching.finish({})

put_process_between()
imported = effects(accel_bench.plugins.manager.load_class, sys.argv[1], allow_torch=True)
this_machine()
print("\\n", repr((imported, effects(plan, *json.loads(sys.argv[2])))), sep="")
"""
"""Python program of a fresh process that records the effects of an import, and then of planning."""


def light_import(plugin: InstalledPlugin, trials: TrialRuns, seconds: float) -> Iterator[Clause]:
    """Check that importing a plugin and planning with it import no heavy package, change no
    environment variable and print nothing.

    A fresh process does both, within `seconds`. The import may take at most half of that time.
    """
    name, module = "light import", plugin.entry.module
    try:
        imported, planned = _effects(trials, seconds)
    except subprocess.TimeoutExpired:
        yield violated(name, not_ended(f"importing {module} and planning with it", seconds))
        return
    except AccelBenchError as error:
        yield violated(name, str(error))
        return
    instead = "at module level; import it in the bodies of the hooks, or in a module they import"
    yield from _light(name, module, imported, HEAVY, instead)
    who = "__init__, claims, fingerprint, observe_ranks or check_scenario"
    instead = "in the process that plans; import it in other hooks"
    late = [package for package in HEAVY if package not in imported[0]]
    yield from _light("light planning", who, planned, late, instead)


def _light(
    name: str, who: str, effects: Effects, heavy: Sequence[str], instead: str
) -> list[Clause]:
    """Check that an import has no unwanted effects: heavy packages, changed environment variables,
    output. Return the outcome as clauses called `name`.

    `who` names the imported code in sentences, `heavy` are the forbidden packages, and `instead` is
    advice.
    """
    imported, changed, printed = effects
    problems = []
    if loaded := [package for package in heavy if package in imported]:
        problems.append(f"{who} imports {', '.join(loaded)} {instead}")
    if changed:
        problems.append(
            f"{who} sets the environment variables {', '.join(changed)}; set them in "
            "prepare_process and put them back by run.on_close"
        )
    if printed:
        problems.append(
            f"{who} prints {printed.strip()[:60]!r} amid what may be a document; return reasons, "
            "or log in a worker by run.logger"
        )
    return judged(name, problems, f"{who} brings no heavy package, sets and prints nothing")


def of_the_class(
    plugin: InstalledPlugin, kind: type[Plugin[Any]], options: Mapping[str, Any]
) -> Iterator[Clause]:
    """Check a plugin's class, its options and its distribution, and yield the clauses.

    `kind` is the class, and `options` are valid options.
    """
    hooks, wrong = implemented(kind), validation_problems(kind)
    if not hooks and not wrong:
        wrong = [f"{kind.__name__} implements no hook; mark a method with @hookimpl"]
    yield from judged("known hooks", wrong, ", ".join(hooks))
    wrong = [f"{kind.__name__}.{text}" for text in wrong_declarations(kind)]
    wrong += [
        f"{kind.__name__}.{key} names {plugin.name!r} itself; take it out"
        for key in ("conflicts", "after", "before")
        if not wrong and plugin.name in getattr(kind, key)
    ]
    wrong += [] if wrong else _contradictions(kind)
    yield from judged("declarations", wrong, "every declaration has its type")
    described = options_of(kind)
    bare = [
        f"{kind.Options.__name__}.{option['name']} has no description; write a docstring under the "
        "field"
        for option in described
        if not option["description"]
    ]
    yield from judged("documented options", bare, f"{len(described)} options, all described")
    yield from _strict_options(kind.Options, options)
    yield _declared_range(plugin)
    unmet = "; ".join(plugin.unmet(kind.requires))
    problems = [f"{unmet}: install what {plugin.distribution} requires"] if unmet else []
    yield from judged("requirements", problems, "all are installed")


def _contradictions(kind: type[Plugin[Any]]) -> Iterator[str]:
    """Yield sentences on declarations of a plugin class that contradict each other in every
    stack."""
    needed = slot_defaults().needed_adapter
    adapter = {needed} if kind.needs_adapter else set()
    for first, names, other, others in (
        ("conflicts", kind.conflicts, "after", {*kind.after}),
        ("conflicts", kind.conflicts, "before", {*kind.before}),
        ("after", {*kind.after}, "before", {*kind.before}),
        ("conflicts", kind.conflicts, "needs_adapter", adapter),
    ):
        for name in sorted(names & others):
            yield f"{kind.__name__}: {first} and {other} both stand for {name!r}; take one out"


def _strict_options(model: type[Options], options: Mapping[str, Any]) -> Iterator[Clause]:
    """Check that an options class refuses unknown names and wrong types, and is frozen; yield the
    outcome as clauses.

    `options` are valid options.
    """
    name = "strict options"
    if free := [field for field in model.model_fields if _reads_first(model, field)]:
        yield unproven(
            name,
            f"{', '.join(free)}: a validator stands before the type, so no wrong type was tried",
        )
    refused = "an unknown option and values of a wrong type are refused"
    yield from judged(name, _lax(model, options), refused)


def _declared_range(plugin: InstalledPlugin) -> Clause:
    """Check that a plugin's distribution declares the versions of accel-bench that it supports;
    return the outcome as a clause."""
    name, ours = "range of accel-bench", f"{OWN_DISTRIBUTION}{CONTRACT}"
    if plugin.distribution == OWN_DISTRIBUTION:
        return proven(name, "it comes with accel-bench")
    ranges = [text for text in plugin.requires if is_on_contract(text)]
    if not ranges:
        return violated(
            name,
            f"{plugin.distribution} does not depend on accel-bench; add {ours!r} to its "
            "dependencies",
        )
    operators = {bound.operator for text in ranges for bound in Requirement(text).specifier}
    if not (operators & {">=", "~=", "=="} and operators & {"<", "<=", "~=", "=="}):
        return violated(
            name,
            f"{plugin.distribution} depends on {ranges[0]!r}, which has no lower or no upper end; "
            f"write {ours!r}",
        )
    return proven(name, f"{plugin.distribution} depends on {', '.join(ranges)}")


def _effects(trials: TrialRuns, seconds: float) -> tuple[Effects, Effects]:
    """Return the effects of importing the plugin in a fresh process, and then of planning with it.

    Raises PluginError if the plugin cannot be imported, and subprocess.TimeoutExpired after
    `seconds`.
    """
    # The process imports what this one can, also what a test has put on its path.
    longer = {"ACCEL_BENCH_IMPORT_SECONDS": str(seconds / 2)}
    environment = {**longer, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    name = trials.name
    given = [name, dict(trials.options), dict(trials.scenario), trials.device]
    trial = json.dumps(given, default=str)
    done = subprocess.run(
        python_command("-c", PROGRAM, name, trial),
        capture_output=True,
        text=True,
        env=environment,
        timeout=seconds,
        check=False,
    )
    last = done.stderr.strip().rpartition("\n")[2]
    if done.returncode > 0 and last:
        raise PluginError(last.removeprefix("accel_bench.errors.PluginError: "))
    try:
        # Libraries may print from below Python: ours is the last line.
        imported, planned = ast.literal_eval(done.stdout.strip().rpartition("\n")[2])
    except (SyntaxError, ValueError):
        raise PluginError(
            f"plugin {name!r} ended the process that imports it and plans with it "
            f"({describe_exit(done.returncode)}); raise an error instead"
        ) from None
    return imported, planned


def _lax(model: type[Options], options: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each value of a wrong type that an options class accepts, and others if
    the class accepts unknown options, is not frozen, or refuses `options`.

    `options` are options that should be valid.
    """
    label = model.__name__
    try:
        validate(model, dict(options), lambda _: label, PluginError)
    except PluginError as error:
        yield f"the given options are refused: {error}; pass check_plugin(options=...) that fit"
        return
    if not _refuses(model, options, "an_option_that_nobody_has", 1):
        yield f"{label} takes an option that it does not have; do not change `extra`"
    if not model.model_config.get("frozen"):
        yield f"{label} is not frozen; do not change `frozen`"
    for name, field in model.model_fields.items():
        for wrong in () if _reads_first(model, name) else _wrong_values(field.annotation):
            if not _refuses(model, options, name, wrong):
                yield (
                    f"{label}.{name} takes {wrong!r}, which is not of its type; leave the model "
                    "strict"
                )


def _refuses(model: type[Options], options: Mapping[str, Any], name: str, value: Any) -> bool:
    try:
        validate(model, {**options, name: value}, lambda _: name, PluginError)
    except PluginError:
        return True
    return False


def _reads_first(model: type[Options], name: str) -> bool:
    """Return whether a validator of an options class gets a field's value before its type is
    checked."""
    decorators = model.__pydantic_decorators__
    kinds = BeforeValidator | WrapValidator | PlainValidator
    return (
        any(isinstance(entry, kinds) for entry in model.model_fields[name].metadata)
        or any(validator.info.mode != "after" for validator in decorators.model_validators.values())
        or any(
            validator.info.mode != "after" and {name, "*"} & {*validator.info.fields}
            for validator in decorators.field_validators.values()
        )
    )


def _wrong_values(annotation: Any) -> list[Any]:
    """Return values of a wrong type that a lax model would convert to the type `annotation`, or an
    empty list if none can be chosen."""
    kinds = set(_leaves(annotation))
    if not kinds <= {bool, int, float, str, type(None)}:
        return []
    wrong: list[Any] = [] if str in kinds else ["1"]
    if kinds <= {bool, str, type(None)}:
        wrong.append(1)
    return wrong


def _leaves(annotation: Any) -> Iterable[Any]:
    """Return the types in a field's annotation: a union's members, the types of a literal's
    values, or the type itself."""
    if get_origin(annotation) is Literal:
        return [type(value) for value in get_args(annotation)]
    if get_origin(annotation) in (Union, UnionType):
        return [leaf for argument in get_args(annotation) for leaf in _leaves(argument)]
    return [annotation]
