"""Lightning Thunder as a backend of torch.compile, and checks whether it can be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from packaging.version import Version

from accel_bench.errors import PluginError, did_you_mean
from accel_bench_compile.cache import installed_version

DISTRIBUTION = "lightning-thunder"

NEWEST_TRIED = "0.2.7.dev20260201"
"""Newest tested version of Thunder; it and 0.2.6 cannot be imported with torch 2.13."""

REASONS = 3
"""Maximum number of reported reasons for parts of a graph that inductor compiles."""


EXECUTORS = {
    "inductor_cat": ("torchcompile_cat",),
    "inductor": ("torchcompile",),
    "transformerengine": ("transformer_engine_v2", "transformer_engine_v1", "transformer_engine"),
}
"""Names of documented executors in other versions of Thunder, the newest version first."""


def missing_thunder(versions: Mapping[str, str]) -> str:
    """Return the reason why Thunder cannot be used; an empty text if it can.

    `versions` maps names of installed packages to their versions.
    """
    thunder, torch = versions.get(DISTRIBUTION), versions.get("torch")
    if thunder is None:
        return f"backend thunder needs the package {DISTRIBUTION}: pip install {DISTRIBUTION}"
    if torch and Version(thunder) <= Version(NEWEST_TRIED) and Version(torch) >= Version("2.13"):
        return (
            f"{DISTRIBUTION} {thunder} does not work with torch {torch}: it names "
            "torch.Tensor.align_as, which went with named tensors; use an older torch, or a newer "
            f"{DISTRIBUTION}"
        )
    return ""


def make_thunder(executors: Sequence[str] = ()) -> Any:
    """Return Thunder's backend for `torch.compile`.

    `executors` are names of Thunder's executors by preference; if empty, Thunder's defaults. Raises
    PluginError if Thunder is not installed, cannot be imported with this torch, or lacks an
    executor.
    """
    try:
        compiler = import_module("thunder.dynamo").ThunderCompiler
        chosen = {"executors": find_executors(executors)} if executors else {}
        return compiler(**chosen)
    except PluginError:
        raise
    except Exception as error:  # An old one fails with whatever torch has removed or renamed.
        here = {name: installed_version(name) for name in (DISTRIBUTION, "torch")}
        known = {name: version for name, version in here.items() if version}
        versions = f"{here[DISTRIBUTION]} with torch {here['torch']}"
        why = missing_thunder(known) or f"{DISTRIBUTION} {versions} does not import: {error}"
        raise PluginError(f"torch-compile: {why}") from error


def find_executors(names: Sequence[str]) -> list[Any]:
    """Return the Thunder executors of these names, in the same order.

    Raises PluginError if Thunder has no executor of a name.
    """
    known = {executor.name: executor for executor in import_module("thunder").get_all_executors()}
    chosen = []
    for name in names:
        there = next((label for label in (name, *EXECUTORS.get(name, ())) if label in known), None)
        if there is None:
            raise PluginError(
                f"torch-compile: Thunder has no executor {name!r} here, or its package is not "
                f"installed{did_you_mean(name, known)}"
            )
        chosen.append(known[there])
    return chosen


def thunder_parts(backend: Any) -> dict[str, Any]:
    """Return JSON evidence: numbers of graph parts that Thunder and inductor compiled.

    `backend` is the backend of `make_thunder`. The evidence has the reasons why Thunder left parts
    to inductor.
    """
    graphs = backend.subgraph_infos
    parts = [part for graph in graphs for part in graph.submodule_to_compiled_functions.values()]
    reasons = [str(reason.info) for graph in graphs for reason in graph.split_reasons or ()]
    return {
        "parts": dict(Counter(part.compiler.name.lower() for part in parts)),
        "split_reasons": list(dict.fromkeys(reasons))[:REASONS],
    }
