"""JSON documents of `op list` and `op run`: operations, executors and measured cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accel_bench.analysis.schema import Document, ExperimentSummary, Summary
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.statistics.verdict import Comparison
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.result import Status
from accel_bench.scenario.models import Scenario


class ExecutorSupport(Frozen):
    """Support of a benchmark by an executor on this machine."""

    executor: str
    """Name of the executor."""

    distribution: str
    """Distribution of the executor, with its version."""

    has_kernel: bool
    """True if the executor has a kernel for the operation, even if it cannot run here."""

    runs: bool
    """True if the executor can run the benchmark here."""

    reason: str = ""
    """Reason why the executor cannot run the benchmark here; empty if it can."""


class OperationEntry(Frozen):
    """An installed benchmark, and the executors that support it."""

    benchmark: str
    """Name of the benchmark."""

    description: str = ""
    """Description of the benchmark, in a sentence."""

    operation: str = ""
    """Operation for which executors may have kernels; empty if unnamed."""

    compute_types: tuple[str, ...] = ()
    """Compute types that can be timed here."""

    sizes: tuple[str, ...] = ()
    """Names of the benchmark's sizes; empty if it has only default arguments."""

    distribution: str
    """Distribution of the benchmark, with its version."""

    executors: tuple[ExecutorSupport, ...] = ()
    """Usable installed executors."""

    problem: str = ""
    """Reason why the entry point cannot be used; empty if it can."""


class GradientCheck(Frozen):
    """Distance of outputs and gradients from those of eager in float64, for another batch."""

    largest: float
    """Largest relative distance of all tensors."""

    tolerance: float
    """Tolerance for this dtype."""

    of: str
    """Name of the tensor with the largest distance."""

    tensors: int
    """Number of compared outputs and gradients."""

    size: str = ""
    """Benchmark size that was compared; `tiny` if memory ran out in float64 at the cell's size."""


class OperationCell(Comparison):
    """Measurement of an operation at one size under one executor, with its speed relative to the
    baseline; missing figures are null."""

    scenario: str
    """Name of the scenario under which the runs are stored."""

    benchmark: str
    """Name of the benchmark."""

    size: str
    """Name of the size; empty for the default arguments."""

    compute_type: str
    """`inference`, `forward` or `backward`."""

    dtype: str
    """Dtype of the tensors, unless the size sets one."""

    device: str
    """Device type of the scenario, such as `cpu` or `cuda`."""

    executor: str
    """Name of the executor."""

    experiment_id: str
    """Id of the experiment; empty if it was not run."""

    status: Status
    """Status of the runs; running out of memory is no failure."""

    reasons: tuple[str, ...] = ()
    """Reasons of a status other than `ok`."""

    runs: int
    """Number of completed runs, each in fresh processes."""

    calls_per_second: Interval | None = None
    """Calls per second, with a 95 % interval over runs."""

    seconds_per_call: Interval | None = None
    """Seconds per call, with a 95 % interval."""

    is_baseline: bool = False
    """True if the other executors are compared with it; it has no ratio, and so no verdict."""

    flops_per_second: float | None = None
    """FLOP/s of the operation; null if FLOPs are not meaningful."""

    bytes_per_second: float | None = None
    """Minimum bytes that a call moves, per second."""

    fraction_of_roofline: float | None = None
    """Fraction of the roofline measured on this machine."""

    peak_bytes: float | None = None
    """Peak bytes of a call beyond weights and batch; null on unsupported devices."""

    check: GradientCheck | None = None
    """Comparison with eager in float64; null if no run completed."""


class OperationReport(Document):
    """The JSON document of `accel-bench op run`."""

    baseline: str
    """Executor with which other executors are compared."""

    cells: tuple[OperationCell, ...]
    """Cells in the order of the plan."""

    notices: tuple[str, ...] = ()
    """Notices of planning, and of host load that disturbed runs."""


def operation_report(
    summaries: Sequence[Summary], scenarios: Sequence[Sequence[Scenario]]
) -> OperationReport:
    """Return the document of `op run`; `scenarios` lists, by summary, each row's scenario."""
    cells = [
        _cell(summary, row, scenario)
        for summary, known in zip(summaries, scenarios, strict=True)
        for row, scenario in zip(summary.experiments, known, strict=True)
    ]
    notices = (text for summary in summaries for text in (*summary.notices, *summary.noise))
    return OperationReport(
        baseline=summaries[0].baseline,
        cells=tuple(cells),
        notices=tuple(dict.fromkeys(notices)),
    )


def _cell(summary: Summary, row: ExperimentSummary, scenario: Scenario) -> OperationCell:
    engine, is_base = scenario.engine, row.stack == summary.baseline
    options, metrics = engine.options, {metric.name: metric.value for metric in row.metrics}
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
        is_baseline=is_base,
        **dict(Comparison() if is_base else row.speed),
        flops_per_second=metrics.get("flops_per_second"),
        bytes_per_second=metrics.get("bytes_per_second"),
        fraction_of_roofline=metrics.get("fraction_of_roofline"),
        peak_bytes=metrics.get("call_peak_bytes"),
        check=_check(row.evidence.get(engine.use)),
    )


def _check(evidence: JsonValue) -> GradientCheck | None:
    check = evidence.get("check") if isinstance(evidence, Mapping) else None
    return GradientCheck.model_validate(check) if check else None
