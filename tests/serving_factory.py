"""Runs that answer requests, made up for tests: chosen latencies, and what their engine says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis_factory import make_experiment, make_rank, make_result

from accel_bench.result import Metric, RankResult, Result
from accel_bench.scenario.uses import Use
from accel_bench.worker.generated import kept_answers

TEXT = tuple(range(10))
NOISE = (1.0, 1.002, 0.998, 1.001, 0.999)
"""Half a percent of noise over five rounds."""

ENGINE = "generate"


def serving(
    stack: str,
    latency_ms: float | None,
    *,
    seconds: float = 0.1,
    rate: float | None = 4.0,
    saturated: bool = False,
    p99_ms: float | None = None,
    answer: Sequence[int] = TEXT,
    sweep: dict[str, Any] | None = None,
    rounds: int = 5,
    inference: dict[str, Any] | None = None,
    declares: bool = False,
    answered_by: str = ENGINE,
    **changes: Any,
) -> list[Result]:
    """Rounds of a stack whose steps take so long, and whose median request so many ms.

    None where that was not measured; `declares` its settings of `inference` as its own;
    `answered_by` is the plugin whose engine answered.
    """
    asked = {"prompt_tokens": 100, "new_tokens": 10, **({"rate": rate} if rate else {})}
    work = {"mode": "inference", "data": {}, "inference": {**asked, **(inference or {})}}
    work["engine"] = {"use": ENGINE}
    uses = () if stack == "base" else (Use(use=stack),)
    settings = {f"inference.{key}": value for key, value in asked.items()} if declares else {}
    experiment = make_experiment(stack, uses, settings, sweep=sweep, scenario=work)
    found = []
    for number, noise in enumerate((NOISE * (rounds // len(NOISE) + 1))[:rounds]):
        rank = make_rank(step_seconds=(seconds * noise,) * 2)
        latencies = {}
        if latency_ms is not None:
            p99 = p99_ms or 3 * latency_ms
            latencies = {"request_latency_p50": latency_ms * noise, "request_latency_p99": p99}
        rank = _answering(rank, latencies, answer, saturated, answered_by)
        found.append(make_result(experiment, round=number, ranks=[rank], **changes))
    return found


def _answering(
    rank: RankResult,
    latencies: dict[str, float],
    answer: Sequence[int],
    saturated: bool,
    engine: str,
) -> RankResult:
    metrics = [
        Metric(name=name, value=value, unit="ms", scope="rank", better="lower", plugin=engine)
        for name, value in latencies.items()
    ]
    evidence = {**rank.evidence, engine: {"load": {"saturated": saturated}}}
    return rank.model_copy(
        update={
            "update": None,
            "answers": kept_answers([answer]),
            "metrics": (*rank.metrics, *metrics),
            "evidence": evidence,
        }
    )
