"""Are the steps those of the reference? Losses and the change of each tensor, in every step.

The reference is computed twice in the judge's process, as it stands and in float64. How far it is
from itself in float64 is what its own dtype costs; a step may be a few times as far away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

import torch

from accel_bench.errors import InvalidRunError
from accel_bench_judge.shared_impl import copy_to, loss_value, state_of
from accel_bench_judge.subject_impl import counting

TIMES = 8.0
"""Distance that a step may have from float64, in distances of the reference."""

WHOLE_FLOOR = 1e-5
TENSOR_FLOOR = 1e-4
LOSS_FLOOR = 1e-6
"""Relative distances that are always allowed: of all weights, of one tensor, of a loss."""

COARSEST = 0.25
"""Distance of the reference from itself in float64 beyond which it shows nothing."""

LEAST_FLOPS = 0.99
"""Fraction of the reference's FLOPs that a step counts at least."""

State = dict[str, torch.Tensor]


class StepRecord(NamedTuple):
    """One step as the judge saw it."""

    batch: Mapping[str, torch.Tensor]
    loss: float
    weights: State
    flops: float


@dataclass
class Judgement:
    """The comparison of a step with the reference, over all steps of a trial."""

    steps: int
    training: str = "bitwise equal"
    distance: float = 0.0
    """Largest distance of a step's update from that in float64, relative."""

    allowed: float = 0.0
    """Distance that was allowed in that step."""

    flops: float = 0.0
    reference_flops: float = 0.0
    reasons: list[str] = field(default_factory=list)


def compare(
    reference: ModuleType, initial: State, steps: Sequence[StepRecord], fewer_flops: bool = False
) -> Judgement:
    """Compare each step with the reference's; the first step beyond the limits gives the reasons.

    Raises InvalidRunError if the reference cannot be computed in float64.
    """
    found = Judgement(len(steps), flops=steps[0].flops)
    batches = [step.batch for step in steps]
    plain = replay(reference, initial, batches, None)
    exact = replay(reference, initial, batches, torch.float64)
    before = [initial, initial, {name: one.double() for name, one in initial.items()}]
    rounding = 0.0
    for number, step in enumerate(steps):
        own, gold = next(plain), next(exact)
        found.reference_flops = found.reference_flops or own.flops
        if not _same_bits(step, own):
            found.training = "equivalent"
        rounding = max(rounding, abs(own.loss - gold.loss))
        _compare_loss(found, number, step.loss, gold.loss, rounding)
        after = [step.weights, own.weights, gold.weights]
        changes = [
            {name: tensor.double() - one[name].double() for name, tensor in other.items()}
            for one, other in zip(before, after, strict=True)
        ]
        _compare_update(found, number, *changes)
        before = after
        if found.reasons:
            return found
    if not fewer_flops and found.flops < LEAST_FLOPS * found.reference_flops:
        found.reasons.append(
            f"its step counts {found.flops:.4g} FLOPs, the reference's {found.reference_flops:.4g}"
        )
    return found


def replay(
    reference: ModuleType,
    initial: State,
    batches: Sequence[Mapping[str, torch.Tensor]],
    dtype: torch.dtype | None,
) -> Iterator[StepRecord]:
    """Yield the steps of the reference from the initial weights, floats in the dtype if given."""
    model = reference.make_model()
    copy_to(initial, state_of(model))
    model = model if dtype is None else model.to(dtype)
    optimizer = reference.make_optimizer(model)
    for number, batch in enumerate(batches):
        given = {
            name: one.to(dtype) if dtype and one.is_floating_point() else one.clone()
            for name, one in batch.items()
        }
        try:
            with counting(number == 0 and dtype is None) as flops:
                loss = loss_value(reference.step(model, optimizer, given))
        except RuntimeError as error:
            where = "" if dtype is None else f" in {dtype}"
            raise InvalidRunError([f"the reference cannot be computed{where}: {error}"]) from error
        weights = {name: one.detach().clone() for name, one in state_of(model).items()}
        yield StepRecord(batch, loss, weights, flops())


def _same_bits(step: StepRecord, own: StepRecord) -> bool:
    return step.loss == own.loss and all(
        torch.equal(_bits(tensor), _bits(own.weights[name]))
        for name, tensor in step.weights.items()
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).contiguous().view(torch.uint8)


def _compare_loss(found: Judgement, number: int, loss: float, gold: float, own: float) -> None:
    allowed = max(TIMES * own, LOSS_FLOOR * abs(gold))
    if not abs(loss - gold) <= allowed:
        found.reasons.append(f"the loss of step {number} is {loss:.7g}, the reference's {gold:.7g}")


def _compare_update(found: Judgement, number: int, step: State, own: State, gold: State) -> None:
    """Compare one step's changes of all weights, and of each tensor."""
    size = _norm(gold.values())
    rounding = _norm(own[name] - gold[name] for name in gold) / size if size else 0.0
    if rounding > COARSEST:
        raise InvalidRunError(
            [
                f"the reference's update is {rounding:.0%} from that in float64: its steps are "
                "too coarse to show what a candidate leaves out"
            ]
        )
    distance = _norm(step[name] - gold[name] for name in gold) / (size or 1.0)
    allowed = max(TIMES * rounding, WHOLE_FLOOR)
    if distance >= found.distance:
        found.distance, found.allowed = distance, allowed
    if not distance <= allowed:
        found.reasons.append(
            f"the update of step {number} is {distance:.2g} from the reference's in float64, "
            f"{allowed:.2g} is allowed"
        )
        return
    for name, exact in gold.items():
        error = _norm([own[name] - exact])
        limit = max(TIMES * error, TENSOR_FLOOR * _norm([exact]), 1e-7 * size)
        if not _norm([step[name] - exact]) <= limit:
            found.reasons.append(
                f"the update of {name} in step {number} is another one than the reference's"
            )
            return


def _norm(tensors: Any) -> float:
    return float(sum(float(one.square().sum()) for one in tensors) ** 0.5)
