"""Train on the same pairs with accel-bench and with TRL, and return the losses of the steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from accel_bench_huggingface.lora import Lora, LoraOptions
from accel_bench_text_tasks.data.preferences import Preferences, PreferencesOptions

from accel_bench import Run
from accel_bench.modeling.data.batch_plan import sample_order
from accel_bench.modeling.data.token_batches import IGNORED_LABEL
from accel_bench.modeling.loading import load_base_model
from accel_bench.testing import make_run, run_scenario

STEPS, PAIRS = 4, 4

DATA: dict[str, Any] = {
    "tokenizer": "train",
    "source": "synthetic",
    "vocab_size": 400,
    "maximum_samples": 64,
    "padding": "longest",
}

SCENARIO: dict[str, Any] = {
    "task": "dpo",
    "model": {
        "id": "tiny-llama-cpu",
        "overrides": {"num_hidden_layers": 1, "hidden_size": 64, "vocab_size": 400},
    },
    "data": {"use": "preferences", "sequence_length": 96, **DATA},
    "optimizer": {"use": "sgd"},
    "train": {"micro_batch_size": PAIRS, "learning_rate": 0.5},
    "resources": {"device": "cpu"},
    "measure": {"warmup": 1, "steps": STEPS - 1, "phase_steps": 0, "rounds": 1},
    "stacks": {"baseline": []},
}
"""A model that learns visibly within a few steps."""


def our_losses(folder: Path, options: dict[str, Any], **changes: Any) -> list[float]:
    """Return the losses of the steps, warm-up first."""
    path = folder / "preference.yaml"
    path.write_text(json.dumps({**SCENARIO, "task": {"use": "dpo", **options}, **changes}))
    (result,) = run_scenario(path).values()
    assert result.status.completed, result.reasons
    window = result.ranks[0].window
    assert window is not None
    return [sample.loss or 0.0 for sample in (*window.warmup, *window.samples)]


def pairs_of(folder: Path, **changes: Any) -> tuple[Run, list[dict[str, Any]]]:
    """Return the run of the scenario with its data, and the pairs of its first steps in TRL's
    format; `changes` are further keys of sections."""
    work = {key: value for key, value in SCENARIO.items() if key != "stacks"}
    changed = {key: {**SCENARIO[key], **value} for key, value in changes.items()}
    run = make_run(folder, {**work, **changed})
    dataset = Preferences(PreferencesOptions.model_validate(DATA)).load_data(run)
    run.dataset = dataset
    order = sample_order(len(dataset), 0, 0)[: STEPS * PAIRS].tolist()
    sequences, pairs = dataset.sequences, []
    for number in order:
        prompt = int((sequences.labels(2 * number) == IGNORED_LABEL).sum())
        chosen, rejected = (sequences.sample(2 * number + n).tolist() for n in (0, 1))
        pairs.append(
            {
                "number": number,
                "prompt_ids": chosen[:prompt],
                "chosen_ids": chosen[prompt:],
                "rejected_ids": rejected[prompt:],
            }
        )
    return run, pairs


def trl_losses(
    folder: Path, options: dict[str, Any], adapter: dict[str, Any] | None = None
) -> list[float]:
    """Losses of TRL's DPOTrainer with the same options; with an adapter of these of LoRA, whose
    base is the reference."""
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast
    from trl import DPOConfig, DPOTrainer

    class OwnLoss(DPOTrainer):
        """Keeps the loss of each step as it is computed."""

        def training_step(self, *arguments: Any, **keywords: Any) -> torch.Tensor:
            loss: torch.Tensor = super().training_step(*arguments, **keywords)
            self.losses.append(float(loss))
            return loss

        def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
            return dataset  # which holds tokens

        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    run, pairs = pairs_of(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(run.dataset.tokenizer_path),
        pad_token="<|pad|>",
        eos_token="<|endoftext|>",
    )
    kind = "sigmoid_norm" if options.get("length_normalization") else "sigmoid"
    scale = options.get("nll_scale", 0.0)
    model, reference = load_base_model(run), load_base_model(run)
    if adapter is not None:
        run.model, reference = model, None
        model = Lora(LoraOptions.model_validate(adapter)).add_adapter(run)
    trained = [one for one in model.parameters() if one.requires_grad]
    trainer = OwnLoss(
        model=model,
        ref_model=reference,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(
            [{key: value for key, value in pair.items() if key != "number"} for pair in pairs]
        ),
        optimizers=(torch.optim.SGD(trained, lr=SCENARIO["train"]["learning_rate"]), None),
        args=DPOConfig(
            output_dir=str(folder / "trl"),
            beta=options.get("beta", 0.1),
            loss_type=[kind, "sft"] if scale else [kind],
            loss_weights=[1.0, scale] if scale else None,
            max_steps=STEPS,
            per_device_train_batch_size=PAIRS,
            gradient_accumulation_steps=1,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            max_length=None,
            use_cpu=True,
            bf16=False,
            report_to="none",
            disable_tqdm=True,
            save_strategy="no",
            activation_checkpointing=False,
        ),
    )
    trainer.losses = []
    trainer.train()
    return trainer.losses
