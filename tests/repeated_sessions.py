"""Sessions of one scenario that are put into bundles, and repeated."""

from __future__ import annotations

from typing import Any

from analysis_factory import STEADY, WEEK, make_experiment, make_rounds, scaled
from store.store_factory import MACHINE

from accel_bench.result import Result
from accel_bench.store.sessions import SessionRecord

SCENARIO = {
    "name": "peft",
    "data": {"sequence_length": 110},
    "stacks": {"lora": {"use": []}, "fast": {"use": []}, "slow": {"use": []}},
    "baseline": "lora",
}


def make_runs(session: str = "monday", fast: float = 0.8, noise: float = 1.0) -> list[Result]:
    """Five rounds of a baseline, of one that is faster, and of one that is slower."""
    base = [1 + noise * (value / STEADY[0] - 1) for value in STEADY]
    rows = [
        *make_rounds(make_experiment("lora"), [0.1 * one for one in base], session=session),
        *make_rounds(make_experiment("fast"), scaled(fast), session=session),
        *make_rounds(make_experiment("slow"), scaled(1.5), session=session),
    ]
    return [row.model_copy(update={"machine": MACHINE}) for row in rows]


def make_record(session: str = "monday", **document: Any) -> SessionRecord:
    """A session of that scenario."""
    day = 5 + WEEK.index(session)
    return SessionRecord(
        id=session,
        started_at=f"2026-01-0{day}T08:00:00Z",
        scenario="peft",
        command=("accel-bench", "run", "peft.yaml"),
        document={"scenario": SCENARIO, "written": SCENARIO, **document},
    )
