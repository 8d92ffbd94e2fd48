"""Validation of a plugin's class: its declarations, names of hooks and their arguments."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args, get_type_hints

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import TypeAdapter, ValidationError

from accel_bench import hookspecs
from accel_bench.errors import did_you_mean
from accel_bench.plugin import CONTRACT_VERSION, PROJECT, Options, Plugin

NEAR = 0.82
"""Similarity (`difflib`) from which an attribute counts as a misspelt declaration."""


@cache
def hook_arguments() -> dict[str, list[str]]:
    """Return the names of all hooks in call order, with the arguments that each can take."""
    return {
        name: list(inspect.signature(value).parameters)
        for name, value in vars(hookspecs).items()
        if hasattr(value, f"{PROJECT}_spec")
    }


def wrong_declarations(kind: type[Plugin[Any]]) -> list[str]:
    """Return a sentence for each declaration of the class with a wrong type, name or version."""
    wrong = []
    if not (isinstance(kind.Options, type) and issubclass(kind.Options, Options)):
        wrong.append("Options is not a subclass of accel_bench.Options")
    for name, adapter in declarations().items():
        try:
            adapter.validate_python(getattr(kind, name), strict=True)
        except ValidationError as error:
            problem = error.errors()[0]
            wrong.append(f"{name} = {getattr(kind, name)!r}: {problem['msg']}")
    return [*wrong, *_misspelt_declarations(kind), *_unmet_contract(kind)]


def _unmet_contract(kind: type[Plugin[Any]]) -> Iterator[str]:
    """Yield a sentence if the class needs another version of the contract, or an invalid one."""
    if not isinstance(kind.contract, str):
        return
    try:
        if not SpecifierSet(kind.contract).contains(CONTRACT_VERSION):
            yield (
                f"contract = {kind.contract!r}: this accel-bench has contract {CONTRACT_VERSION}; "
                "upgrade the older of the two"
            )
    except InvalidSpecifier:
        yield f"contract = {kind.contract!r} names no versions; write such as '>=1.0,<2'"


def _misspelt_declarations(kind: type[Plugin[Any]]) -> Iterator[str]:
    """Yield a sentence for each class attribute whose name is nearly that of a declaration."""
    classes = [cls for cls in kind.__mro__ if issubclass(cls, Plugin) and cls is not Plugin]
    for owner, name, value in ((cls, *item) for cls in classes for item in vars(cls).items()):
        bases = owner.__mro__[1:]
        declared = {key.lower(): key for base in bases for key in inspect.get_annotations(base)}
        routine = inspect.isroutine(value) or isinstance(value, property)
        known = name in declared.values() or any(hasattr(base, name) for base in bases)
        if name.startswith("_") or routine or known:
            continue
        if near := difflib.get_close_matches(name.lower(), declared, n=1, cutoff=NEAR):
            yield (
                f"{name} declares nothing; did you mean {declared[near[0]]!r}? An attribute of "
                "your own begins with an underscore"
            )


@cache
def declarations() -> dict[str, TypeAdapter[Any]]:
    """Return the types of the class attributes that a plugin declares, in the order of `Plugin`."""
    hints = get_type_hints(Plugin)
    return {
        name: TypeAdapter(get_args(hints[name])[0])
        for name in Plugin.__annotations__
        if name != "Options"
    }


def validation_problems(kind: type[Plugin[Any]]) -> list[str]:
    """Return a sentence for each faulty hook: no `@hookimpl`, an unknown name, wrong arguments."""
    problems = [
        text for name, function in marked_methods(kind) for text in _problems_of(name, function)
    ]
    return [*_unmarked(kind), *problems]


def _unmarked(kind: type[Plugin[Any]]) -> Iterator[str]:
    """Yield a sentence for each method that has a hook's name and lacks `@hookimpl`."""
    for hook in hook_arguments():
        method = inspect.getattr_static(kind, hook, None)
        if inspect.isroutine(method) and not hasattr(method, f"{PROJECT}_impl"):
            yield (
                f"{hook} is never called: write @hookimpl above it, or give it a name that no "
                "hook has"
            )


def marked_methods(kind: type[Plugin[Any]]) -> list[tuple[str, Any]]:
    """Return the names and methods of a class that `@hookimpl` marks."""
    return inspect.getmembers(kind, lambda value: hasattr(value, f"{PROJECT}_impl"))


def _problems_of(name: str, function: Any) -> Iterator[str]:
    known = hook_arguments()
    marks = getattr(function, f"{PROJECT}_impl")
    hook = marks.get("specname") or name
    if hook not in known:
        yield f"there is no hook {hook!r}{did_you_mean(hook, known)}"
        return
    if marks.get("wrapper") or marks.get("hookwrapper"):
        yield f"{hook} is a wrapper; hooks are called one by one, with nothing to wrap"
    for argument in list(inspect.signature(function).parameters)[1:]:
        if argument not in known[hook]:
            yield f"{hook} has no argument {argument!r}{did_you_mean(argument, known[hook])}"
