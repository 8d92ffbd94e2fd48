"""What torch keeps for itself in a module is no change of that module."""

from __future__ import annotations

import gc

import torch
from accel_bench_testing.process_state import changes, read_process_state
from torch.nn.attention import flex_attention


def test_compiled_code_that_is_dropped_meanwhile_was_not_removed_by_the_run() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention.noop_mask, backend="eager")
    assert compiled(*torch.zeros(4, 1, dtype=torch.int64)).all()
    held = [name for name in vars(flex_attention) if name.startswith("__compiled_fn_")]
    assert held, "torch's compiler keeps nothing in the module: this test tries nothing"
    before = read_process_state()
    del compiled
    torch._dynamo.reset()
    gc.collect()
    assert not set(held) & vars(flex_attention).keys()
    matmul = torch.get_float32_matmul_precision()
    assert changes(before, read_process_state(), matmul) == []
