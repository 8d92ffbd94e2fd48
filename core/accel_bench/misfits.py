"""What of a plugin's hooks does not fit the contract: names, arguments, wrappers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from accel_bench import hookspecs
from accel_bench.errors import did_you_mean
from accel_bench.plugin import PROJECT, Plugin


def hook_arguments() -> dict[str, list[str]]:
    """Names of all hooks in call order, with the arguments that each can take."""
    return {
        name: list(inspect.signature(value).parameters)
        for name, value in vars(hookspecs).items()
        if hasattr(value, f"{PROJECT}_spec")
    }


def misfits(kind: type[Plugin[Any]]) -> list[str]:
    """A sentence for each method marked as a hook that is none, with the nearest right name."""
    marked = inspect.getmembers(kind, lambda value: hasattr(value, f"{PROJECT}_impl"))
    return [text for name, function in marked for text in _misfits_of(name, function)]


def _misfits_of(name: str, function: Any) -> Iterator[str]:
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
