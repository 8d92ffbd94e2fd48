"""Check what a benchmark's class declares: its name, and its arguments against `__init__`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from accel_bench.errors import PluginError, did_you_mean

VALID_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,98}[A-Za-z0-9_-])?")
"""Names that are file names on every system, and one word on a command line."""

DECLARED = ("name", "description", "args")


def declare(cls: type) -> None:
    """Make plain attributes of what a class declares, and check them where it has a name.

    Raises PluginError, which names the class and the argument.
    """
    for key in DECLARED:
        if key in vars(cls):
            setattr(cls, key, _value(cls, key))
    if problem := next(_problems(cls), ""):
        raise PluginError(f"benchmark {cls.__module__}.{cls.__qualname__}: {problem}")


def parameters_of(cls: type) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a class's `__init__` by name, without `self`."""
    parameters = inspect.signature(vars(_owner_of_init(cls))["__init__"]).parameters
    return dict(list(parameters.items())[1:])


def _owner_of_init(cls: type) -> type:
    return next(one for one in cls.__mro__ if "__init__" in vars(one))


def _value(cls: type, key: str) -> Any:
    """Return the value of a class attribute, of a property, or of a class property.

    A property under a classmethod is read by hand: Python 3.13 no longer does.
    """
    found = vars(cls)[key]
    if isinstance(found, classmethod):
        found = found.__func__
    if isinstance(found, property):
        found = found.fget
    return found(cls) if inspect.isfunction(found) else found


def _problems(cls: Any) -> Iterator[str]:
    """Yield what is wrong with a declaration; a class without a name is a base of others."""
    if cls.name == "":
        return
    if not isinstance(cls.name, str) or not VALID_NAME.fullmatch(cls.name):
        yield (
            f"name {cls.name!r} is no valid file name; use letters, digits, '_', '-' and '.', "
            "such as llama_mlp"
        )
    if not isinstance(cls.description, str):
        yield f"description {cls.description!r} is no text"
    yield from _argument_problems(cls)
    yield from _size_problems(cls)


def _argument_problems(cls: Any) -> Iterator[str]:
    """Yield arguments that are declared and not taken, or not taken in their place."""
    if not isinstance(cls.args, tuple | list):
        yield f"args is {cls.args!r}; write a tuple of BenchmarkArg"
        return
    for one in cls.args:
        if not (isinstance(getattr(one, "name", None), str) and hasattr(one, "description")):
            yield f"args holds {one!r}, which is no BenchmarkArg"
            return
    names = [one.name for one in cls.args]
    parameters = parameters_of(cls)
    for name in names:
        if names.count(name) > 1:
            yield f"argument {name!r} is declared twice"
        if name not in parameters:
            near = did_you_mean(name, parameters) or "; it takes none"
            yield f"argument {name!r} is not taken by __init__{near}"
    yield from _order_problems(names, parameters)


def _order_problems(names: list[str], parameters: Mapping[str, inspect.Parameter]) -> Iterator[str]:
    """Yield what stands between the arguments, and what is needed beyond them."""
    first = list(parameters)[: len(names)]
    if first != names:
        yield (
            f"__init__ must take the arguments first, in the order of args: {', '.join(names)}; "
            f"it begins with {', '.join(first)}"
        )
    for name, parameter in list(parameters.items())[len(names) :]:
        several = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.default is parameter.empty and not several:
            yield (
                f"__init__ needs {name!r}, which is not in args; give it a default, or declare "
                f"BenchmarkArg({name!r}, ...)"
            )


def _size_problems(cls: Any) -> Iterator[str]:
    """Yield what a size sets and `__init__` does not take."""
    if not isinstance(cls.sizes, Mapping):
        yield f"sizes is {cls.sizes!r}; write a dict, such as {{'tiny': {{'width': 16}}}}"
        return
    parameters = parameters_of(cls)
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return
    for size, given in cls.sizes.items():
        if not isinstance(given, Mapping):
            yield f"size {size!r} is {given!r}; write a dict of arguments of __init__"
            continue
        for name in given:
            if name not in parameters:
                near = did_you_mean(name, parameters)
                yield f"size {size!r} sets {name!r}, which __init__ does not take{near}"
