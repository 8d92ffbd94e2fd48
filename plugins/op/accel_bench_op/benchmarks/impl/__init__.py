"""Modules and functions of the benchmarks; submodules import torch when first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Return a submodule, imported on first access."""
    if name.startswith("_"):
        raise AttributeError(name)
    return import_module(f"{__name__}.{name}")
