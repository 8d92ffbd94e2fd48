"""Publish the project's claims of its stacks on a GPU: goals beside measured figures.

    python -m benchmarks.claims RESULTS OUTPUT [--floor floor.json]

RESULTS is a results folder with runs of the scenarios named below. For each of them that has runs,
OUTPUT/<scenario> gets `scenario.yaml`, `samples.json` (every run with every step), `report.md` and
`summary.json`: one object for each claim. A claim that was not measured has no value, and says why.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.analysis.checks.convergence import finite, largest_difference
from accel_bench.analysis.metrics.memory import SOURCES, largest
from accel_bench.analysis.metrics.throughput import run_throughput
from accel_bench.analysis.schema import ExperimentSummary, Summary
from accel_bench.analysis.statistics.verdict import ALIKE
from accel_bench.analysis.summary import summarize
from accel_bench.analysis.wording import label_of, percent
from accel_bench.documents.base import Frozen
from accel_bench.documents.load import load_file
from accel_bench.documents.presets import find_presets
from accel_bench.errors import AccelBenchError
from accel_bench.report.formats import render
from accel_bench.result import Result, Status
from accel_bench.store.database import open_store
from benchmarks.entry import PRIVATE
from benchmarks.floor import Rates, floor_line
from benchmarks.goals import GOALS, UNITS, Goal, Metric

ROUNDS = 5
"""Least number of rounds for a goal to count as met."""

UNPUBLISHED = frozenset({"command", "folder", "log_tail"})
"""Fields of a run that name places on the machine."""


class Claim(Frozen):
    """Goal and measured figure: a row of `summary.json`."""

    work: str
    """Scenario, with the point of its sweep where it has one."""

    stack: str
    """Name of the stack."""

    metric: Metric
    """Metric that was measured."""

    value: float | None
    """Median over runs, or the ratio over rounds; null where it was not measured."""

    unit: str
    """Unit of value, goal, low and high."""

    goal: float | None
    """Figure to reach; null where the value is only reported."""

    met: bool | None
    """Whether it is reached, with the comparator's loss; null where that was not measured as the
    goal asks, with the reason."""

    low: float | None
    """Lower end: of the 95 % interval, or of all runs where the unit is bytes or for memory."""

    high: float | None
    """Upper end."""

    baseline: str
    """The stack that a ratio is taken over, and whose loss counts."""

    loss: str
    """The verdict on the loss against that of the baseline; empty without a run."""

    status: str
    """How the stack's runs ended; empty without one."""

    device: str
    """Name of the device."""

    date: str
    """Day of the first run."""

    anchor: str = ""
    """Source of the goal; empty for a ratio, which is measured on both sides."""

    reason: str = ""
    """Why there is no value, why it is not judged, or why a figure that is reached is not met."""


def main() -> None:
    """Write the folders of all works that have runs, and print their claims as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--floor", type=Path, help="what `python -m benchmarks.floor` printed")
    asked = parser.parse_args()
    claims: list[Claim] = []
    for work in dict.fromkeys(goal.work for goal in GOALS):
        with open_store(asked.results, write=False) as store:
            results = store.results(scenario=work)
        if results:
            claims += publish(work, results, asked.output / work, read_rates(asked.floor))
    print(json.dumps({"claims": [claim.model_dump(mode="json") for claim in claims]}, indent=1))


def read_rates(path: Path | None) -> Rates | None:
    """Return the measured rates of the device; None, with a printed line, without them."""
    if path is None:
        return None
    try:
        return Rates.model_validate_json(path.read_text("utf8"))
    except (OSError, ValueError) as error:
        print(f"no floor: {path.name}: {error}", file=sys.stderr)
        return None


def publish(
    work: str, results: Sequence[Result], folder: Path, rates: Rates | None
) -> tuple[Claim, ...]:
    """Write scenario, samples, report and summary of one work; return its claims."""
    folder.mkdir(parents=True, exist_ok=True)
    source = find_presets("scenarios").get(work)
    if source is None:
        raise AccelBenchError(f"the scenario {work!r} is not installed; install its plugin")
    results = newest(results)
    claims = tuple(claim_of(goal, results) for goal in GOALS if goal.work == work)
    baseline = str(load_file(source).data["baseline"])
    (folder / "scenario.yaml").write_text(source.read_text("utf8"), "utf8")
    (folder / "samples.json").write_text(samples_of(results), "utf8")
    summary = json.dumps([claim.model_dump(mode="json") for claim in claims], indent=1)
    (folder / "summary.json").write_text(f"{summary}\n", "utf8")
    (folder / "report.md").write_text(report_of(baseline, results, claims, rates), "utf8")
    return claims


def newest(results: Sequence[Result]) -> list[Result]:
    """Return the runs of the last experiment of each stack at each point of the sweep.

    Another experiment of the same name, such as one of fewer steps or of another version, is
    another measurement: the two are never combined.
    """
    last: dict[tuple[str, str], str] = {}
    for run in sorted(results, key=lambda run: run.started_at):
        last[run.experiment.stack.name, run.experiment.point] = run.experiment.id
    return [
        run
        for run in results
        if run.experiment.id == last[run.experiment.stack.name, run.experiment.point]
    ]


def samples_of(results: Sequence[Result]) -> str:
    """Return JSON of all runs with all steps, without the fields that name local paths."""
    rows = [result.model_dump(mode="json", exclude=set(UNPUBLISHED)) for result in results]
    for row in rows:
        row["machine"] = {k: v for k, v in (row["machine"] or {}).items() if k not in PRIVATE}
    return f"{json.dumps(rows)}\n"


def claim_of(goal: Goal, results: Sequence[Result]) -> Claim:
    """Compare the measured figure with the goal."""
    runs = [run for run in newest(results) if _concerns(goal, run)]
    rows = {row.stack: row for row in summary_of(goal.work, goal.baseline, runs).experiments}
    row = rows.get(goal.stack)
    value, low, high, reason = _measured(goal, rows, runs)
    reason = reason or _unjudged(goal, row, runs)
    met = None
    if value is not None and goal.goal is not None and not reason and row is not None:
        reached = _reaches(goal, value)
        # A loss that hardly moves cannot tell: the update can.
        shown = bool(ALIKE & {row.loss_verdict, row.update_verdict}) or row.excused
        met = reached and shown and not row.not_the_same
        if reached and not met:
            why = row.not_the_same or f"not shown to be the same ({row.loss_reason})"
            reason = f"reached, but the training is {why}"
    return Claim(
        work=" ".join([goal.work, *(f"{key}={value}" for key, value in goal.sweep.items())]),
        stack=goal.stack,
        metric=goal.metric,
        value=value,
        unit=UNITS[goal.metric],
        goal=goal.goal,
        met=met,
        low=low,
        high=high,
        baseline=goal.baseline,
        loss=row.loss_verdict if row else "",
        status=row.status.value if row else "",
        device=", ".join(_devices(runs)),
        date=min((run.started_at for run in runs), default="")[:10],
        anchor=goal.anchor,
        reason=reason,
    )


def summary_of(work: str, baseline: str, runs: Sequence[Result]) -> Summary:
    """Return accel-bench's own summary of these runs, compared with a baseline stack."""
    skipped = {run.experiment.id: run.reasons for run in runs if run.status is Status.SKIPPED}
    experiments = {run.experiment.id: run.experiment for run in runs}
    planned = [
        PlannedSummary(experiment=experiment, skipped=skipped.get(name, ()))
        for name, experiment in experiments.items()
    ]
    # All runs are reported; whether they suffice for a claim is stated beside the value.
    counts = Counter(run.experiment.id for run in runs)
    return summarize(work, baseline, planned, runs, min(counts.values(), default=1))


def report_of(
    baseline: str, results: Sequence[Result], claims: Sequence[Claim], rates: Rates | None
) -> str:
    """Return Markdown: claims, what they are held against, floors, differences between runs, the
    program's comparison."""
    work = results[0].experiment.scenario.name
    summary = summary_of(work, baseline, results)
    head = "| stack | metric | over | value | low to high | goal | met | loss | |\n" + "| --- " * 9
    floors = [floor_line(row, rates) for row in summary.experiments] if rates else ["No floor."]
    told = [f"Table of {' and '.join(_devices(results)) or 'no device'}."]
    told += dict.fromkeys(map(anchor_line, (claim for claim in claims if claim.anchor)))
    parts = ["\n".join(told), "\n".join([f"{head}|", *map(_row, claims)]), "\n".join(floors)]
    by_experiment: dict[str, list[Result]] = {}
    for run in results:
        by_experiment.setdefault(run.experiment.id, []).append(run)
    parts.append("\n".join(map(repeat_line, by_experiment.values())))
    return "\n\n".join([f"# {work}", *parts, render([summary], "markdown")])


def anchor_line(claim: Claim) -> str:
    """Return a Markdown line that quotes the source of a goal, with what it leaves open."""
    left = f" (open: {claim.reason})" if claim.met is None and claim.value is not None else ""
    return f"- {claim.metric} {_number(claim.goal)}: {claim.anchor}{left}"


def repeat_line(runs: Sequence[Result]) -> str:
    """Return a Markdown line of how far an experiment's runs are from its first."""
    name = label_of(runs[0].experiment)
    found = [run for run in map(run_throughput, runs) if run is not None]
    curves = [finite(run.losses) for run in found]
    if len(curves) < 2 or len({len(curve) for curve in curves}) != 1 or not curves[0]:
        return f"- `{name}`: no two runs whose losses can be compared"
    distance = max(largest_difference(curves[0], curve) for curve in curves[1:])
    return f"- `{name}`: losses of its {len(curves)} runs differ by up to {percent(distance)}"


def _concerns(goal: Goal, run: Result) -> bool:
    """Return whether a run is of the goal's stacks, at its point of the sweep."""
    at_point = all(run.experiment.sweep.get(key) == value for key, value in goal.sweep.items())
    return at_point and run.experiment.stack.name in (goal.stack, goal.baseline)


def _measured(
    goal: Goal, rows: dict[str, ExperimentSummary], runs: Sequence[Result]
) -> tuple[float | None, float | None, float | None, str]:
    """Return value, low and high, or the reason why there are none."""
    missing = [name for name in (goal.stack, goal.baseline) if name not in rows]
    row = rows.get(goal.stack)
    if missing or row is None:
        return None, None, None, f"no run of {' and '.join(missing)}"
    if goal.metric in ("tokens_per_second", "speed_ratio"):
        found = row.tokens_per_second if goal.metric == "tokens_per_second" else row.ratio
        if found is None:
            return (
                None,
                None,
                None,
                row.verdict_reason or "; ".join(row.reasons) or row.status.value,
            )
        return found.median, found.low, found.high, ""
    peaks = [*_peaks(goal, runs)]
    if not peaks:
        return None, None, None, "nothing is allocated on a GPU"
    return median(peaks), min(peaks), max(peaks), ""


def _peaks(goal: Goal, runs: Sequence[Result]) -> Iterator[float]:
    """Yield peak bytes of the stack's windows; for a ratio, over the baseline's of the round."""
    peaks = {(run.experiment.stack.name, run.session, run.round): _peak(run) for run in runs}
    for (stack, session, number), peak in peaks.items():
        is_ratio = goal.metric == "peak_allocated_ratio"
        base = peaks.get((goal.baseline, session, number)) if is_ratio else 1.0
        if stack == goal.stack and peak and base:
            yield peak / base


def _peak(run: Result) -> float | None:
    """Return the peak bytes of tensors in the window, on the device with the highest."""
    source = SOURCES["allocated"]
    found = largest(run, source.window, source.kinds[0]) if run.status.completed else None
    return None if found is None else float(found[0])


def _unjudged(goal: Goal, row: ExperimentSummary | None, runs: Sequence[Result]) -> str:
    """Return why a measured figure is not compared with its goal; empty where it is."""
    steps = min((run.experiment.scenario.measure.steps for run in runs), default=0)
    rounds = row.rounds if row else 0
    if not all(goal.device in name for name in _devices(runs)):
        return f"the goal is for an {goal.device}"
    if not all(rank.device and rank.device.type == "cuda" for run in runs for rank in run.ranks):
        return "the goal is for a GPU"
    if rounds < ROUNDS:
        return f"{rounds} of {ROUNDS} rounds"
    return f"{steps} of {goal.steps} steps" if steps < goal.steps else ""


def _reaches(goal: Goal, value: float) -> bool:
    assert goal.goal is not None
    return value <= goal.goal if goal.at_most else value >= goal.goal


def _devices(runs: Sequence[Result]) -> list[str]:
    names = (rank.device.name for run in runs for rank in run.ranks if rank.device)
    return list(dict.fromkeys(name for name in names if name))


def _row(claim: Claim) -> str:
    """Format a claim as a row of a Markdown table."""
    met = {True: "yes", False: "no", None: ""}[claim.met]
    span = f"{_number(claim.low)} to {_number(claim.high)}" if claim.low is not None else ""
    over = claim.baseline if claim.metric.endswith("ratio") else ""
    cells = (claim.stack, claim.metric, over, _number(claim.value), span)
    return f"| {' | '.join([*cells, _number(claim.goal), met, claim.loss, claim.reason])} |"


def _number(value: float | None) -> str:
    """Format a figure with four digits; empty for None."""
    return "" if value is None else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


if __name__ == "__main__":
    main()
