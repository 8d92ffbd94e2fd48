"""One `accel-bench recommend --family` from its options to its exit code."""

from __future__ import annotations

from contextlib import ExitStack

from accel_bench.cli.output import print_report
from accel_bench.errors import NoResultsError, ScenarioError
from accel_bench.runner.unfinished import open_results
from accel_bench.store.queries import model_ids
from accel_bench_advise.recommend import RecommendOptions
from accel_bench_advise.recommend_request import NOTHING, limits_of, stored_runs
from accel_bench_advise.recommendation.family import WORK, Mode, recommend_family
from accel_bench_advise.recommendation.family_view import family_report
from accel_bench_advise.recommendation.schema import RecommendRequest

OF_ONE_MODEL = ("model", "budget", "deadline", "lengths", "scenario", "json")
"""Options that ask about one model."""


def recommend_models_of(family: str, options: RecommendOptions) -> int:
    """Print what is recommended for the models of a family; return the exit code."""
    if given := [name for name in OF_ONE_MODEL if getattr(options, name)]:
        raise ScenarioError(
            f"--family answers for all its models from stored runs; leave --{given[0]} out, or "
            "name one model (--model NAME)"
        )
    modes: list[Mode] = [mode for mode in WORK if options.mode in (None, mode)]
    if not modes:
        raise ScenarioError(f"--mode {options.mode}: it is train or inference")
    request = RecommendRequest(
        model=family,
        gpu=options.gpu,
        tokens=options.tokens,
        at_most=limits_of(options),
        where=tuple(options.where or ()),
    )
    document = recommend_family(
        family,
        request,
        modes,
        _known(options.results),
        lambda asked: stored_runs(options.results, asked),
    )
    print_report(family_report(document), options.output)
    return 0 if any(row.recommended for row in document.rows) else NOTHING


def _known(place: str) -> set[str]:
    """Return the models of stored runs; none where there are no results. Raises StoreError."""
    with ExitStack() as stack:
        try:
            return model_ids(stack.enter_context(open_results(place)))
        except NoResultsError:
            return set()
