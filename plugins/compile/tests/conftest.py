"""Fixtures of this plugin's tests: small models, runs, machines, plugins that are closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_bench_compile import SET_BY_TORCH, TorchCompile
from torch import nn

from accel_bench import Machine, Run
from accel_bench.testing import close_run, make_machine, make_run

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS")
"""Environment variables of caches, which torch sets at first use if they are missing."""


class Mixing(nn.Module):
    """The smallest block with something to train and something to fuse."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((8,), 0.5))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + torch.tanh(values * self.weight)


class Blocks(nn.Module):
    """Two such blocks, or others, one after the other; `forward` returns their sum as a loss.

    The first one's input needs a gradient as that of the others does, so that they share a graph.
    """

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.layers = nn.ModuleList(blocks or (Mixing(), Mixing()))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = values * self.scale
        for layer in self.layers:
            values = layer(values)
        return values.sum()


class Bench:
    """Everything around a plugin that a worker would have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened: list[tuple[TorchCompile, Run]] = []

    def blocks(self, *blocks: nn.Module) -> Blocks:
        """A model of a few small blocks."""
        return Blocks(*blocks)

    def plugin(self, **options: Any) -> TorchCompile:
        return TorchCompile(TorchCompile.Options(**options), "torch-compile")

    def run(self, model: nn.Module | None = None, **settings: Any) -> Run:
        """A run of one CPU rank around a model."""
        return make_run(self.folder, settings, model=model)

    def machine(self, **facts: Any) -> Machine:
        """A machine without a GPU and, unless told otherwise, without a compiler."""
        return make_machine(**facts)

    def compiled(
        self, model: nn.Module, mode: str = "train", **options: Any
    ) -> tuple[TorchCompile, Run]:
        """Compile a model with a plugin that is closed when the test has ended."""
        plugin, run = self.plugin(**options), self.run(model, mode=mode)
        self._opened.append((plugin, run))
        plugin.prepare_process(run)
        plugin.compile_model(run)
        return plugin, run

    def train(self, model: nn.Module, micro_batches: int = 1, steps: int = 2) -> list[float]:
        """Losses of a few optimizer steps of a model of blocks."""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(steps):
            for _ in range(micro_batches):
                loss = model(torch.linspace(-1, 1, 16).reshape(2, 8))
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def close(self) -> None:
        for _, run in self._opened:
            close_run(run)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start without what torch has set for itself in an earlier test."""
    for name in (*CACHES, *SET_BY_TORCH):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Close everything that a test has opened."""
    bench = Bench(tmp_path)
    yield bench
    bench.close()


@pytest.fixture
def compiled(bench: Bench) -> Callable[..., tuple[TorchCompile, Run]]:
    return bench.compiled
