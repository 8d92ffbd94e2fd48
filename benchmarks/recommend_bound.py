"""Regret of two reference rules on the generated tables of `recommend`.

Both are Bayes': they know how large noise and drift are and on what range a layout's share lies,
see the same runs as `accel-bench recommend`, and take what has the smallest expected regret. They
are no bound: of a stack's own speed, and the second of what stacks share, they take any value to be
as likely as any other, and tables are not made so. A rule that knows how they are may do better.

A stack's seconds of a token at a batch layout are, as logarithms, those of the stack, a share of
the layout that is uniform on `LAYOUT_SHARE`, the drift of the runs that ran together, and noise.
In generated tables each stack has shares of its own: what all stacks have in common at a layout
that ran alone is then drift, and the first rule takes it off. In practice a larger batch may be
faster for all of them. The second rule leaves that open: it takes nothing off that all share.
Start-up is taken as known.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import fmean
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.entry import Entry, Request
from benchmarks.recommend import (
    DRIFT_OF_NOISE,
    LAYOUT_SHARE,
    NOISES,
    QUICK_TABLES,
    TABLES,
    TrueTable,
    Truth,
    draw_slowdowns,
    growing,
    make_table,
    together,
)

Array = npt.NDArray[np.float64]

DRAWS = 1000
"""Drifts that are drawn for each table, each with its weight and its true speeds."""

PROPOSED = 0.08
"""Standard deviation of what a layout's stacks are proposed to share, around what they show."""

GRID = 161
"""Values of a stack's own speed over which is integrated."""

SHARES = np.linspace(math.log(LAYOUT_SHARE[0]), math.log(LAYOUT_SHARE[1]), 201)
"""Logarithms of a layout's share over which is integrated."""

DENSITY = np.exp(SHARES) / np.exp(SHARES).sum()
"""Chance of each."""


class Observed(NamedTuple):
    """A row that ran: the mean of the logarithms of its seconds of a token."""

    row: Truth
    log_seconds: float
    group: int
    """Which drift it shares: that of all rows, or of its layout."""


def measure_bound(asked: Request) -> Iterator[Entry]:
    """Yield the mean regret of both rules at the highest level of noise, as it grows."""
    many = TABLES if asked.counts.rounds > 1 else QUICK_TABLES
    for name, may_share in (("own-shares", False), ("shared", True)):
        regret_at = partial(regret_of_rule, noise=NOISES[-1], may_share=may_share)
        for entry in growing(f"bound-{name}", regret_at, many, asked, goal=None):
            mean = fmean(entry.samples["regret"])
            yield entry.model_copy(update={"value": mean, "unit": "regret, mean"})


def regret_of_rule(seed: int, noise: float, may_share: bool = False) -> float:
    """Return the regret of a rule's choice on the runs that are drawn from a table.

    `may_share` leaves open whether a layout changes the speed of all stacks alike.
    """
    table = make_table(seed, noise)
    found = observed(table, random.Random(f"runs of {seed}"))
    valid = [(place, one.row) for place, one in enumerate(found) if one.row.kind == "same"]
    seconds, weights = posterior(found, table, np.random.default_rng(seed), may_share)
    jobs = np.stack([_job(row, seconds[:, place], table) for place, row in valid])
    regrets = jobs / jobs.min(axis=0) - 1
    _, chosen = valid[int(np.argmin(regrets @ weights))]
    best = min(row.job_seconds(table.tokens) for _, row in valid)
    return chosen.job_seconds(table.tokens) / best - 1


def observed(table: TrueTable, draw: random.Random) -> list[Observed]:
    """Return what the runs of a table show of each row that ran: all that fit, whatever they do."""
    logs: dict[Truth, list[float]] = {}
    for _, row, slower in draw_slowdowns(table, draw):
        if row.kind != "oom":
            logs.setdefault(row, []).append(math.log(row.seconds_per_token * slower))
    groups = {row: number for number, rows in enumerate(together(table)) for row in rows}
    return [Observed(row, sum(own) / len(own), groups[row]) for row, own in logs.items()]


def posterior(
    found: Sequence[Observed],
    table: TrueTable,
    generator: np.random.Generator,
    may_share: bool,
) -> tuple[Array, Array]:
    """Return draws of the true seconds of a token of each row, and their weights.

    What the rows of a layout share is drawn, and weighted by how likely that makes the runs; given
    it, stacks are independent of one another.
    """
    error = table.noise / math.sqrt(table.rounds)
    groups = np.array([one.group for one in found])
    shape = DRAWS, 1 + int(groups.max())
    drifts = generator.normal(0, DRIFT_OF_NOISE * error, shape)
    shared: Array = drifts
    log_weights: Array = np.zeros(DRAWS)
    if may_share:
        steps = generator.normal(0, 1, shape)
        steps[:, 0] = 0  # what every layout shares is the stacks' own speed
        shared = _seen_to_share(found, shape[1]) + PROPOSED * steps
        log_weights = 0.5 * (steps**2).sum(axis=1)  # any value is as likely as any other before
    logs = np.empty((DRAWS, len(found)))
    for stack in dict.fromkeys(one.row.stack for one in found):
        own = [place for place, one in enumerate(found) if one.row.stack == stack]
        seen = np.array([found[place].log_seconds for place in own])
        logs[:, own], evidence = _stack(seen - shared[:, groups[own]], error, generator)
        log_weights = log_weights + evidence
    # Of what is shared, the drift alone is no property of the stacks.
    logs += (shared - drifts)[:, groups]
    weights = np.exp(log_weights - log_weights.max())
    return np.exp(logs), weights / weights.sum()


def _seen_to_share(found: Sequence[Observed], groups: int) -> Array:
    """Return by how much the stacks of each group differ from their own means, on average."""
    usual = {
        stack: np.mean([one.log_seconds for one in found if one.row.stack == stack])
        for stack in {one.row.stack for one in found}
    }
    return np.array(
        [
            np.mean([one.log_seconds - usual[one.row.stack] for one in found if one.group == group])
            for group in range(groups)
        ]
    )


def _stack(left: Array, error: float, generator: np.random.Generator) -> tuple[Array, Array]:
    """Return true logarithms of one stack at its layouts for each drift, and how likely that is.

    `left` are the observed ones without the drift, of shape (draws, layouts). Of the stack's own
    speed nothing is known before.
    """
    spread = SHARES[-1] - SHARES[0] + 6 * error
    offsets = np.linspace(-spread, spread, GRID)
    own = left.mean(axis=1, keepdims=True) - SHARES.mean() + offsets  # (draws, grid)
    shares = left[:, :, None] - own[:, None, :]  # (draws, layouts, grid)
    likely = _likelihood(shares, error).prod(axis=1)
    evidence = np.log(np.maximum(likely.sum(axis=1), 1e-300))
    chances = likely.cumsum(axis=1) / np.maximum(likely.sum(axis=1, keepdims=True), 1e-300)
    picked = (chances < generator.random((len(left), 1))).sum(axis=1).clip(max=GRID - 1)
    rows = np.arange(len(left))
    return own[rows, picked][:, None] + _share(shares[rows, :, picked], error, generator), evidence


def _likelihood(share: Array, error: float) -> Array:
    """Return how likely a layout's share looks so, with noise."""
    ends = np.linspace(SHARES[0] - 8 * error, SHARES[-1] + 8 * error, 801)
    deviations = (ends[:, None] - SHARES) / error
    smooth = np.exp(-0.5 * deviations**2) @ DENSITY
    found: Array = np.interp(share, ends, smooth, left=0.0, right=0.0)
    return found


def _share(seen: Array, error: float, generator: np.random.Generator) -> Array:
    """Return a layout's share as it may truly be, where it looks so."""
    flat = seen.reshape(-1, 1)
    log_chances = np.log(DENSITY) - 0.5 * ((flat - SHARES) / error) ** 2
    chances = np.exp(log_chances - log_chances.max(axis=1, keepdims=True)).cumsum(axis=1)
    picked = (chances < generator.random((len(flat), 1)) * chances[:, -1:]).sum(axis=1)
    found: Array = SHARES[picked.clip(max=len(SHARES) - 1)].reshape(seen.shape)
    return found


def _job(row: Truth, seconds: Array, table: TrueTable) -> Array:
    if table.tokens is None:
        return seconds
    return row.start_seconds + table.tokens * seconds
