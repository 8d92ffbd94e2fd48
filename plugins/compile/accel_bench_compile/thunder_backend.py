"""Compile captured graphs with Lightning Thunder, and report why it cannot be used."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from typing import Any

from packaging.version import Version

from accel_bench.errors import PluginError
from accel_bench_compile.cache import installed_version

DISTRIBUTION = "lightning-thunder"

NEWEST_TRIED = "0.2.7.dev20260201"
"""The newest version that was tried; it and 0.2.6 do not import with torch 2.13."""

REASONS = 3
"""Number of reasons that are kept for leaving parts of a graph to inductor."""


def missing_thunder() -> str:
    """Return why Thunder cannot be used here, by metadata alone; empty where it can."""
    thunder, torch = installed_version(DISTRIBUTION), installed_version("torch")
    if thunder is None:
        return f"backend thunder needs the package {DISTRIBUTION}: pip install {DISTRIBUTION}"
    if torch and Version(thunder) <= Version(NEWEST_TRIED) and Version(torch) >= Version("2.13"):
        return (
            f"{DISTRIBUTION} {thunder} does not work with torch {torch}: it names "
            "torch.Tensor.align_as, which went with named tensors; use an older torch, or a newer "
            f"{DISTRIBUTION}"
        )
    return ""


def make_thunder() -> Any:
    """Return the backend for `torch.compile`.

    Raises PluginError when Thunder is not installed, or does not import with this torch.
    """
    try:
        return import_module("thunder.dynamo").ThunderCompiler()
    except Exception as error:  # An old one fails with whatever torch has removed or renamed.
        versions = f"{installed_version(DISTRIBUTION)} with torch {installed_version('torch')}"
        why = missing_thunder() or f"{DISTRIBUTION} {versions} does not import: {error}"
        raise PluginError(f"torch-compile: {why}") from error


def thunder_parts(backend: Any) -> dict[str, Any]:
    """Return JSON of the compilers of all graphs' parts: inductor for what Thunder cannot."""
    graphs = backend.subgraph_infos
    parts = [part for graph in graphs for part in graph.submodule_to_compiled_functions.values()]
    reasons = [str(reason.info) for graph in graphs for reason in graph.split_reasons or ()]
    return {
        "parts": dict(Counter(part.compiler.name.lower() for part in parts)),
        "split_reasons": list(dict.fromkeys(reasons))[:REASONS],
    }
