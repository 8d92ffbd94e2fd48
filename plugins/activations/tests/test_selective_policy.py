"""The policy of selective checkpointing: kept outputs, and counts of recomputations."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accel_bench_activations.selective_policy_impl import SelectivePolicy
from torch.utils.checkpoint import CheckpointPolicy

from accel_bench.errors import PluginError

ATEN: Any = torch.ops.aten
ATTENTION = ATEN._scaled_dot_product_flash_attention_for_cpu.default
CONTEXT = SimpleNamespace(op_output=(torch.zeros(4), None), is_recompute=False)


def keeps(operations: SelectivePolicy, operation: Any, *args: Any, **kwargs: Any) -> bool:
    policy = operations(CONTEXT, operation, *args, **kwargs)
    assert policy in (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE)
    return policy is CheckpointPolicy.MUST_SAVE


def test_a_group_stands_for_its_operations_and_a_name_for_one() -> None:
    matmuls, silu = SelectivePolicy(("matmuls",)), SelectivePolicy(("aten.silu",))
    assert [keeps(matmuls, op.default) for op in (ATEN.mm, ATEN.bmm, ATEN.silu)] == [True, True, 0]
    assert [keeps(silu, op.default) for op in (ATEN.mm, ATEN.silu)] == [False, True]
    assert matmuls.kept_bytes == 2 * 4 * 4


def test_an_older_torch_that_asks_twice_and_shows_no_output_counts_once() -> None:
    """Before 2.13 torch calls the policy in the recomputation too."""
    operations = SelectivePolicy(("matmuls",))
    for again in (False, True):
        operations(SimpleNamespace(is_recompute=again), ATEN.mm.default)
    shown = operations.evidence(1)
    assert (shown["kept"], shown["kept_bytes"]) == ({"aten.mm": 1.0}, None)


@pytest.mark.parametrize(
    ("name", "hint"), [("matmul", "did you mean 'matmuls'"), ("aten.no_such", "no operation")]
)
def test_an_unknown_operation_is_refused(name: str, hint: str) -> None:
    with pytest.raises(PluginError, match=hint):
        SelectivePolicy((name,))


def test_attention_that_drops_is_computed_again() -> None:
    """Later dropout would otherwise draw other random numbers than in the forward pass."""
    operations, values = SelectivePolicy(("attention",)), [torch.zeros(1)] * 3
    assert keeps(operations, ATTENTION, *values, 0.0)
    assert keeps(operations, ATTENTION, *values)
    assert not keeps(operations, ATTENTION, *values, 0.1)
    assert not keeps(operations, ATTENTION, *values, dropout_p=0.1)


def test_an_operation_that_draws_is_never_kept() -> None:
    operations = SelectivePolicy(("aten.native_dropout", "aten.bernoulli"))
    assert not keeps(operations, ATEN.native_dropout.default, torch.zeros(1), 0.5, True)
    assert not keeps(operations, ATEN.bernoulli.default, torch.zeros(1))


def test_products_that_nobody_has_seen_leave_it_open_whether_they_are_computed_again() -> None:
    """A custom kernel outside of torch's operations is neither kept nor seen."""
    operations = SelectivePolicy(("matmuls", "attention"))
    keeps(operations, ATTENTION)
    for _ in range(6):
        keeps(operations, ATEN.mm.default)
    assert operations.recomputes(matmuls=6, passes=1) == (False, False)
    assert operations.recomputes(matmuls=7, passes=1) == (None, False)
    assert operations.recomputes(matmuls=6, passes=0) == (None, None)
    keeps(operations, ATEN.convolution.default)
    assert operations.recomputes(matmuls=6, passes=1) == (None, False)
