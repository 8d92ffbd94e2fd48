"""JSON document of `accel-bench judge`, with each candidate's verdict and its reasons."""

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
"""Exit codes. Of several candidates, the gravest counts: refused, then not faster, then
undecided."""

CODES: Mapping[str, int] = {"better": FASTER, "worse": NOT_FASTER, "same": NOT_FASTER}
"""Exit code of each verdict on the speed; any other verdict is undecided."""


class JudgedStep(Comparison):
    """Training step of a file, and its speed compared with the reference's."""

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
    """True for the reference's own step."""

    steps_per_second: Interval | None = None
    """Steps per second, with a 95 % interval over runs."""

    update: str = "not tested"
    """`bitwise equal` or `equivalent` to the reference; a step with another update is refused."""

    distance: float | None = None
    """Largest relative distance of a step's weight update from the reference's in float64."""

    allowed: float | None = None
    """Distance allowed in that step: a few times the rounding error of the reference's dtype."""

    flops: float | None = None
    """FLOPs that torch counts in a step."""

    flops_of_reference: float | None = None
    """FLOPs that torch counts in the reference's step."""

    confined: bool | None = None
    """True if the kernel confined the step's process in all respects that docs/judge.md lists."""

    unconfined: tuple[str, ...] = ()
    """Actions that an older kernel could not forbid the process, such as `use sockets`."""

    @property
    def refused(self) -> bool:
        """True if a run of the step failed, or if its training differs from the reference's."""
        return bool(self.failed_runs) or not self.status.completed

    @property
    def exit_code(self) -> int:
        """Exit code for this step alone."""
        return REFUSED if self.refused else CODES.get(self.verdict, OPEN)


class JudgeReport(Document):
    """The JSON document of `accel-bench judge`."""

    reference: str
    """Path of the reference's file."""

    steps: tuple[JudgedStep, ...]
    """Steps of the reference and of the candidates, in their order."""

    exit_code: int = Field(ge=0)
    """Exit code: 0 all faster, 1 refused or failed, 4 not faster, 5 undecided."""

    notices: tuple[str, ...] = ()
    """Notices of planning, and of other load that disturbed runs."""


def judge_report(summary: Summary, reference: str) -> JudgeReport:
    """Return the report on a session's judged steps. `reference` is the path of the reference's
    file."""
    known = {entry["stack"]: entry for entry in summary.sections.get(JUDGEMENTS, ())}
    steps = tuple(_judged(summary, row, known.get(row.stack, {})) for row in summary.experiments)
    notices = tuple(dict.fromkeys((*summary.notices, *summary.noise)))
    return JudgeReport(
        reference=reference, steps=steps, exit_code=exit_code_of(steps), notices=notices
    )


def exit_code_of(steps: Sequence[JudgedStep]) -> int:
    """Return the gravest exit code of judged steps: refused or failed, then not faster, then
    undecided, else 0."""
    codes = {step.exit_code
             for step in steps if step.refused or not step.is_reference}  # fmt: skip
    return next((code for code in (REFUSED, NOT_FASTER, OPEN) if code in codes), FASTER)


def _judged(summary: Summary, row: ExperimentSummary, judgement: Mapping[str, Any]) -> JudgedStep:
    """Return the report's row on a stack, given the summary `row` of its runs.

    `judgement` is the stack's entry in the section `judgements`, empty without one.
    """
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
