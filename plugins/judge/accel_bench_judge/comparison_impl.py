"""Comparison of a candidate's losses and weight updates with the reference's, in every step.

The reference is computed twice in the judge's process, in its own dtype and in float64. The
distance of both results is the rounding error of the dtype. A candidate's distance from float64 may
be a few times this error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

import torch

from accel_bench.errors import InvalidRunError
from accel_bench_judge.shared_impl import copy_to, loss_value, state_of
from accel_bench_judge.subject_impl import counting

TIMES, COARSE_TIMES = 8.0, 2.0
"""Factors on the reference's distance from float64 that bound a step's distance. Small distances
differ by the kernel, large distances of honest steps only by a fifth."""

COARSE = 0.05
"""Largest distance that the factor `TIMES` allows."""

FLIPPING = 1e-3
"""Distance of the reference above which rounding flips signs of single weights' changes, as in
Adam's first step: in a small tensor, one flipped sign is a large part of the whole."""

WHOLE_FLOOR = 1e-5
TENSOR_FLOOR = 1e-4
LOSS_FLOOR = 1e-6
"""Relative distances that are always allowed: of all parameters, of one tensor, of a loss."""

FLOAT64_SCALE = 1e-5
"""Factor on these distances if all parameters are in float64, since float32 is within them."""

NEGLIGIBLE = 1e-7
"""Part of the change of all parameters below which one parameter's change is not compared."""

COARSEST = 0.25
"""Relative distance of the reference from float64 above which no judgement is possible."""

LEAST_FLOPS = 0.99
"""Smallest fraction of the reference's FLOPs that a step must count."""

State = dict[str, torch.Tensor]


class StepRecord(NamedTuple):
    """Record of one step: its batch, loss, FLOPs, and the weights after it."""

    batch: Mapping[str, torch.Tensor]
    loss: float
    weights: State
    flops: float


@dataclass
class Judgement:
    """Result of comparing a candidate with the reference over all steps of a trial."""

    steps: int
    training: str = "bitwise equal"
    distance: float = 0.0
    """Largest relative distance of a step's weight update from the float64 reference's."""

    allowed: float = 0.0
    """Distance that is allowed in the step with the largest distance."""

    flops: float = 0.0
    reference_flops: float = 0.0
    reasons: list[str] = field(default_factory=list)


class ReferenceLimits(NamedTuple):
    """Limits of a comparison with the reference that hold for all steps."""

    parameters: Set[str]
    """Names of the parameters. Counters and running statistics, which may change by much more, are
    no part of the change of all weights."""

    scale: float
    """Factor on `WHOLE_FLOOR`, `TENSOR_FLOOR` and `LOSS_FLOOR`."""

    errors: dict[str, float]
    """Largest rounding error of each tensor in the steps so far, by name."""


def compare(
    reference: ModuleType, initial: State, steps: Sequence[StepRecord], fewer_flops: bool = False
) -> Judgement:
    """Return the comparison of all steps with the reference's, up to the first refused update.

    `initial` are the weights before the first step. `fewer_flops` allows fewer FLOPs than the
    reference's. Raises InvalidRunError if the reference cannot be computed in float64.
    """
    result = Judgement(len(steps), flops=steps[0].flops)
    batches = [step.batch for step in steps]
    plain = replay(reference, initial, batches)
    exact = replay(reference, initial, batches, exact=True)
    parameters = {name for name, _ in reference.make_model().named_parameters()}
    in_float64 = all(widened(initial[name]) is initial[name] for name in parameters)
    limits = ReferenceLimits(parameters, FLOAT64_SCALE if in_float64 else 1.0, {})
    before = [initial, initial, {name: widened(tensor) for name, tensor in initial.items()}]
    losses: list[tuple[float, float, float]] = []
    for number, step in enumerate(steps):
        own, gold = next(plain), next(exact)
        result.reference_flops = result.reference_flops or own.flops
        if not _same_bits(step, own):
            result.training = "equivalent"
        losses.append((step.loss, own.loss, gold.loss))
        after = [step.weights, own.weights, gold.weights]
        changes = [
            {name: _change(earlier[name], tensor) for name, tensor in other.items()}
            for earlier, other in zip(before, after, strict=True)
        ]
        _compare_update(result, number, limits, changes)
        before = after
        if result.reasons:
            break
    result.reasons[:0] = _other_losses(losses, limits.scale)
    if not (result.reasons or fewer_flops or result.flops >= LEAST_FLOPS * result.reference_flops):
        result.reasons.append(
            f"its step counts {result.flops:.4g} FLOPs, "
            f"the reference's {result.reference_flops:.4g}; "
            "--fewer-flops allows this where the update is the same"
        )
    return result


def replay(
    reference: ModuleType,
    initial: State,
    batches: Sequence[Mapping[str, torch.Tensor]],
    exact: bool = False,
) -> Iterator[StepRecord]:
    """Yield the record of each of the reference's steps from the initial weights, one step per
    batch.

    If `exact`, floating-point weights and inputs are converted to float64, and complex ones to
    complex128. Raises InvalidRunError if a step fails.
    """
    model = reference.make_model()
    copy_to(initial, state_of(model))
    model = model._apply(widened) if exact else model
    optimizer = reference.make_optimizer(model)
    for number, batch in enumerate(batches):
        given = {
            name: widened(tensor.clone()) if exact else tensor.clone()
            for name, tensor in batch.items()
        }
        try:
            with counting(number == 0 and not exact) as flops:
                loss = loss_value(reference.step(model, optimizer, given))
        except (RuntimeError, TypeError) as error:
            where = " in float64" if exact else ""
            raise InvalidRunError([f"the reference cannot be computed{where}: {error}"]) from error
        weights = {name: tensor.detach().clone() for name, tensor in state_of(model).items()}
        yield StepRecord(batch, loss, weights, flops())


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Return a floating-point tensor in float64, a complex one in complex128, others as given."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    return tensor.to(torch.promote_types(tensor.dtype, torch.float64))


def _change(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Return the change of each element of a tensor; 0 for an unchanged one, also if infinite."""
    wide = torch.promote_types(after.dtype, torch.float64)
    return (after.to(wide) - before.to(wide)).masked_fill(after == before, 0)


def _same_bits(step: StepRecord, own: StepRecord) -> bool:
    return step.loss == own.loss and all(
        torch.equal(_bits(tensor), _bits(own.weights[name]))
        for name, tensor in step.weights.items()
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).contiguous().view(torch.uint8)


def _other_losses(losses: Sequence[tuple[float, float, float]], scale: float) -> list[str]:
    """Return a list with the reason for the first loss that differs too much, or an empty list.

    Each item of `losses` has the losses of the step, the reference, and the reference in float64.
    The limit follows from the reference's largest rounding error in all steps, since a single error
    may be small by chance. `scale` is a factor on the floor of the limits.
    """
    rounding = max(abs(own - gold) for _, own, gold in losses)
    for number, (loss, _, gold) in enumerate(losses):
        if not abs(loss - gold) <= max(TIMES * rounding, scale * LOSS_FLOOR * abs(gold)):
            return [f"the loss of step {number} is {loss:.10g}, the reference's {gold:.10g}"]
    return []


def _compare_update(
    judgement: Judgement, number: int, limits: ReferenceLimits, changes: Sequence[State]
) -> None:
    """Compare one step's changes, of all parameters and by tensor; record them in `judgement`.

    `number` is the step's index. `changes` are those of the step, of the reference, and of the
    reference in float64. The `errors` of `limits` are updated. Raises InvalidRunError if the
    reference's own error is too large.
    """
    (step, own, gold), (parameters, scale, errors) = changes, limits
    size = _norm(gold[name] for name in parameters)
    rounding = _norm(own[name] - gold[name] for name in parameters) / size if size else 0.0
    if not rounding <= COARSEST:
        raise InvalidRunError(
            [
                f"the reference's update is {rounding:.0%} from that in float64: its steps are "
                "too coarse to show what a candidate leaves out"
            ]
        )
    distance = _norm(step[name] - gold[name] for name in parameters) / (size or 1.0)
    allowed = allowance(rounding, scale * WHOLE_FLOOR)
    if distance >= judgement.distance:
        judgement.distance, judgement.allowed = distance, allowed
    if not distance <= allowed:
        judgement.reasons.append(
            f"the update of step {number} is {distance:.2g} from the reference's in float64, "
            f"{allowed:.2g} is allowed"
        )
        return
    for name, exact in gold.items():
        part = _norm([exact])
        error = _norm([own[name] - exact]) / (part or 1.0)
        errors[name] = error = max(error, errors.get(name, 0.0))
        near = max(allowance(error, scale * TENSOR_FLOOR), flips(rounding, exact.numel()))
        limit = max(near * part, NEGLIGIBLE * size if name in parameters else 0.0)
        if not _norm([step[name] - exact]) <= limit:
            judgement.reasons.append(
                f"the update of {name} in step {number} is another one than the reference's"
            )
            return


def allowance(rounding: float, floor: float) -> float:
    """Return the allowed relative distance from float64, which is at least `floor`.

    `rounding` is the reference's own relative distance from float64.
    """
    return max(floor, min(TIMES * rounding, COARSE), COARSE_TIMES * rounding)


def flips(rounding: float, elements: int) -> float:
    """Return the relative distance of a tensor that flipped signs explain, in 1 - 1e-6 of cases.

    `rounding` is the reference's relative distance from float64, and `elements` the tensor's size.
    A fraction f of elements with flipped signs moves the tensor by 2 sqrt(f). The number of flips
    is Poisson distributed, and at most its mean plus 5.5 standard deviations plus 2.
    """
    if rounding <= FLIPPING or not elements:
        return 0.0
    mean = (rounding / 2) ** 2 * elements
    return 2 * float((mean + 5.5 * mean**0.5 + 2) / elements) ** 0.5


def _norm(tensors: Any) -> float:
    return float(sum(float(tensor.abs().square().sum()) for tensor in tensors) ** 0.5)
