"""Parameters that a library updates elsewhere are read from where it says, whole."""

from __future__ import annotations

import pytest
import torch

from accel_bench.modeling.kept_elsewhere import (
    KeptElsewhere,
    elements_of,
    keep_elsewhere,
    kept_elsewhere,
    show_gradients,
)
from accel_bench.modeling.sharding import on_this_rank, whole
from accel_bench.modeling.tensors import elements_by_dtype


def placeholder(values: torch.Tensor) -> torch.nn.Parameter:
    """Return a parameter without elements, in bfloat16, whose values are elsewhere in float32."""
    parameter = torch.nn.Parameter(torch.empty(0, dtype=torch.bfloat16))
    kept = KeptElsewhere(values.shape, values.dtype, "parts over 2", 3, 2, lambda: values)
    keep_elsewhere(parameter, kept)
    return parameter


def test_a_placeholder_has_the_size_the_dtype_and_the_values_of_what_is_updated() -> None:
    values = torch.arange(6.0).reshape(2, 3)
    parameter = placeholder(values)
    assert elements_of(parameter) == 6
    assert elements_by_dtype([parameter]) == {"float32": 6}
    assert whole(parameter).equal(values) and on_this_rank(parameter).equal(values)


def test_shown_gradients_are_clipped_together_as_the_step_clips_them() -> None:
    """Against torch's own clipping of the same gradients."""
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(4, 3, generator=generator) for _ in range(2)]
    gradients = [torch.randn(4, 3, generator=generator) for _ in range(2)]
    kept = [placeholder(one) for one in values]
    readers = dict(zip(kept, [lambda g=g: g for g in gradients], strict=True))
    show_gradients(readers, 0.5)
    plain = [torch.nn.Parameter(one) for one in values]
    for one, gradient in zip(plain, gradients, strict=True):
        one.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_(plain, 0.5)
    for held, one in zip(kept, plain, strict=True):
        found = kept_elsewhere(held)
        assert found is not None and found.gradient is not None and one.grad is not None
        assert found.gradient.norm == pytest.approx(float(one.grad.norm()))
        assert int(one.grad.abs().argmax()) in found.gradient.places
        assert int(one.detach().abs().argmin()) in found.gradient.places
