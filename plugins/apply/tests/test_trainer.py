"""Trainer trains with a stack through its callback, and is refused where it leaves a part out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accel_bench_apply import AccelerateCallback
from transformers import Trainer, TrainingArguments

import accel_bench
from accel_bench.errors import PluginError, ScenarioError

from .scripts import small_llama

SAMPLES = [{"input_ids": list(range(1, 5 + 3 * number % 11))} for number in range(16)]

CLOSE = 1e-6
"""Relative distance of losses whose sums have another order."""


def padded(samples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Return a micro-batch with padding, as a script's own collator makes it."""
    rows = [torch.tensor(sample["input_ids"]) for sample in samples]
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "input_ids": pad(rows, batch_first=True),
        "attention_mask": pad([torch.ones_like(row) for row in rows], batch_first=True),
        "labels": pad(rows, batch_first=True, padding_value=-100),
    }


@pytest.fixture
def losses(tmp_path: Path) -> Any:
    """Return `losses(model, arguments, **of_trainer)`: a training's losses by step."""

    def train(model: Any, arguments: TrainingArguments, **others: Any) -> list[float]:
        settings = {"data_collator": padded, **others}
        trainer = Trainer(model=model, args=arguments, train_dataset=SAMPLES, **settings)
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    return train


@pytest.fixture
def arguments(tmp_path: Path) -> Any:
    """Return `arguments(**changes)`: those of three steps of Trainer on the CPU."""

    def make(**changes: Any) -> TrainingArguments:
        settings = {"max_steps": 3, "per_device_train_batch_size": 4, "logging_steps": 1}
        quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True}
        return TrainingArguments(str(tmp_path), use_cpu=True, **{**settings, **quiet, **changes})

    return make


def test_a_callback_accelerates_the_model_in_place_and_undoes_it(
    losses: Any, arguments: Any
) -> None:
    plain = losses(small_llama(), arguments())
    model, callback = small_llama(), AccelerateCallback("activation-checkpointing")
    assert losses(model, arguments(), callbacks=[callback]) == plain
    assert callback.accelerated.closed
    assert callback.accelerated.experiment.scenario.train.micro_batch_size == 4
    assert not model.model.layers[0].gradient_checkpointing


def test_batches_and_optimizer_of_a_stack_are_given_to_trainer(losses: Any, arguments: Any) -> None:
    plain = losses(small_llama(), arguments())
    stack = {"set": {"optimizer.fused": True}, "use": ["padding-free"]}
    with accel_bench.accelerate(small_llama(), stack, arguments=arguments()) as accelerated:
        own = {
            "data_collator": accelerated.collate,
            "optimizers": (accelerated.optimizer(), None),
            "callbacks": [accelerated.trainer_callback()],
        }
        found = losses(accelerated.model, arguments(), **own)
        assert accelerated.effective.padding_free
        assert accelerated.evidence()["adamw"]["fused"]
    # Trainer's own AdamW has no weight decay.
    assert found[0] == pytest.approx(plain[0], rel=CLOSE)
    assert found == pytest.approx(plain, rel=1e-3)


@pytest.mark.parametrize(
    ("stack", "changes", "reason"),
    [
        ("padding-free", {}, "batches of its own: give data_collator=accelerated.collate"),
        ("optimizer-fused", {}, r"give optimizers=\(accelerated.optimizer\(\), None\)"),
        (
            {"set": {"train.precision": "bf16-autocast"}},
            {},
            "train.precision is bf16-autocast by the stack, and Trainer's bf16, fp16 makes it as",
        ),
        (
            {"set": {"train.micro_batch_size": 2}},
            {},
            "micro_batch_size is 2 by the stack, .* per_device_train_batch_size makes it 4",
        ),
        (
            "activation-checkpointing",
            {"activation_checkpointing": True},
            "Trainer's activation_checkpointing would do it again; set it to False",
        ),
    ],
)
def test_a_trainer_that_leaves_a_part_out_is_refused(
    stack: Any, changes: dict[str, bool], reason: str, losses: Any, arguments: Any
) -> None:
    callback = AccelerateCallback(stack)
    with pytest.raises(ScenarioError, match=reason):
        losses(small_llama(), arguments(**changes), callbacks=[callback])
    assert callback.accelerated.closed


def test_plugins_check_the_arguments_of_trainer(losses: Any, arguments: Any) -> None:
    with pytest.raises(PluginError, match="frees gradients before their norm is known"):
        accel_bench.accelerate(small_llama(), "optimizer-in-backward", arguments=arguments())
    clipped = arguments(max_grad_norm=0.0)
    with accel_bench.accelerate(small_llama(), "optimizer-in-backward", arguments=clipped) as one:
        own = {"optimizers": (one.optimizer(), None), "callbacks": [one.trainer_callback()]}
        assert len(losses(one.model, clipped, **own)) == 3


def test_an_adapter_needs_the_model_before_the_trainer(losses: Any, arguments: Any) -> None:
    adapted = {"adapter.use": "lora"}
    with pytest.raises(ScenarioError, match="makes another model of it, such as by an adapter"):
        callback = AccelerateCallback(None, overrides=adapted)
        losses(small_llama(), arguments(), callbacks=[callback])
    with accel_bench.accelerate(small_llama(), overrides=adapted) as accelerated:
        assert losses(accelerated.model, arguments(), callbacks=[accelerated.trainer_callback()])


def test_a_callback_that_is_added_too_late_says_so(arguments: Any) -> None:
    trainer = Trainer(small_llama(), arguments(), padded, train_dataset=SAMPLES)
    trainer.add_callback(AccelerateCallback("activation-checkpointing"))
    with pytest.raises(ScenarioError, match="not by `add_callback`"):
        trainer.train()
