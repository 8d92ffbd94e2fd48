"""Training on answers: losses are those of transformers' own Trainer on the same samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_bench_text_tasks.data.instructions import Instructions, InstructionsOptions
from torch.utils.data import SequentialSampler
from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerFast, Trainer, TrainingArguments

from accel_bench.modeling.data.batch_plan import sample_order
from accel_bench.modeling.data.token_batches import TokenDataset
from accel_bench.modeling.loading import load_base_model
from accel_bench.testing import make_run, run_scenario

STEPS, MICRO, ACCUMULATION = 4, 2, 2

DATA: dict[str, Any] = {"vocab_size": 512, "limit_bytes": 40_000}

SCENARIO: dict[str, Any] = {
    "model": {
        "id": "tiny-llama-cpu",
        "overrides": {"num_hidden_layers": 1, "hidden_size": 64, "vocab_size": 512},
    },
    "data": {"use": "instructions", "sequence_length": 96, "padding": "longest", **DATA},
    "optimizer": {"use": "sgd"},
    "train": {
        "micro_batch_size": MICRO,
        "gradient_accumulation": ACCUMULATION,
        "learning_rate": 0.5,
    },
    "resources": {"device": "cpu"},
}
"""A model that learns visibly within a few steps."""


class OwnLoss(Trainer):
    """Trainer that stores the loss of each micro-batch."""

    losses: list[float]

    def training_step(self, *arguments: Any, **keywords: Any) -> torch.Tensor:
        """Store the losses of a step."""
        loss: torch.Tensor = super().training_step(*arguments, **keywords)
        self.losses.append(float(loss))
        return loss

    def _get_train_sampler(self, *_: Any) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)


def trainer_losses(folder: Path) -> list[float]:
    """Losses of Trainer's steps on the samples of the scenario's first steps, in order."""
    run = make_run(folder, SCENARIO)
    dataset = Instructions(InstructionsOptions.model_validate(DATA)).load_data(run)
    run.dataset = dataset
    count = STEPS * MICRO * ACCUMULATION
    order = sample_order(len(dataset), 0, 0)[:count].tolist()
    rows = [row_of(dataset, index) for index in order]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(dataset.tokenizer_path), pad_token="<|pad|>"
    )
    model = load_base_model(run)
    trainer = OwnLoss(
        model=model,
        train_dataset=rows,
        data_collator=DataCollatorForSeq2Seq(tokenizer),
        optimizers=(torch.optim.SGD(model.parameters(), lr=0.5), None),
        args=TrainingArguments(
            output_dir=str(folder / "trainer"),
            max_steps=STEPS,
            per_device_train_batch_size=MICRO,
            gradient_accumulation_steps=ACCUMULATION,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            save_strategy="no",
        ),
    )
    trainer.losses = []
    trainer.train()
    losses = trainer.losses
    return [sum(losses[n : n + ACCUMULATION]) for n in range(0, len(losses), ACCUMULATION)]


def row_of(dataset: TokenDataset, index: int) -> dict[str, list[int]]:
    """A sample as a row of a dataset, in the form of fine-tuning scripts."""
    ids = dataset.sample(index).tolist()
    labels = dataset.labels(index).tolist()
    return {"input_ids": ids, "labels": labels, "attention_mask": [1] * len(ids)}


def our_losses(folder: Path, stack: list[Any]) -> list[float]:
    """Losses of the same steps, the first as warm-up."""
    path = folder / "sft.json"
    measure = {"warmup": 1, "steps": STEPS - 1, "phase_steps": 0, "rounds": 1}
    path.write_text(json.dumps({**SCENARIO, "measure": measure, "stacks": {"baseline": stack}}))
    yaml = path.rename(path.with_suffix(".yaml"))
    (result,) = run_scenario(yaml).values()
    assert result.status.completed, result.reasons
    window = result.ranks[0].window
    assert window is not None
    samples = [*window.warmup, *window.samples]
    assert all(0 < s.supervised_tokens < s.real_tokens - 4 for s in samples)
    return [sample.loss or 0.0 for sample in samples]


def test_losses_are_those_of_transformers_trainer_on_the_same_samples(tmp_path: Path) -> None:
    theirs = trainer_losses(tmp_path / "theirs")
    assert theirs[-1] < theirs[0] - 0.1
    (tmp_path / "ours").mkdir()
    assert our_losses(tmp_path / "ours", []) == pytest.approx(theirs, rel=1e-5)
    # Without padding too, each sequence for itself.
    assert our_losses(tmp_path / "ours", ["padding-free"]) == pytest.approx(theirs, rel=1e-5)
