"""The document of `judge`: each candidate's verdict, with the rules that it broke."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from accel_bench.analysis.schema import Document, ExperimentSummary, Summary
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.statistics.verdict import Comparison
from accel_bench.result import Status
from accel_bench_judge.judgements import NAME as JUDGEMENTS
from accel_bench_judge.scenario import REFERENCE_STACK

FASTER, REFUSED, NOT_FASTER, OPEN = 0, 1, 4, 5
"""Exit codes; the largest reason to look counts: refused before slower before open."""

CODES: Mapping[str, int] = {"better": FASTER, "worse": NOT_FASTER, "same": NOT_FASTER}
"""Exit code of each verdict on the speed; any other is open."""


class JudgedStep(Comparison):
    """A file's step, and its speed beside the reference's."""

    step: str
    """Name of the stack: `reference`, or the candidate's file without its folder."""

    status: Status
    """Status of the runs; `invalid` if the step is refused."""

    reasons: tuple[str, ...] = ()
    """Reasons why the step is refused, or why its runs failed."""

    runs: int
    """Number of completed runs, each in fresh processes with fresh weights and batches."""

    failed_runs: int = 0
    """Number of runs that failed, were refused or did not end."""

    is_reference: bool = False
    """True for the reference itself."""

    steps_per_second: Interval | None = None
    """Steps per second, with a 95 % interval over runs."""

    update: str = "not tested"
    """`bitwise equal` or `equivalent` to the reference; a step with another update is refused."""

    distance: float | None = None
    """Largest relative distance of a step's update from the reference's in float64."""

    allowed: float | None = None
    """Distance that was allowed there: what the reference's own dtype costs, a few times."""

    flops: float | None = None
    """FLOPs that torch counts in a step."""

    flops_of_reference: float | None = None
    """FLOPs that torch counts in the reference's step."""

    confined: bool | None = None
    """True if the kernel confined the process of the step in all that docs/judge.md lists."""

    unconfined: tuple[str, ...] = ()
    """Abilities left to the process for want of a newer kernel, such as `use sockets`."""

    @property
    def refused(self) -> bool:
        """True if its runs are no measurement of the reference's work."""
        return bool(self.failed_runs) or not self.status.completed

    @property
    def exit_code(self) -> int:
        """Exit code that this candidate asks for."""
        return REFUSED if self.refused else CODES.get(self.verdict, OPEN)


class JudgeReport(Document):
    """The document of `accel-bench judge`."""

    reference: str
    """Path of the reference."""

    steps: tuple[JudgedStep, ...]
    """The reference, and the candidates in their order."""

    exit_code: int = Field(ge=0)
    """0 all faster, 1 refused or failed, 4 not faster, 5 open."""

    notices: tuple[str, ...] = ()
    """Notices of planning, and of load that disturbed runs."""


def judge_report(summary: Summary, reference: str) -> JudgeReport:
    """Return the report of a session."""
    known = {one["stack"]: one for one in summary.sections.get(JUDGEMENTS, ())}
    steps = tuple(_judged(summary, row, known.get(row.stack, {})) for row in summary.experiments)
    notices = tuple(dict.fromkeys((*summary.notices, *summary.noise)))
    return JudgeReport(
        reference=reference, steps=steps, exit_code=exit_code_of(steps), notices=notices
    )


def exit_code_of(steps: Sequence[JudgedStep]) -> int:
    """Return the exit code: refused or failed counts before not faster, and that before open."""
    codes = {one.exit_code
             for one in steps if one.refused or not one.is_reference}  # fmt: skip
    return next((one for one in (REFUSED, NOT_FASTER, OPEN) if one in codes), FASTER)


def _judged(summary: Summary, row: ExperimentSummary, judgement: Mapping[str, Any]) -> JudgedStep:
    """Return a row of the report; `judgement` is the step's in the section of judgements."""
    update = judgement.get("update", "not tested")
    is_reference = row.stack == summary.baseline == REFERENCE_STACK
    return JudgedStep(
        step=row.stack,
        status=row.status,
        reasons=row.reasons,
        runs=row.runs,
        failed_runs=sum(row.failed_rounds.values()),
        is_reference=is_reference,
        steps_per_second=row.tokens_per_second,
        **{**dict(Comparison() if is_reference else row.speed), "training": update},
        update=update,
        distance=judgement.get("distance"),
        allowed=judgement.get("allowed"),
        flops=judgement.get("flops"),
        flops_of_reference=judgement.get("flops_of_reference"),
        confined=not judgement["unconfined"] if "unconfined" in judgement else None,
        unconfined=tuple(judgement.get("unconfined", ())),
    )
