"""Models of the catalog that a device can train, with the changes they need."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain

from accel_bench.analysis.wording import size
from accel_bench.catalog.hardware import NamedHardware
from accel_bench.catalog.models import ModelCard, read_card
from accel_bench.errors import AccelBenchError
from accel_bench_advise.estimates.estimator import Estimator
from accel_bench_advise.recommendation.schema import FittingModel

LEAST_BYTES = 2
"""Bytes per weight at 16 bits, the smallest dtype that is tried without a plugin."""


def fitting_models(
    names: Sequence[str],
    device: NamedHardware,
    estimators: Sequence[Estimator],
) -> tuple[FittingModel, ...]:
    """Return models that fit a device, the largest first, then models that do not fit.

    One simulation runs concurrently for each estimator.
    """
    # The largest take longest: they begin first.
    cards = sorted(((name, read_card(name)) for name in names), key=lambda one: -one[1].parameters)

    def share(place: int) -> list[FittingModel]:
        mine = replace(estimators[place], chosen=device)
        return [_fitting(name, card, mine) for name, card in cards[place :: len(estimators)]]

    with ThreadPoolExecutor(len(estimators)) as pool:
        found = list(chain(*pool.map(share, range(len(estimators)))))
    return tuple(sorted(found, key=lambda one: (one.fit != "holds", -one.parameters, one.model)))


def _fitting(name: str, card: ModelCard, estimator: Estimator) -> FittingModel:
    blank = FittingModel(model=name, parameters=card.parameters, fit=None)
    weights = card.parameters * LEAST_BYTES
    if weights > (estimator.target.memory_bytes or 0):
        why = f"its weights alone take {size(weights)} in 16 bits"
        return blank.model_copy(update={"fit": "does not hold", "why": why})
    overrides = (*estimator.request.overrides, ("model.id", name))
    request = replace(estimator.request, overrides=overrides)
    try:
        found = replace(estimator, request=request).baseline()
    except AccelBenchError as error:
        return blank.model_copy(update={"why": str(error)})
    one = found.estimate
    return blank.model_copy(
        update={
            "fit": one.memory.fit if one.memory else None,
            "settings": found.settings,
            "needed_bytes": one.memory.needed_bytes if one.memory else None,
            "tokens_per_second": one.speed.tokens_per_second if one.speed else None,
            "usd_per_million_tokens": one.cost.usd_per_million_tokens if one.cost else None,
            "why": one.problem or ("" if one.memory and one.memory.fit == "holds" else one.answer),
        }
    )
