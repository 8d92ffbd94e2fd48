"""A plugin of a stranger that computes the loss: in a script, and refused under Trainer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PLUGIN = """
from accel_bench import Options, Plugin, hookimpl


class Halved(Plugin[Options]):
    \"\"\"Half of the model's own loss.\"\"\"

    def claims(self):
        return frozenset({"build_loss"})

    @hookimpl
    def build_loss(self, run):
        def loss(model, inputs, supervised_in_step):
            return 0.5 * model(**inputs, num_items_in_batch=supervised_in_step).loss

        return loss
"""

SCRIPT = """
import sys

import accel_bench
import torch
from accel_bench.errors import ScenarioError
from accel_bench_apply import AccelerateCallback
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

size = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1)
model = LlamaForCausalLM(LlamaConfig(num_attention_heads=4, **size))
with accel_bench.accelerate(model, "halved") as accelerated:
    print([str(part) for part in accelerated.outside])
    inputs = accelerated.collate([[1, 2, 3, 4]])
    half = accelerated.loss(accelerated.model, inputs, 3)
    print(round(float(model(**inputs).loss / half), 4))
quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
arguments = TrainingArguments("out", max_steps=1, **quiet)
rows = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * 8
trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[AccelerateCallback("halved")])
try:
    trainer.train()
except ScenarioError as error:
    print(error)
"""


def test_a_loss_of_the_stack_is_named_and_refused_under_trainer(tmp_path: Path) -> None:
    (tmp_path / "halved.py").write_text(PLUGIN)
    metadata = tmp_path / "halved-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: halved\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[accel_bench]\nhalved = halved:Halved\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{SCRIPT}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    named, twice, refused = done.stdout.splitlines()[-3:]
    assert "loss (halved): `.loss(model, inputs, supervised_in_step)` computes it" in named
    assert twice == "2.0"
    assert refused.startswith("the stack computes its loss itself, and Trainer would take")
