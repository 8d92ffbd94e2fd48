"""`accelerate`, which applies a stack in a user's training script, and a callback for Trainer.

The package imports a module when one of its names is first used, so that importing it is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel_bench_apply.accelerated import AcceleratedModel as AcceleratedModel
    from accel_bench_apply.outside import Outside as Outside
    from accel_bench_apply.script import accelerate as accelerate
    from accel_bench_apply.trainer_impl import AccelerateCallback as AccelerateCallback

_HOMES = {
    "AccelerateCallback": "trainer_impl",
    "AcceleratedModel": "accelerated",
    "Outside": "outside",
    "accelerate": "script",
}

__all__ = ["AccelerateCallback", "AcceleratedModel", "Outside", "accelerate"]


def __getattr__(name: str) -> Any:
    """Return the object that the package exports as `name`, and import its module on first use.
    Raises AttributeError for an unknown name."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
