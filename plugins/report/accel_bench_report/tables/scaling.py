"""Scaling of stacks over devices and nodes: speed-up, efficiency, a fitted serial share.

Sources: Amdahl (1967), "Validity of the single processor approach to achieving large scale
computing capabilities"; Gustafson (1988), "Reevaluating Amdahl's law".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal, TypeAlias

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.pairing import shares_rounds
from accel_bench.analysis.statistics.estimators import Interval, geometric_interval, t_bound
from accel_bench.analysis.statistics.verdict import ESTIMATE, UNPAIRED, RoundKey, compare
from accel_bench.analysis.tables.experiment_keys import keys_of
from accel_bench.analysis.wording import percent
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.scenario.uses import TOKENS
from accel_bench_report.tables.keyed import Keyed, group_by
from accel_bench_report.tables.points import PointFigure, against

Law: TypeAlias = Literal["Amdahl", "Gustafson"]

SIZES = frozenset({"resources.devices", "resources.nodes", "resources.devices_by_node"})
"""Swept keys that change the number of devices."""

BATCH = frozenset(
    {"train.micro_batch_size", "train.gradient_accumulation", "train.global_batch_size"}
)
"""Swept batch keys that may change with the number of devices, to keep a batch size."""


LARGEST_GAIN = 0.05
"""Largest negative serial share that counts as noise, when scaling is better than linear."""

ScalingKind: TypeAlias = Literal["strong", "weak", "mixed"]
"""Kind of scaling: fixed global batch (strong), fixed batch per device (weak), or neither."""


class ScalingPoint(Frozen):
    """Measurement at one number of devices."""

    figure: PointFigure
    """Speed, and speed-up over the smallest number of devices."""

    devices: int
    """Number of devices on each node; of the largest node if nodes differ."""

    nodes: int
    """Number of nodes."""

    devices_by_node: tuple[int, ...] | None = None
    """Number of devices on each node in order; null if all nodes are alike."""

    micro_batch_size: int
    """Samples in one forward pass, per device."""

    gradient_accumulation: int
    """Forward passes in one step."""

    global_batch_size: int
    """Samples in one step, global."""

    step_seconds: Interval | None = None
    """Elapsed seconds of one optimizer step: the mean over a run's window."""

    relative_step_seconds: Interval | None = None
    """Seconds of a step divided by the fewest devices': strong scaling halves it with twice the
    devices, weak scaling keeps it at 1."""

    efficiency: Interval | None = None
    """Scaling efficiency: speed-up divided by the factor of devices; 1 is linear."""


class SerialShare(Frozen):
    """Fraction of the time at the fewest devices that more devices do not shorten: an estimate.

    Strong scaling fits Amdahl's law, speed-up = 1 / (s + (1 - s) / n); weak scaling Gustafson's,
    speed-up = n - s (n - 1). n is the number of devices divided by the fewest.
    """

    law: Law

    share: float
    """Serial share s: mean over rounds of least-squares fits; below 0 for superlinear scaling."""

    low: float | None
    """Lower end of the 95 % t interval over rounds; null with one round."""

    high: float | None
    """Upper end of that interval; null with one round."""

    sizes: int
    """Number of fitted sizes; two determine the law without a check."""

    largest_deviation: float
    """Largest relative distance of a measured speed-up from the fitted law."""


class Projection(Frozen):
    """Estimated speed at an unmeasured number of devices."""

    estimated: Literal[True] = True

    world_size: int
    """Number of ranks."""

    speedup: Interval
    """Speed-up over the fewest devices; its interval comes from the serial share alone."""

    efficiency: Interval
    """Scaling efficiency: speed-up divided by the factor of devices."""

    tokens_per_second: Interval
    """Real tokens per second, global."""


class Scaling(Frozen):
    """Scaling of one stack over devices and nodes, other settings being equal."""

    stack: str
    """Name of the stack."""

    sweep: dict[str, JsonValue]
    """Values of the other swept keys."""

    kind: ScalingKind
    """Kind of scaling, by the batch size that is fixed."""

    counts: str = TOKENS
    """Unit of work counted as tokens, in estimates too."""

    points: tuple[ScalingPoint, ...]
    """Measurements, the fewest devices first."""

    serial_share: SerialShare | None = None
    """Fitted serial share; null if nothing can be fitted."""

    serial_share_reason: str = ""
    """Reason for a missing serial share or missing estimates."""

    projections: tuple[Projection, ...] = ()
    """Estimates at unmeasured numbers of devices."""


def scalings(rows: Sequence[ExperimentRuns]) -> tuple[Scaling, ...]:
    """Return the scaling of each stack; an empty tuple if neither devices nor nodes are swept.

    The tuple is also empty for a fixed rate of requests, which more devices do not serve faster.
    """
    swept = any(SIZES & set(row.planned.experiment.sweep) for row in rows)
    if not swept or any(row.rate is not None for row in rows):
        return ()
    # The batch may move with the devices.
    return tuple(map(_scaling, _grouped(rows, SIZES) or _grouped(rows, SIZES | BATCH)))


def project(scaling: Scaling, sizes: Sequence[int]) -> Scaling:
    """Return the scaling with estimates for the numbers of devices `sizes`, if a law was fitted."""
    share = scaling.serial_share
    base = scaling.points[0].figure
    if share is None or base.tokens_per_second is None or not sizes:
        return scaling
    if share.share >= 1:
        reason = "more devices were not faster, so nothing is estimated for still more"
        return scaling.model_copy(update={"serial_share_reason": reason})
    speed = base.tokens_per_second.median
    ends = Interval(median=share.share, low=share.low, high=share.high)
    projections = tuple(
        _projection(share.law, ends, size, size / base.world_size, speed) for size in sizes
    )
    return scaling.model_copy(update={"projections": projections})


def _projection(law: Law, share: Interval, size: int, times: float, speed: float) -> Projection:
    """Return the estimate for `size` ranks, `times` as many as the fewest measured.

    `speed` is the tokens per second of those fewest ranks, and `share` the fitted serial share.
    """
    # A share below 0, which noise or caches bring about, is no promise for more devices.
    speedup = share.mapped(lambda value: _law(law, min(max(value, 0.0), 1.0), times))
    return Projection(
        world_size=size,
        speedup=speedup,
        efficiency=_times(speedup, 1 / times),
        tokens_per_second=_times(speedup, speed),
    )


def _grouped(
    rows: Sequence[ExperimentRuns], left_out: frozenset[str]
) -> list[list[ExperimentRuns]]:
    """Return rows grouped by stack and all swept keys except `left_out`, fewest devices first.

    Groups with a single number of devices are left out.
    """
    swept = {key for row in rows for key in row.planned.experiment.sweep}
    keyed = [Keyed(keys_of(row), row) for row in sorted(rows, key=_size)]
    groups = group_by(keyed, ["stack", *sorted(swept - left_out)]).values()
    alike = [[entry.row for entry in group] for group in groups]
    return [group for group in alike if len(set(map(_size, group))) > 1]


def _scaling(rows: Sequence[ExperimentRuns]) -> Scaling:
    base, kind = rows[0], _kind(rows)
    sweeps = [row.planned.experiment.sweep for row in rows]
    shared = {
        key: value
        for key, value in sweeps[0].items()
        if all(sweep.get(key) == value for sweep in sweeps)
    }
    share, reason = _serial_share(rows, kind)
    return Scaling(
        stack=base.planned.experiment.stack.name,
        sweep=shared,
        kind=kind,
        counts=base.planned.experiment.scenario.counts,
        points=tuple(_point(row, base) for row in rows),
        serial_share=share,
        serial_share_reason=reason,
    )


def _kind(rows: Sequence[ExperimentRuns]) -> ScalingKind:
    """Return the kind of scaling; weak means equal micro-batch sizes and gradient accumulations."""
    sizes = [row.planned.experiment.scenario.train for row in rows]
    if len({train.global_batch_size for train in sizes}) == 1:
        return "strong"
    each = {(train.micro_batch_size, train.gradient_accumulation) for train in sizes}
    return "weak" if len(each) == 1 else "mixed"


def _point(row: ExperimentRuns, base: ExperimentRuns) -> ScalingPoint:
    scenario, figure = row.planned.experiment.scenario, against(row, base)
    here, there = _step_seconds(row), _step_seconds(base)
    unit = Interval(median=1.0, low=None, high=None) if row is base and row.usable else None
    policy = ESTIMATE if figure.paired else UNPAIRED
    relative = compare(here, there, policy).ratio if figure.ratio else unit
    speedup = figure.ratio or unit
    linear = _size(row) / _size(base)
    return ScalingPoint(
        figure=figure,
        devices=scenario.resources.devices,
        nodes=scenario.resources.nodes,
        devices_by_node=scenario.resources.devices_by_node,
        micro_batch_size=scenario.train.micro_batch_size,
        gradient_accumulation=scenario.train.gradient_accumulation,
        global_batch_size=scenario.train.global_batch_size,
        step_seconds=geometric_interval(list(here.values())),
        relative_step_seconds=relative,
        efficiency=speedup and _times(speedup, 1 / linear),
    )


def _serial_share(
    rows: Sequence[ExperimentRuns], kind: ScalingKind
) -> tuple[SerialShare | None, str]:
    """Return the serial share by the law of this kind of scaling, fitted to each round.

    If nothing can be fitted, the share is None, with a reason.
    """
    base, usable = rows[0], [row for row in rows if row.usable]
    sizes = len(set(map(_size, usable)))
    if kind == "mixed":
        return None, "neither the global batch nor that of a device stays, so no law is fitted"
    if not base.usable or sizes < 2:
        return None, "a law needs the smallest point and a larger one"
    law: Law = "Amdahl" if kind == "strong" else "Gustafson"
    times = [_size(row) / _size(base) for row in usable]
    rounds = [_fit(law, times, speedups) for speedups in _speedups_by_round(usable)]
    share = fmean(rounds)
    if share < -LARGEST_GAIN:
        return None, (
            f"the fit says {percent(share)} of the time, which no share can be: the smallest point "
            "was slower than its devices explain, as beside other programs; measure again alone"
        )
    half = t_bound(rounds, 0.975) if len(rounds) > 1 else None
    deviations = [
        abs(_law(law, share, n) / ratio.median - 1)
        for row, n in zip(usable, times, strict=True)
        if (ratio := against(row, base).ratio) is not None
    ]
    fitted = SerialShare(
        law=law,
        share=share,
        low=None if half is None else share - half,
        high=None if half is None else share + half,
        sizes=sizes,
        largest_deviation=max(deviations, default=0.0),
    )
    return fitted, ""


def _speedups_by_round(rows: Sequence[ExperimentRuns]) -> list[list[float]]:
    """Return the speed-ups of all rows for each round, or for each run if no rounds are common."""
    base, times = rows[0], [row.compared_seconds for row in rows]
    shared = set.intersection(*(set(row) for row in times))
    if shared and all(shares_rounds(row, base) for row in rows):
        columns = [[row[key] for key in sorted(shared)] for row in times]
    else:
        columns = [list(row.values()) for row in times]
    return [[values[0] / value for value in values] for values in zip(*columns, strict=False)]


def _fit(law: Law, times: Sequence[float], speedups: Sequence[float]) -> float:
    """Return the least-squares serial share; both laws are linear in it: y = s (1 - 1 / n).

    `times` are the numbers of devices n, divided by the fewest.
    """
    x = [1 - 1 / n for n in times]
    both = zip(times, speedups, strict=True)
    if law == "Amdahl":
        y = [1 / speedup - 1 / n for n, speedup in both]
    else:
        y = [1 - speedup / n for n, speedup in both]
    return sum(a * b for a, b in zip(x, y, strict=True)) / sum(a * a for a in x)


def _law(law: Law, share: float, times: float) -> float:
    """Return the speed-up that a law predicts for `times` as many devices as the fewest."""
    if law == "Amdahl":
        return 1 / (share + (1 - share) / times)
    return times - share * (times - 1)


def _step_seconds(row: ExperimentRuns) -> Mapping[RoundKey, float]:
    """Return the mean seconds of a step in the measured window, for each session and round."""
    return {
        key: speed.seconds_per_token * speed.real_tokens / len(speed.step_seconds)
        for key, speed in row.speeds.items()
    }


def _times(interval: Interval, factor: float) -> Interval:
    return interval.mapped(lambda value: value * factor)


def _size(row: ExperimentRuns) -> int:
    return row.planned.experiment.scenario.world_size
