"""What a forward pass keeps, by module: the parts add up to all of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from accel_bench.modeling.module_calls import around_modules
from accel_bench.modeling.saved_tensors import saved_bytes, saved_bytes_by_module

SAMPLES, WIDTH, INNER = 4, 8, 16
INPUT, HIDDEN = SAMPLES * WIDTH * 4, SAMPLES * INNER * 4
"""Bytes of what a block reads, and of what its second product reads."""


class Block(nn.Module):
    """Two products around a ReLU, with a copy of what it reads in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, INNER)
        self.act = nn.ReLU()
        self.down = nn.Linear(INNER, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.up(x))).exp()


def model(recompute: bool = False) -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Block(), Block()])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
            return x.sum()

    return Model()


def test_each_storage_belongs_to_the_module_that_saved_it_first() -> None:
    whole, x = model(), torch.randn(SAMPLES, WIDTH)
    found = saved_bytes_by_module(whole, lambda: whole(x), "cpu")
    # ReLU keeps its output, which the next product reads too; exp keeps its own, as the block.
    assert found == {
        "blocks.0.up": INPUT,
        "blocks.0.act": HIDDEN,
        "blocks.0": INPUT,
        "blocks.1.act": HIDDEN,
        "blocks.1": INPUT,
    }
    assert sum(found.values()) == saved_bytes(whole, lambda: whole(x), "cpu")
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in whole.modules())


def test_of_a_checkpointed_block_the_module_around_it_keeps_the_inputs() -> None:
    whole, x = model(recompute=True), torch.randn(SAMPLES, WIDTH)
    assert saved_bytes_by_module(whole, lambda: whole(x), "cpu") == {"": 2 * INPUT}


def test_a_compiled_block_is_one_part_and_is_not_compiled_again() -> None:
    torch._dynamo.reset()
    counters.clear()
    whole, x = model(), torch.randn(SAMPLES, WIDTH)
    whole.blocks[0].compile(backend="aot_eager")
    whole(x).backward()
    before = counters["stats"]["unique_graphs"]
    found = saved_bytes_by_module(whole, lambda: whole(x), "cpu")
    whole(x).backward()
    assert counters["stats"]["unique_graphs"] == before > 0
    assert found["blocks.0"] >= HIDDEN + INPUT
    assert not any(path.startswith("blocks.0.") for path in found)
    assert sum(found.values()) == saved_bytes(whole, lambda: whole(x), "cpu")


def test_a_module_in_two_places_is_entered_once() -> None:
    entered: list[str] = []

    @contextmanager
    def enter(path: str) -> Iterator[None]:
        entered.append(path)
        yield

    shared = nn.ReLU()
    whole = nn.Sequential(nn.Sequential(shared), shared)
    with around_modules(whole, enter):
        whole(torch.ones(1))
    assert entered == ["0", "0.0", "0.0"]
