"""Type checks of the values that hooks such as `load_model` and `build_engine` return."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from accel_bench.plugins.active import ActivePlugins
from accel_bench.run_context import Run


def require(active: ActivePlugins, hook: str, run: Run) -> Any:
    """Call a hook such as `load_model`, and return its value. Raises HookError for a wrong type."""
    expected, accepts = EXPECTED[hook]
    return active.require(hook, expected, lambda value: accepts(value, run), run=run)


def is_model(value: object, run: Run) -> bool:
    """Return whether a value can replace the model; it needs parameters if the model has any."""
    if isinstance(value, bool | float | int | list | str | tuple | Mapping | None):
        return False
    return not hasattr(run.model, "named_parameters") or hasattr(value, "named_parameters")


def is_optimizer(value: object, run: Run) -> bool:
    """Return whether a value can be an optimizer; for a model of torch it needs a method `step`."""
    takes_steps = callable(getattr(value, "step", None))
    return value is not None and (takes_steps or not hasattr(run.model, "named_parameters"))


EXPECTED: dict[str, tuple[str, Callable[[Any, Run], bool]]] = {
    "load_model": ("a model", is_model),
    "add_adapter": ("a model", is_model),
    "parallelize_model": ("a model", is_model),
    "build_loss": ("a function", lambda value, run: callable(value)),
    "build_optimizer": ("an optimizer", is_optimizer),
    "build_batches": ("an iterator", lambda value, run: isinstance(value, Iterator)),
    "build_evaluation_batches": (
        "batches to iterate over again and again",
        lambda value, run: isinstance(value, Iterable) and not isinstance(value, Iterator),
    ),
    "build_engine": ("an Engine", lambda value, run: callable(getattr(value, "run", None))),
}
"""Checked hooks, each with a description and a test of its value."""
