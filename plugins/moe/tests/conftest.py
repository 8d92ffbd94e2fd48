"""Fixtures of this plugin's tests: small models with experts, runs, a little training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from accel_bench_moe import MixtureOfExperts, MixtureOfExpertsOptions

from accel_bench import Run
from accel_bench.testing import close_run, make_run

EXPERTS = 5
"""Number of experts per layer."""

SIZES = {
    "hidden_size": 20,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "vocab_size": 61,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_cache": False,
}
"""Sizes that no kernel block divides; float32 rows have a multiple of 16 bytes."""

KINDS: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": EXPERTS},
    "GraniteMoe": {
        "num_local_experts": EXPERTS,
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "logits_scaling": 6.0,
        "tie_word_embeddings": True,
    },
    "Olmoe": {"num_experts": EXPERTS},
    "Qwen2Moe": {
        "num_experts": EXPERTS,
        "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 8,
    },
    "Qwen3Moe": {"num_experts": EXPERTS, "moe_intermediate_size": 12, "head_dim": 4},
}
"""Supported architectures, and their names of experts."""


class Bench:
    """Worker-like environment of the plugin."""

    kinds = tuple(KINDS)
    experts = EXPERTS

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: list[tuple[MixtureOfExperts, Run]] = []

    def model(
        self, kind: str = "Mixtral", dtype: torch.dtype = torch.float32, **changes: Any
    ) -> Any:
        """A model of two layers, in training mode, with the same weights each time."""
        config = getattr(transformers, f"{kind}Config")(**{**SIZES, **KINDS[kind], **changes})
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).train()

    def layer(self, kind: str) -> Any:
        """The experts of one layer, with weights as large as their inputs."""
        layer = self.layers(self.model(kind))[0]
        for number, parameter in enumerate(layer.parameters()):
            generator = torch.Generator().manual_seed(number)
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
        return layer

    def layers(self, model: Any) -> list[Any]:
        """The modules that hold a layer's experts."""
        return [module for module in model.modules() if type(module).__name__.endswith("Experts")]

    def losses(self, model: Any, steps: int = 4) -> list[float]:
        """Losses of a few optimizer steps on one fixed batch."""
        rows = torch.randint(3, 61, (2, 9), generator=torch.Generator().manual_seed(0))
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.5)
        found = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(input_ids=rows, labels=rows).loss
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    def run(self, model: Any, **settings: Any) -> Run:
        """A run of one CPU rank around a model."""
        return make_run(self._folder, settings, model=model)

    def plugin(self, experts: str) -> MixtureOfExperts:
        """A plugin with its one option set."""
        return MixtureOfExperts(MixtureOfExpertsOptions(experts=experts), "moe")

    def switch(self, model: Any, experts: str) -> tuple[MixtureOfExperts, Run]:
        """Switch a model by a plugin that is closed when the test ends."""
        plugin, run = self.plugin(experts), self.run(model)
        self._opened.append((plugin, run))
        plugin.accelerate_model(run)
        return plugin, run

    def close(self) -> None:
        """Have every plugin undo what it did."""
        for _, run in self._opened:
            close_run(run)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench for one test."""
    made = Bench(tmp_path)
    yield made
    made.close()
