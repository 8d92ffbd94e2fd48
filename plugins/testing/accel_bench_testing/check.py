"""Check of a plugin against the plugin contract, requirement by requirement (clause by clause)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from accel_bench.errors import AccelBenchError
from accel_bench.plugins.registry import find
from accel_bench.scenario.uses import ModelUse
from accel_bench_testing import declared
from accel_bench_testing.behaviour import steps
from accel_bench_testing.clause_process import CLAUSE_SECONDS, try_apart
from accel_bench_testing.report import RUN, CheckReport, CheckStep, Clause, proven, violated
from accel_bench_testing.tiny import MODEL
from accel_bench_testing.trial_runs import TrialRuns

FATAL = frozenset({"known hooks", "declarations", "requirements"})
"""Names of the clauses (requirements) that must hold before the plugin is run."""


def check_plugin(  # noqa: PLR0913 - all but the name have defaults
    name: str,
    *,
    options: Mapping[str, Any] | None = None,
    scenario: Mapping[str, Any] | None = None,
    archs: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    device: str = "cpu",
    other_work: bool = False,
    seconds: float = CLAUSE_SECONDS,
) -> CheckReport:
    """Return the report on an installed plugin's check against the contract, with proven and
    unproven clauses.

    `options` are the plugin's. `scenario` holds keys of a scenario file that are merged over the
    tiny scenario. `archs` are architectures such as `LlamaForCausalLM` to run the plugin on, by
    default the declared ones, or else a Llama and a GPT-2. `dtypes` are values of `model.dtype`, by
    default the declared ones, or else float32 and bfloat16. `other_work=True` acknowledges that the
    plugin trains something else than the baseline, so that its loss may differ beyond its
    tolerance.

    The plugin runs on `device` several times, in a separate process. Each run takes about half a
    second, or more with slow imports. A plugin that crashes, ends the process or takes more than
    `seconds` for one clause violates that clause. Raises AssertionError with all violated clauses.
    """
    __tracebackhide__ = True
    trials = TrialRuns(name, options or {}, scenario or {}, archs, dtypes, device, other_work)
    report = CheckReport(plugin=name, clauses=tuple(_clauses(trials, seconds)))
    print(report)
    if report.violated:
        raise AssertionError(str(report))
    return report


def _clauses(trials: TrialRuns, seconds: float) -> Iterator[Clause]:
    """Yield all clauses of a plugin; if its class cannot be imported, only those that need no
    class.

    `seconds` is the time limit for one clause.
    """
    try:
        plugin = find(trials.name)
    except AccelBenchError as error:
        yield violated("entry point", str(error))
        return
    yield from declared.light_import(plugin, trials, seconds)
    plugin.unmet()  # Remembered, also by the processes that are forked.
    _import_libraries(trials.scenario)
    threads = "threads" in trials.scenario.get("resources", {})
    yield from try_apart(partial(_steps, trials), RUN, seconds, not threads)


def _import_libraries(scenario: Mapping[str, Any]) -> None:
    """Import torch and the tiny model's libraries, so that forked processes share them.

    `scenario` has the author's keys of a scenario file, which may replace the model.
    """
    importlib.import_module("torch")
    if scenario.get("model", {}) != {"use": "null"}:
        loading = importlib.import_module("accel_bench.modeling.loading")
        loading.import_model_class(ModelUse(use="huggingface", id=MODEL))


def _steps(trials: TrialRuns, folder: Path) -> Iterator[CheckStep]:
    """Yield the check steps: first checks of the class, then checks by runs, whose files are in
    `folder`."""
    trials.root = folder
    yield "entry point", lambda: _entry_point(trials)
    if not trials.importable:
        return
    yield "declarations", lambda: _of_the_class(trials)
    wrong = [clause.name for clause in _of_the_class(trials) if clause.outcome == "violated"]
    if FATAL.isdisjoint(wrong):
        yield from steps(trials)


def _entry_point(trials: TrialRuns) -> list[Clause]:
    """Import the plugin's class, and return the proven clause of its entry point. Raises
    PluginError if the import fails."""
    assert trials.kind
    return [proven("entry point", f"{find(trials.name).entry.value} is a Plugin")]


def _of_the_class(trials: TrialRuns) -> Iterator[Clause]:
    return declared.of_the_class(find(trials.name), trials.kind, trials.options)
