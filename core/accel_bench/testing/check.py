"""Prove that a plugin keeps the contract, clause by clause, or say which ones it does not."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from accel_bench.errors import AccelBenchError
from accel_bench.plugins.loading import import_plugin
from accel_bench.plugins.registry import find
from accel_bench.testing import declared
from accel_bench.testing.behaviour import behaviour
from accel_bench.testing.report import CheckReport, Clause, proven, violated
from accel_bench.testing.trial_runs import TrialRuns


def check_plugin(  # noqa: PLR0913 - all but the name have defaults
    name: str,
    *,
    options: Mapping[str, Any] | None = None,
    scenario: Mapping[str, Any] | None = None,
    archs: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    device: str = "cpu",
    other_work: bool = False,
) -> CheckReport:
    """Check an installed plugin against the contract; return what is proven, and what cannot be.

    `options` are the plugin's, `scenario` holds keys of a scenario file that are merged over the
    tiny one. `archs` are architectures such as `LlamaForCausalLM` to run it on: those that it
    declares, or else a Llama and a GPT-2; `dtypes` are values of `model.dtype`: those that it
    declares, or else float32 and bfloat16. `other_work=True` acknowledges that the plugin trains
    something else than the baseline, so that its loss may differ by more than its tolerance.

    It runs the plugin on `device` several times in this process: half a second each for a plugin
    that imports nothing slow. Raises AssertionError with all violated clauses.
    """
    __tracebackhide__ = True
    trials = {
        "options": options or {},
        "scenario": scenario or {},
        "archs": archs,
        "dtypes": dtypes,
        "device": device,
        "other_work": other_work,
    }
    report = CheckReport(plugin=name, clauses=tuple(_clauses(name, trials)))
    print(report)
    if report.violated:
        raise AssertionError(str(report))
    return report


def _clauses(name: str, trials: dict[str, Any]) -> Iterator[Clause]:
    """Yield all clauses; without a class, those that need it are left out."""
    options = trials["options"]
    try:
        plugin = find(name)
        # Before this process imports it: what the import sets would be inherited.
        light = [*declared.light_import(plugin, options, trials["scenario"], trials["device"])]
        kind = import_plugin(plugin.entry, f"plugin {name!r} ({plugin.distribution})", True)
    except AccelBenchError as error:
        yield violated("entry point", str(error))
        return
    yield proven("entry point", f"{plugin.entry.value} is a Plugin")
    yield from light
    static = [*declared.of_the_class(plugin, kind, options)]
    yield from static
    fatal = {"known hooks", "declarations", "requirements"}
    if any(clause.outcome == "violated" and clause.name in fatal for clause in static):
        return
    importlib.import_module("torch")
    with tempfile.TemporaryDirectory(prefix="accel-bench-") as folder:
        yield from behaviour(TrialRuns(name, kind, root=Path(folder), **trials))
