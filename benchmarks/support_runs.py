"""Run a work with stacks in this process, and say in a row for each what it trained."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from statistics import mean
from typing import Any, Literal, TypeAlias

import yaml
from accel_bench_testing.process_state import preserved
from accel_bench_testing.running import run_or_skip
from accel_bench_testing.tiny import this_machine

from accel_bench.analysis.checks.training import compare_training
from accel_bench.analysis.checks.training_verdict import TrainingComparison, training_obstacle
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.documents.presets import find_presets
from accel_bench.errors import AccelBenchError
from accel_bench.planning.plan import Plan, Planned, PlanRequest, make_plan
from accel_bench.plugins.registry import missing_extra
from accel_bench.result import Result
from accel_bench.runner.update_files import PendingUpdates
from accel_bench.scenario.find import read_draft
from accel_bench.scenario.models import Scenario
from benchmarks.flops_ratio import flops_ratio
from benchmarks.support_effects import changes_something, is_wrapped_whole

WORKS = Path(__file__).with_name("support.yaml")
"""What is run."""

BASELINE = "baseline"

UNDIVIDED_REASON = "on one device nothing is divided"
"""Reason of a stack that wraps the model to divide it, where there is one device."""

SHORT: dict[str, JsonValue] = {
    "measure.warmup": 1,
    "measure.steps": 8,
    "measure.phase_steps": 0,
    "measure.rounds": 1,
    "resources.device": "cpu",
    "resources.threads": 1,
}
"""Settings of each run: as many steps as show that a loss falls."""

CLOSE = 1e-3
"""Relative difference of FLOPs from torch's counter up to which they count as equal."""

REFUSALS = frozenset({"PluginError", "ScenarioError"})
"""Errors by which a worker says what only a loaded model shows."""

Outcome: TypeAlias = Literal[
    "trained",
    "equivalent",
    "nothing to do",
    "different by design",
    "different",
    "undecided",
    "refused",
    "failed",
]
"""Outcome of a run; if both trained, the training's verdict, told from the obstacle alone.

`undecided` is also what the core calls not tested, and `equivalent` what it calls bitwise equal.
"""


class Row(Frozen):
    """What one stack does with one work."""

    scenario: str
    """Name of the work."""

    task: str
    model: str
    data: str
    """Plugins and model of the work."""

    stack: str
    """Name of the stack; `baseline` is the work without any."""

    outcome: Outcome
    """Of a baseline: whether it trained; of another stack: how its training compares with it."""

    first_loss: float | None = None
    """Mean loss of the first quarter of the window; null without a window."""

    last_loss: float | None = None
    """The same of its last quarter."""

    tensors_with_gradient: int | None = None
    """Trained tensors that a gradient reached in the first step."""

    trained_tensors: int | None = None
    """Tensors that train."""

    flops_ratio: float | None = None
    """FLOPs of a micro-batch by our count over those of torch's counter; null: not compared."""

    update_difference: float | None = None
    """Distance of the weights' change from that of the baseline; 0.1 is 10 %."""

    reason: str = ""
    """Why it is refused, failed, differs, or has nothing to do."""

    declared_by: tuple[str, ...] = ()
    """Plugins that declare how far it differs by design."""

    @property
    def learns(self) -> bool:
        """Whether the loss fell within the window."""
        known = self.first_loss is not None and self.last_loss is not None
        return known and (self.last_loss or 0.0) < (self.first_loss or 0.0)

    @property
    def is_counted(self) -> bool:
        """Whether FLOPs are those of torch's counter."""
        return self.flops_ratio is not None and abs(self.flops_ratio - 1) <= CLOSE


class Support(Frozen):
    """The table's file."""

    rows: tuple[Row, ...] = ()


@lru_cache(maxsize=1)
def _written() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(WORKS.read_text(encoding="utf8"))
    return found


def works() -> list[str]:
    """Return the names of the works, in the order of the page."""
    return list(_written()["works"])


def stacks_here() -> list[str]:
    """Return the names of the stacks of this environment, and of ours that it has plugins for."""
    ours = (name for name, entry in _written()["stacks"].items() if not _lacks(entry))
    return sorted({*find_presets("stacks"), *ours})


def _lacks(entry: Any) -> bool:
    uses = entry if isinstance(entry, list) else []
    return any(missing_extra(use["use"]) for use in uses)


def rows_of(
    work: str, stacks: Sequence[str], settings: Mapping[str, JsonValue] = SHORT
) -> Iterator[Row]:
    """Yield the row of a work's baseline, then one for each stack.

    Stacks whose baseline is the same experiment are compared with one run of it.
    """
    importlib.import_module("torch")
    with tempfile.TemporaryDirectory(prefix="accel-bench-") as name:
        folder = Path(name)
        own = _plan(work, None, settings, folder)
        names = _names(work, own.planned[0].experiment.scenario)
        groups: dict[str, tuple[Plan, list[Planned]]] = {own.planned[0].experiment.id: (own, [])}
        for stack in stacks:
            try:
                plan = _plan(work, stack, settings, folder)
            except AccelBenchError as error:
                yield Row(**names, stack=stack, outcome="refused", reason=_line(str(error)))
                continue
            baseline, planned = plan.planned
            _, others = groups.setdefault(baseline.experiment.id, (plan, []))
            others.append(planned)
        for plan, others in groups.values():
            yield from _rows(names, plan, others, folder, with_baseline=plan is own)


def _plan(work: str, stack: str | None, settings: Mapping[str, JsonValue], folder: Path) -> Plan:
    """Return the plan of a work's baseline, and of a stack beside it."""
    path = folder / f"{work}.yaml"
    path.write_text(yaml.safe_dump(_written()["works"][work]), encoding="utf8")
    named = {} if stack is None else {stack: _written()["stacks"].get(stack, stack)}
    whole = {**read_draft(path).data, "stacks": {BASELINE: [], **named}, "baseline": BASELINE}
    path.write_text(yaml.safe_dump(whole, sort_keys=False), encoding="utf8")
    draft = read_draft(path)
    request = PlanRequest(overrides=tuple(settings.items()), oversubscribe=True)
    with preserved():
        return make_plan(draft, this_machine(), request)


def _rows(
    names: Mapping[str, Any],
    plan: Plan,
    others: Sequence[Planned],
    folder: Path,
    *,
    with_baseline: bool,
) -> Iterator[Row]:
    """Yield the row of a baseline where it is asked for, and those of stacks compared with it."""
    runs = [one for one in others if not one.skipped]
    with closing(PendingUpdates(BASELINE, plan.file.measure.exact_update_bytes)) as changes:
        if with_baseline or runs:
            baseline = run_or_skip(plan.planned[0], folder, changes=changes).result
        if with_baseline:
            yield _baseline_row(names, baseline, folder)
        for planned in others:
            result = run_or_skip(planned, folder, changes=changes).result
            if planned.skipped:
                stack, reason = planned.experiment.stack.name, _line(planned.skipped[0])
                yield Row(**names, stack=stack, outcome="refused", reason=reason)
            else:
                yield _stack_row(names, baseline, result)


def _baseline_row(names: Mapping[str, Any], result: Result, folder: Path) -> Row:
    """Return the row of a baseline; one whose loss does not fall has failed."""
    found = {**names, "stack": BASELINE, **_trained(result)}
    if not result.status.completed:
        return Row(**found, outcome="failed", reason=_line("; ".join(result.reasons)))
    ratio, reason = flops_ratio(folder / f"{names['scenario']}.yaml", SHORT)
    row = Row(**found, outcome="trained", flops_ratio=ratio, reason=_line(reason))
    return row if row.learns else row.model_copy(update={"outcome": "failed"})


def _stack_row(names: Mapping[str, Any], baseline: Result, result: Result) -> Row:
    found = {**names, "stack": result.experiment.stack.name, **_trained(result)}
    if not result.status.completed:
        error = result.ranks[0].error if result.ranks else None
        if error is not None and error.type in REFUSALS:
            return Row(**found, outcome="refused", reason=_line(error.message))
        return Row(**found, outcome="failed", reason=_line("; ".join(result.reasons)))
    if not baseline.status.completed:
        return Row(**found, outcome="undecided", reason=_line("; ".join(baseline.reasons)))
    compared = compare_training({("pair", 0): baseline}, {("pair", 0): result})
    outcome, reason = _compared(compared)
    if outcome == "equivalent" and not changes_something(baseline, result):
        outcome, reason = "nothing to do", "the baseline computes so already"
    elif outcome == "equivalent" and is_wrapped_whole(result):
        reason = UNDIVIDED_REASON
    return Row(
        **found,
        outcome=outcome,
        reason=_line(reason),
        update_difference=compared.update_difference,
        declared_by=compared.declared_by if outcome == "different by design" else (),
    )


def _names(work: str, scenario: Scenario) -> dict[str, Any]:
    """Return what a work is made of."""
    return {
        "scenario": work,
        "task": scenario.task.use,
        "model": scenario.model.id,
        "data": scenario.data.use,
    }


def _trained(result: Result) -> dict[str, Any]:
    """Return the ends of the loss curve and the gradient flow of a run."""
    window = result.ranks[0].window if result.ranks else None
    if window is None:
        return {}
    losses = [sample.loss for sample in window.samples if sample.loss is not None]
    quarter = max(1, len(losses) // 4)
    found: dict[str, Any] = {}
    if losses:
        found = {"first_loss": mean(losses[:quarter]), "last_loss": mean(losses[-quarter:])}
    effective = result.ranks[0].effective
    flow = effective.gradient_flow if effective else None
    if flow is not None:
        found |= {
            "tensors_with_gradient": flow.tensors_with_gradient,
            "trained_tensors": flow.trained_tensors,
        }
    return found


def _compared(compared: TrainingComparison) -> tuple[Outcome, str]:
    """Return how a training compares with the baseline's, and why."""
    if different := compared.training_difference:
        return "different", different
    obstacle = training_obstacle(compared)
    if not obstacle:
        return "equivalent", ""
    return ("different by design" if compared.differs_by_design else "undecided"), obstacle


def _line(text: str) -> str:
    return " ".join(text.split())
