"""Optimizers of other libraries: `optimizers.py FOLDER` trains with each in a process of its own.

As in attempts.py, each leaves its records in FOLDER/NAME.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import bitsandbytes
import deepspeed
import torch
import torchao.optim
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin
from attempts import STEPS, run_all

ENGINE: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}


def made() -> tuple[Any, Any]:
    """Return a model whose weights are large enough for states of 8 bits, and its data."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 128), torch.nn.Linear(128, 64)]
    return torch.nn.Sequential(*layers), torch.randn(2 * STEPS, 4, 64)


def groups_of(model: Any) -> list[dict[str, Any]]:
    """Return the weights with decay, and the biases without."""
    known = [one for one in model.parameters() if one.dim() > 1]
    rest = [one for one in model.parameters() if one.dim() == 1]
    return [{"params": known, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]


def train(kind: Any) -> None:
    """Take steps of two micro-batches with an optimizer."""
    model, data = made()
    optimizer = kind(groups_of(model), lr=0.01)
    for number, batch in enumerate(data, 1):
        (model(batch).square().mean() / 2).backward()
        if number % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()


def of_torch() -> None:
    train(torch.optim.AdamW)


def of_bitsandbytes() -> None:
    train(bitsandbytes.optim.AdamW8bit)


def of_torchao() -> None:
    train(torchao.optim.AdamW8bit)


def one_process(name: str) -> None:
    """Start a process group of one, as a launcher does."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    where = Path(sys.argv[1], name, "rendezvous").as_uri()
    torch.distributed.init_process_group("gloo", init_method=where, rank=0, world_size=1)


def of_deepspeed(float16: bool = False) -> None:
    """An engine of DeepSpeed, which takes a step of its optimizer for each group of weights."""
    one_process("of_deepspeed_as_in_float16" if float16 else "of_deepspeed")
    model, data = made()
    optimizer = torch.optim.AdamW(groups_of(model), lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=ENGINE)
    # It trains in float16 on a GPU alone; there it multiplies losses by a factor of its own.
    engine._config.float16_config.enabled = float16
    for batch in data:
        engine.backward(engine(batch).square().mean())
        engine.step()


def of_deepspeed_as_in_float16() -> None:
    of_deepspeed(float16=True)


def of_accelerate() -> None:
    """Accelerate's wrapper, which takes a step where the accumulation ends."""
    model, data = made()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    run(accelerator, model, data)


def of_accelerate_with_deepspeed() -> None:
    one_process("of_accelerate_with_deepspeed")
    model, data = made()
    plugin = DeepSpeedPlugin(hf_ds_config={**ENGINE, "zero_optimization": {"stage": 2}})
    run(Accelerator(deepspeed_plugin=plugin), model, data)


def run(accelerator: Any, model: Any, data: Any) -> None:
    """Train with an accelerator."""
    optimizer = torch.optim.AdamW(groups_of(model), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    for batch in data:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    os.environ["DS_ACCELERATOR"] = "cpu"
    # An operation of DeepSpeed that it would compile for two minutes, to reduce over shared memory.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    cases = [of_torch, of_bitsandbytes, of_torchao, of_deepspeed, of_deepspeed_as_in_float16]
    run_all([*cases, of_accelerate, of_accelerate_with_deepspeed], Path(sys.argv[1]))
