"""Show in a table what trains, what is counted, and which stacks train the same.

    python -m benchmarks.support --output benchmarks/published/cpu-support.json \\
        --table docs/support.md

Each shipped scenario of a task is run in this process, a few steps long, once with each named
stack that is installed: stacks of libraries that change every other stack are added by a second
call in an environment that has them. Rows of the output's file that this call does not make are
kept.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Literal, TypeAlias

import yaml
from pydantic import ValidationError

from accel_bench.analysis.checks.training import (
    TrainingComparison,
    compare_training,
    training_obstacle,
)
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.documents.files import write_atomically
from accel_bench.documents.presets import find_presets, preset_path
from accel_bench.errors import AccelBenchError
from accel_bench.planning.resolve import resolve
from accel_bench.result import Result, Status
from accel_bench.scenario.draft import read_draft
from accel_bench.scenario.models import ScenarioFile
from accel_bench.testing import run_scenario
from benchmarks.flops_ratio import flops_ratio

SUFFIX = "-cpu"
"""End of the names of the scenarios that stand for a task."""

BASELINE = "baseline"

SHORT: dict[str, JsonValue] = {
    "measure.warmup": 1,
    "measure.steps": 8,
    "measure.phase_steps": 0,
    "measure.rounds": 1,
}
"""Settings of each run: as many steps as show that a loss falls."""

CLOSE = 1e-3
"""Relative difference of FLOPs from torch's counter up to which they count as equal."""

Outcome: TypeAlias = Literal[
    "trained", "equivalent", "different by design", "different", "undecided", "refused", "failed"
]


class Row(Frozen):
    """What one stack does with one scenario."""

    scenario: str
    """Name of the shipped scenario."""

    task: str
    model: str
    data: str
    """Plugins and model of the scenario."""

    stack: str
    """Name of the stack; `baseline` is the scenario's plainest."""

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
    """Why it is refused, failed, or differs."""

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


def task_scenarios() -> list[str]:
    """Return the names of the shipped scenarios that train on one device of any machine."""
    names = sorted(name for name in find_presets("scenarios") if name.endswith(SUFFIX))
    found = {name: _read_scenario(name) for name in names}
    return [
        name
        for name, file in found.items()
        if file.mode == "train" and file.resources.devices == 1 and not file.ladder
    ]


def stacks_here() -> list[str]:
    """Return the names of the stacks of this environment."""
    return sorted(find_presets("stacks"))


def rows_of(scenario: str, stacks: Sequence[str]) -> Iterator[Row]:
    """Yield the row of a scenario's baseline, then one for each stack."""
    yield _row(scenario, BASELINE, _runs(scenario, None))
    for stack in stacks:
        yield _row(scenario, stack, _runs(scenario, stack))


def _runs(scenario: str, stack: str | None) -> dict[str, Result] | AccelBenchError:
    """Run a scenario's baseline beside a named stack; an error is what refuses it as a whole."""
    document = {"extends": scenario, "stacks": {BASELINE: []}}
    if stack is not None:
        document = {"extends": scenario, "stacks": {BASELINE: [], stack: stack}}
    with tempfile.TemporaryDirectory(prefix="accel-bench-") as folder:
        path = Path(folder) / f"{scenario}.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf8")
        try:
            return run_scenario(path, settings=SHORT)
        except AccelBenchError as error:
            return error


def _row(scenario: str, stack: str, runs: dict[str, Result] | AccelBenchError) -> Row:
    if isinstance(runs, AccelBenchError):
        found = {**_names(scenario), "stack": stack}
        return Row(**found, outcome="refused", reason=_line(str(runs)))
    result = runs[stack]
    found = {**_names(scenario), "stack": stack, **_trained(result)}
    if result.status is Status.SKIPPED:
        return Row(**found, outcome="refused", reason=_line("; ".join(result.reasons)))
    if not result.status.completed:
        return Row(**found, outcome="failed", reason=_line("; ".join(result.reasons)))
    if stack == BASELINE:
        ratio, reason = flops_ratio(scenario)
        row = Row(**found, outcome="trained", flops_ratio=ratio, reason=_line(reason))
        return row if row.learns else row.model_copy(update={"outcome": "failed"})
    baseline = runs[BASELINE]
    if not baseline.status.completed:
        return Row(**found, outcome="undecided", reason=_line("; ".join(baseline.reasons)))
    compared = compare_training({("pair", 0): baseline}, {("pair", 0): result})
    outcome, reason = _compared(compared)
    return Row(
        **found,
        outcome=outcome,
        reason=_line(reason),
        update_difference=compared.update_difference,
    )


def _names(scenario: str) -> dict[str, Any]:
    """Return what a scenario is made of."""
    file = _read_scenario(scenario)
    return {
        "scenario": scenario,
        "task": file.task.use,
        "model": file.model.id,
        "data": file.data.use,
    }


def _read_scenario(name: str) -> ScenarioFile:
    return resolve(read_draft(preset_path("scenarios", name))).scenario


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
    return ("different by design" if "by design" in obstacle else "undecided"), obstacle


def _line(text: str) -> str:
    return " ".join(text.split())


def merged(before: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """Return new rows, and those of before that no new one replaces, in a steady order."""
    found = {(row.scenario, row.stack): row for row in (*before, *new)}
    return [found[key] for key in sorted(found, key=lambda key: (key[0], key[1] != BASELINE, key))]


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a page of Markdown."""
    trained = [row for row in rows if row.stack == BASELINE]
    others = [row for row in rows if row.stack != BASELINE]
    page = TASKS.format(baselines="\n".join(map(_baseline_line, trained)))
    if not others:
        return page
    return page + STACKS.format(
        stacks=" | ".join(_short(row.scenario) for row in trained),
        ruler=" | ".join("---" for _ in trained),
        matrix="\n".join(_matrix(trained, others)),
        reasons="\n".join(_reasons(others)),
    )


TASKS = """# What trains, what is counted, what accelerates

Made by `python -m benchmarks.support`: each shipped scenario of a task is run for a few steps, once
with each named stack. Nothing here says how fast a stack is: it says whether the same is trained.

## Tasks

*Loss* is the mean of the first and of the last quarter of eight steps; *gradient* counts the
trained tensors that one reached; *FLOPs* are ours over those of torch's own counter.

| scenario | task | model | data | loss | gradient | FLOPs |
| --- | --- | --- | --- | --- | --- | --- |
{baselines}
"""

STACKS = """
## Stacks

`=` equivalent training, `~` different by design, `≠` different, `?` not decided, `-` refused, `!`
failed; below are the reasons.

| stack | {stacks} |
| --- | {ruler} |
{matrix}

## Reasons

| stack | scenarios | what it says |
| --- | --- | --- |
{reasons}
"""

SIGNS: Mapping[Outcome, str] = {
    "trained": "=",
    "equivalent": "=",
    "different by design": "~",
    "different": "≠",
    "undecided": "?",
    "refused": "-",
    "failed": "!",
}


def _baseline_line(row: Row) -> str:
    loss = "-" if row.first_loss is None else f"{row.first_loss:.4g} to {row.last_loss:.4g}"
    gradient = f"{row.tensors_with_gradient} of {row.trained_tensors}"
    flops = f"not counted: {row.reason}" if row.flops_ratio is None else f"{row.flops_ratio:.5f}"
    cells = (f"`{row.scenario}`", row.task, row.model, row.data, loss, gradient, flops)
    return f"| {' | '.join(cells)} |"


def _matrix(trained: Sequence[Row], others: Sequence[Row]) -> Iterator[str]:
    found = {(row.scenario, row.stack): SIGNS[row.outcome] for row in others}
    for stack in sorted({row.stack for row in others}):
        cells = (found.get((row.scenario, stack), " ") for row in trained)
        yield f"| `{stack}` | {' | '.join(cells)} |"


def _reasons(others: Sequence[Row]) -> Iterator[str]:
    """Yield each reason of a stack once, with the scenarios that it holds for."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in others:
        if row.reason:
            found.setdefault((row.stack, row.reason), []).append(_short(row.scenario))
    for (stack, reason), scenarios in sorted(found.items()):
        said = reason.replace("|", "\\|")
        yield f"| `{stack}` | {', '.join(scenarios)} | {said} |"


def _short(scenario: str) -> str:
    return scenario.removesuffix(SUFFIX)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is asked for, keep its rows as they come, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.support", description=__doc__)
    parser.add_argument("--scenarios", nargs="*", default=task_scenarios(), metavar="NAME")
    parser.add_argument("--stacks", nargs="*", default=stacks_here(), metavar="NAME")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="JSON of rows")
    parser.add_argument("--table", type=Path, metavar="FILE", help="page of Markdown")
    asked = parser.parse_args(arguments)
    rows = _read(asked.output)
    for scenario in asked.scenarios:
        for row in rows_of(scenario, asked.stacks):
            rows = merged(rows, [row])
            print(f"{row.scenario} {row.stack}: {row.outcome} {row.reason}", file=sys.stderr)
            text = Support(rows=tuple(rows)).model_dump_json(indent=1)
            write_atomically(asked.output, f"{text}\n")
    if asked.table:
        write_atomically(asked.table, table(rows))


def _read(path: Path) -> list[Row]:
    """Return the rows of a file; none where there is no file."""
    if not path.exists():
        return []
    try:
        return list(Support.model_validate_json(path.read_bytes()).rows)
    except ValidationError as error:
        raise SystemExit(f"{path} is not a table of this command: {error}") from error


if __name__ == "__main__":
    main()
