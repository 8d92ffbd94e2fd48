"""The learning rate with the lowest loss at the end, for each model and hardware.

Rates are compared within experiments that differ in the rate and in seeds alone: another batch size
has seen other tokens after as many steps, and a loss says nothing without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from accel_bench.analysis.aggregate import ExperimentRuns, shared_steps
from accel_bench.analysis.statistics.estimators import t_bound
from accel_bench.analysis.statistics.seeds import SEED_KEYS, loss_at_end
from accel_bench.analysis.tables.experiment_keys import Keys, differing
from accel_bench.documents.base import JsonValue
from accel_bench.documents.canonical import canonical_json
from accel_bench_report.tables.chosen_keys import rest_of
from accel_bench_report.tables.group_schema import BestRate, RateLoss
from accel_bench_report.tables.pivot import cell_word

RATE = "train.learning_rate"

Rows = Sequence[tuple[Keys, ExperimentRuns]]


def best_rates(rows: Rows) -> tuple[BestRate, ...]:
    """Return the best rate of each set of experiments that differ in the rate and seeds alone."""
    measured = [(keys, row) for keys, row in rows if not row.imported and RATE in keys]
    rest = rest_of([row for _, row in measured], [keys for keys, _ in measured], RATE)
    others = [key for key in rest if key not in SEED_KEYS]
    groups: dict[str, list[tuple[Keys, ExperimentRuns]]] = {}
    for keys, row in measured:
        groups.setdefault(canonical_json([keys.get(name) for name in others]), []).append(
            (keys, row)
        )
    sets = [group for group in groups.values() if _rates_of(group)]
    shown = [
        key
        for key in differing([group[0][0] for group in sets])
        if key in others and key not in ("model.id", "device")
    ]
    found = [best for group in sets if (best := _best(group, shown))]
    return tuple(sorted(found, key=lambda one: (one.model, one.device or "", str(one.others))))


def _rates_of(group: Rows) -> bool:
    return len({canonical_json(keys[RATE]) for keys, _ in group}) > 1


def _best(group: Rows, shown: Sequence[str]) -> BestRate | None:
    """Return the best rate of one set; None where no rate led to a loss."""
    steps = shared_steps([row for _, row in group if row.usable])
    by_rate: dict[float, list[ExperimentRuns]] = {}
    for keys, row in sorted(group, key=lambda one: _number(one[0][RATE])):
        by_rate.setdefault(_number(keys[RATE]), []).append(row)
    rates = [_rate_loss(rate, rows, steps) for rate, rows in by_rate.items()]
    trained = [one for one in rates if one.loss is not None]
    if not trained:
        return None
    best = min(trained, key=lambda one: one.loss or 0.0)
    keys = group[0][0]
    device = keys.get("device")
    return BestRate(
        model=str(keys.get("model.id")),
        device=None if device is None else str(device),
        others={key: keys.get(key) for key in shown},
        best=best,
        rates=tuple(rates),
        steps=steps,
        separated=_is_separated(best, trained),
        at_end=best.learning_rate in (rates[0].learning_rate, rates[-1].learning_rate),
    )


def _rate_loss(rate: float, rows: Sequence[ExperimentRuns], steps: int) -> RateLoss:
    """Return the loss of a rate, the mean over seeds; a seed that failed leaves it without one."""
    losses = [loss_at_end(row, steps) if row.usable else None for row in rows]
    known = [loss for loss in losses if loss is not None]
    if len(known) < len(losses):
        words = dict.fromkeys(cell_word(row) for row in rows if not row.usable)
        word = ", ".join(filter(None, words)) or "no finite loss"
        return RateLoss(learning_rate=rate, loss=None, seeds=len(known), word=word)
    mean = fmean(known)
    half = t_bound(known, 0.975) if len(known) > 1 else None
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return RateLoss(learning_rate=rate, loss=mean, low=low, high=high, seeds=len(known))


def _is_separated(best: RateLoss, trained: Sequence[RateLoss]) -> bool:
    others = [one for one in trained if one is not best]
    return bool(others) and all(
        best.high is not None and one.low is not None and best.high < one.low for one in others
    )


def _number(value: JsonValue) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
