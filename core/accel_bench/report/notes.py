"""What stands under a table: what each stack is, and each reason once with its rows."""

from __future__ import annotations

from accel_bench.analysis.schema import ExperimentSummary, SeedEquivalence, Summary
from accel_bench.analysis.wording import flops, label, listing
from accel_bench.report.cells import plain

PHASE_TOLERANCE = 0.05
"""Relative distance from the window's step within which a split step stands for it."""


def stack_notes(summary: Summary) -> dict[str, str]:
    """What each stack changes, by its name."""
    return {plain(row.stack): plain(row.differs) for row in summary.experiments}


def reason_notes(summary: Summary) -> list[str]:
    """`names: reason`; a reason that holds for many rows is said once. Load comes last."""
    rows_of: dict[str, list[str]] = {}
    for row in summary.experiments:
        for reason in _reasons(row, summary.baseline):
            rows_of.setdefault(plain(reason), []).append(plain(label(row.stack, row.sweep)))
    reasons = [f"{listing(names)}: {reason}" for reason, names in rows_of.items()]
    return [*reasons, *(f"load: {plain(note)}" for note in summary.noise)]


def use_notes(summary: Summary) -> list[str]:
    """`name: a step is data 1 %, ...; 1.2 TFLOP/s per device, MFU 38 % (causal)`, where known."""
    notes = []
    for row in summary.experiments:
        parts = [part for part in (_phases(row), _rate(row), _start(row)) if part]
        if parts:
            notes.append(f"{plain(label(row.stack, row.sweep))}: {'; '.join(parts)}")
    return notes


def _phases(row: ExperimentSummary) -> str:
    """Shares of a step by phase."""
    if row.phases is None:
        return ""
    names = ("data", "forward", "backward", "optimizer")
    seconds = {name: getattr(row.phases, name) for name in names}
    whole = row.phases.step_seconds
    shares = [f"{name} {spent / whole:.0%}" for name, spent in seconds.items() if spent is not None]
    to_window = row.phases.to_window
    flagged = to_window is not None and abs(to_window - 1) > PHASE_TOLERANCE
    of_which = f" (of a step {to_window:.2f} times the window's)" if flagged else ""
    return f"a step is {', '.join(shares)}{of_which}" if whole else ""


def _rate(row: ExperimentSummary) -> str:
    """Model FLOP/s, and the share of the peak where that is known."""
    if row.utilization is None:
        return ""
    per_second = f"{flops(row.utilization.model_flops_per_second.causal)}/s per device (causal)"
    mfu = row.utilization.mfu
    return f"{per_second}, MFU {mfu.causal:.1%}" if mfu else per_second


def _start(row: ExperimentSummary) -> str:
    """What is paid once."""
    if row.start_up is None or row.start_up.first_step_seconds is None:
        return ""
    compiling = row.start_up.compile_seconds
    also = f", {compiling:.1f} s in the compiler" if compiling else ""
    return f"first step {row.start_up.first_step_seconds:.3g} s{also}"


def seed_notes(summary: Summary) -> list[str]:
    """`name: loss at the end over 5 seeds equivalent: +0.01% (90 % interval ...), 0.1% allowed`."""
    return [_seeds(row) for row in summary.seeds]


def _seeds(row: SeedEquivalence) -> str:
    """One stack over its seeds."""
    name = plain(label(row.stack, row.sweep))
    said = f"{name}: loss at the end over {row.seeds} seeds {row.verdict}"
    if row.lost:
        said += f" ({row.lost} more on which it did not train)"
    if row.difference is None or row.low is None or row.high is None or row.tolerance is None:
        return said
    interval = f"90 % interval {row.low:+.2%} to {row.high:+.2%}"
    return f"{said}: {row.difference:+.2%} ({interval}), {row.tolerance:.2g} allowed"


def memory_note(summary: Summary) -> str:
    """How the peak memory was measured; empty when nothing says so."""
    rows = [row for row in summary.experiments if row.peak_memory_kind]
    kinds = dict.fromkeys(plain(str(row.peak_memory_kind)) for row in rows)
    return f"peak memory of the device that needed most: {', '.join(kinds)}" if kinds else ""


def _reasons(row: ExperimentSummary, baseline: str) -> list[str]:
    """Why a row is not simply ok, and why a verdict is missing."""
    reasons = list(row.reasons)
    if row.stack == baseline or not row.status.completed:
        return reasons
    if row.verdict_reason:
        reasons.append(f"speed not tested: {row.verdict_reason}")
    if row.loss_reason and row.ratio:
        reasons.append(f"loss {row.loss_verdict}: {row.loss_reason}")
    return reasons
