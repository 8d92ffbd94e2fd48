"""Recommendations for all models of a family, from stored runs alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from accel_bench.analysis.schema import Document
from accel_bench.analysis.wording import count, grouped_by_reason, join_names
from accel_bench.catalog.models import cards_of_family
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench_advise.recommendation.candidate_rows import candidate_row, kept_settings
from accel_bench_advise.recommendation.candidates import Stored
from accel_bench_advise.recommendation.ranking import Ranked, job_time
from accel_bench_advise.recommendation.recommender import Recommender, check_request
from accel_bench_advise.recommendation.schema import (
    CandidateRow,
    Certainty,
    LeftOut,
    Mode,
    RecommendRequest,
)

WORK: dict[Mode, str] = {"train": "training", "inference": "inference"}
"""Description of the modes `train` and `inference`."""

SPELT_OUT = 3
"""Maximum number of recommendations in the sentence of the answer; the table has all."""


class FamilyRow(Frozen):
    """Recommendation for one model on one device and mode."""

    model: str
    mode: Mode
    device: str
    certainty: Certainty
    """`measured`, `inconclusive` if it is not surely better than the runner-up, or `not tested`."""

    fastest: bool = False
    """True if no other device with stored runs is faster for the model and mode."""

    recommended: CandidateRow | None = None
    """Recommended stack; null if no stored stack may be recommended."""

    runner_up: str = ""
    settings: dict[str, JsonValue]
    """Settings that the recommendation leaves unchanged."""

    why: str = ""
    """Reason why nothing is recommended; empty otherwise."""


class FamilyRecommendation(Document):
    """The JSON document of `accel-bench recommend --family FAMILY`."""

    family: str
    gpu: str | None
    answer: str
    rows: tuple[FamilyRow, ...] = ()
    """Recommendations by model, the largest first, by mode, and by device, the fastest first."""

    not_stored: tuple[str, ...] = ()
    """Models of the family without stored runs, the largest first."""

    left_out: tuple[LeftOut, ...] = ()
    """Stored rows that are no evidence for this request."""


def recommend_family(
    request: RecommendRequest,
    modes: Sequence[Mode],
    known: Collection[str],
    stored_runs: Callable[[RecommendRequest], Stored],
) -> FamilyRecommendation:
    """Return recommendations for the models of a family that have stored runs.

    `request.model` names the family; each of its models is asked for in each mode of `modes`.
    `known` are models with stored runs, and `stored_runs` reads the runs that a request selects.
    Raises AccelBenchError for an invalid request.
    """
    check_request(request)
    family = request.model
    cards = cards_of_family(family)
    models = sorted(cards, key=lambda name: (-cards[name].parameters, name))
    rows: list[FamilyRow] = []
    left_out: list[LeftOut] = []
    for model in filter(known.__contains__, models):
        for mode in modes:
            asked = request.model_copy(update={"model": model, "mode": mode})
            ranks, others = Recommender(asked, stored_runs(asked), (), None).ranked()
            left_out += [
                LeftOut(rows=f"{model}: {other.rows}", reason=other.reason) for other in others
            ]
            rows += _rows(asked, ranks)
    missing = tuple(name for name in models if name not in known)
    return FamilyRecommendation(
        family=family,
        gpu=request.gpu,
        answer=_answer(family, request.gpu, rows, (len(models) - len(missing), len(models))),
        rows=tuple(rows),
        not_stored=missing,
        left_out=tuple(left_out),
    )


def _rows(request: RecommendRequest, ranks: Sequence[Ranked]) -> Iterator[FamilyRow]:
    """Yield a row for each device's ranking, the fastest device first.

    Devices without a recommendation come last.
    """

    def seconds(ranked: Ranked) -> float:
        return job_time(ranked.best, request.tokens).median if ranked.best else float("inf")

    for place, ranked in enumerate(sorted(ranks, key=seconds)):
        best, other = ranked.best, ranked.runner_up
        refused = grouped_by_reason(
            [(candidate.name, candidate.obstacle) for candidate in ranked.refused]
        )
        yield FamilyRow(
            model=request.model,
            mode=request.mode,
            device=ranked.device.label,
            certainty=ranked.certainty,
            fastest=place == 0 and best is not None,
            recommended=candidate_row(best, request.tokens) if best else None,
            runner_up=other.name if other else "",
            settings=kept_settings(best) if best else {},
            why="" if best else join_names(refused),
        )


def _answer(
    family: str, gpu: str | None, rows: Sequence[FamilyRow], models: tuple[int, int]
) -> str:
    """Return a sentence: how many models have stored runs, and the first recommendations.

    `models` holds the number of models with stored runs, and the number of all models.
    """
    stored, every = models
    where = f" on {gpu}" if gpu else ""
    recommended = [row for row in rows if row.recommended and row.fastest]
    if not recommended:
        return f"Not tested: nothing that is stored of {family} models{where} answers this."
    clauses = [_clause(row) for row in recommended[:SPELT_OUT]]
    more = len(recommended) - SPELT_OUT
    clauses += [f"{count(more, 'more answer')} in the table"] if more > 0 else []
    have = f"{stored} of {count(every, 'model')} of the family {family}"
    return f"Runs are stored of {have}{where}: {'; '.join(clauses)}."


def _clause(row: FamilyRow) -> str:
    assert row.recommended is not None
    sure = "" if row.certainty == "measured" else f" ({row.certainty})"
    used = row.recommended.stack
    return f"for {WORK[row.mode]} with {row.model} use {used} on {row.device}{sure}"
