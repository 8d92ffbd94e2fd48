"""Cells of micro-benchmarks: what `op run` measured of each operation under each executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accel_bench.analysis.schema import Document, ExperimentSummary, Summary
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.result import Status
from accel_bench.scenario.models import Scenario


class ExecutorSupport(Frozen):
    """Answer of an executor that was asked if it can run a benchmark here."""

    executor: str
    """Its name."""

    distribution: str
    """What brings it, with the version."""

    has_kernel: bool
    """True if it takes the operation, installed or not."""

    runs: bool
    """True if it can run it here."""

    reason: str = ""
    """Why not."""


class OperationEntry(Frozen):
    """One benchmark that is installed."""

    benchmark: str
    """Its name."""

    description: str = ""
    """What it computes, in a sentence."""

    operation: str = ""
    """What an executor may have a kernel for; empty where it is nothing that has a name."""

    compute_types: tuple[str, ...] = ()
    """What of it can be timed here."""

    sizes: tuple[str, ...] = ()
    """Names of its sizes; empty where it has its own defaults alone."""

    distribution: str
    """What brings it, with the version."""

    executors: tuple[ExecutorSupport, ...] = ()
    """Every executor that is installed and can be used."""

    problem: str = ""
    """Why the entry point cannot be used, which names it; empty where it can."""


class GradientCheck(Frozen):
    """The distance of outputs and gradients from eager in float64, on a batch of its own."""

    largest: float
    """Largest relative distance of all tensors."""

    tolerance: float
    """What is allowed in this dtype."""

    of: str
    """The tensor that is farthest off."""

    tensors: int
    """Outputs and gradients that were compared."""

    size: str = ""
    """Size at which they were: another one than the cell's where there is no memory for float64."""


class OperationCell(Frozen):
    """One operation at one size under one executor. Null where it was not measured, never 0."""

    scenario: str
    """Name of the scenario under which it is stored."""

    benchmark: str
    """Its name."""

    size: str
    """One of its sizes; empty for its own defaults."""

    compute_type: str
    """`inference`, `forward` or `backward`."""

    dtype: str
    """Dtype of its tensors, unless the size sets one."""

    device: str
    """`cpu` or `cuda`."""

    executor: str
    """What runs it."""

    experiment_id: str
    """Identity of the experiment; empty where it was not run."""

    status: Status
    """How it ended: running out of memory is an answer."""

    reasons: tuple[str, ...] = ()
    """Why it did not end well."""

    runs: int
    """Completed runs, each in fresh processes."""

    calls_per_second: Interval | None = None
    """Calls in a second, with a 95 % interval over runs."""

    seconds_per_call: Interval | None = None
    """The same the other way round."""

    ratio: Interval | None = None
    """Times as fast as eager, paired by round."""

    verdict: str
    """What the rounds say of that."""

    verdict_reason: str = ""
    """Why there is no other verdict."""

    flops_per_second: float | None = None
    """FLOPs of the operation per second; null where they say nothing."""

    bytes_per_second: float | None = None
    """Bytes that it must move at least, per second."""

    fraction_of_roofline: float | None = None
    """Share of what this machine was measured to reach at most."""

    peak_bytes: float | None = None
    """Most that a call holds beyond its weights and its batch; null on other devices."""

    check: GradientCheck | None = None
    """What it computes, compared with eager in float64; null where no run completed."""


class OperationReport(Document):
    """The document of `accel-bench op run`."""

    baseline: str
    """The executor that the others are compared with."""

    cells: tuple[OperationCell, ...]
    """Every cell, in the order of the plan."""

    notices: tuple[str, ...] = ()
    """What planning found, and load of the host that disturbed some runs."""


def operation_report(
    summaries: Sequence[Summary], scenarios: Sequence[Sequence[Scenario]]
) -> OperationReport:
    """Return the cells; `scenarios` are those of each summary's rows, in their order."""
    cells = [
        _cell(summary, row, scenario)
        for summary, known in zip(summaries, scenarios, strict=True)
        for row, scenario in zip(summary.experiments, known, strict=True)
    ]
    notices = (text for one in summaries for text in (*one.notices, *one.noise))
    return OperationReport(
        baseline=summaries[0].baseline,
        cells=tuple(cells),
        notices=tuple(dict.fromkeys(notices)),
    )


def _cell(summary: Summary, row: ExperimentSummary, scenario: Scenario) -> OperationCell:
    engine, is_base = scenario.engine, row.stack == summary.baseline
    options, metrics = engine.options, {one.name: one.value for one in row.metrics}
    speed = row.tokens_per_second
    return OperationCell(
        scenario=summary.scenario,
        benchmark=str(options.get("benchmark", "")),
        size=str(options.get("size", "")),
        compute_type=str(options.get("compute_type", "")),
        dtype=scenario.model.dtype,
        device=scenario.resources.device,
        executor=row.stack,
        experiment_id=row.experiment_id,
        status=row.status,
        reasons=row.reasons,
        runs=row.runs,
        calls_per_second=speed,
        seconds_per_call=speed and speed.mapped(lambda calls: 1 / calls),
        ratio=None if is_base else row.ratio,
        verdict="baseline" if is_base else row.verdict,
        verdict_reason="" if is_base else row.verdict_reason,
        flops_per_second=metrics.get("flops_per_second"),
        bytes_per_second=metrics.get("bytes_per_second"),
        fraction_of_roofline=metrics.get("fraction_of_roofline"),
        peak_bytes=metrics.get("call_peak_bytes"),
        check=_check(row.evidence.get(engine.use)),
    )


def _check(evidence: JsonValue) -> GradientCheck | None:
    found = evidence.get("check") if isinstance(evidence, Mapping) else None
    return GradientCheck.model_validate(found) if found else None
