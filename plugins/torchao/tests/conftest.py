"""Fixtures of this plugin's tests: closed plugins, runs, a little training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_bench_huggingface.lora import LoraOptions
from accel_bench_huggingface.lora_impl import add_adapter
from accel_bench_torchao import TorchAO, TorchAOOptions

from accel_bench import Device, Experiment, Run, load_base_model
from accel_bench.testing import close_run, make_experiment

LAYERS = 2

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Bench:
    """Worker-like environment of a plugin."""

    layers = LAYERS
    linears = LAYERS * len(TARGETS)

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: list[Run] = []

    def plugin(self, **options: Any) -> TorchAO:
        return TorchAO(TorchAOOptions(**options), "torchao")

    def experiment(self, **settings: Any) -> Experiment:
        """A small llama on a CPU, unless the settings say otherwise."""
        overrides = {"num_hidden_layers": LAYERS}
        base = {"model": {"id": "tiny-llama-cpu", "overrides": overrides}}
        return make_experiment({**base, **settings})

    def run(self, **settings: Any) -> Run:
        """A run of one CPU rank, which is closed when the test ends."""
        experiment = self.experiment(**settings)
        run = Run(experiment, Device("cpu"), self._folder, self._folder / "cache")
        self._runs.append(run)
        return run

    def build(self, plugin: TorchAO | None, adapter: bool = True) -> Run:
        """Run the worker's stages up to the optimizer; without a plugin with plain weights."""
        run = self.run()
        loads = plugin is not None and plugin.claims()
        run.model = plugin.load_model(run) if plugin and loads else load_base_model(run)
        if adapter:
            run.model = add_adapter(run.model, LoraOptions(r=4, target_modules=TARGETS), 0)
        if plugin is not None:
            plugin.accelerate_model(run)
        run.unwrapped_model = run.model
        return run

    def train(self, model: Any, steps: int = 10) -> list[float]:
        """Losses of a few steps on a constant batch."""
        rows = torch.randint(0, 2048, (2, 16), generator=torch.Generator().manual_seed(0))
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-2)
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(input_ids=rows, labels=rows).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def reached(self, model: Any) -> set[str]:
        """Names of the parameters whose gradient is not zero."""
        return {
            name
            for name, parameter in model.named_parameters()
            if parameter.grad is not None and bool(parameter.grad.any())
        }

    def close(self) -> None:
        """Have plugins undo what they did in every run, the last one first."""
        for run in reversed(self._runs):
            close_run(run)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench for one test."""
    made = Bench(tmp_path)
    yield made
    made.close()
