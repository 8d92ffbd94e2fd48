"""The code of docs/apply.md, as it stands there, in processes of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import accel_bench

ROOT = Path(__file__).resolve().parents[3]

FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)

TRAINERS = os.environ.get("ACCEL_BENCH_TRAINERS", "")
"""Environment with TRL beside what is installed here."""

SCRIPT = """
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

words = [f"w{number}" for number in range(250)]
ids = {"<pad>": 0, "<eos>": 1, "<unk>": 2, **{word: 3 + at for at, word in enumerate(words)}}
backend = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
backend.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
)
data = Dataset.from_list([
    {
        "prompt": " ".join(words[at : at + 5 + at % 7]),
        "completion": " " + " ".join(words[50 + at : 60 + at + at % 5]),
    }
    for at in range(32)
])
arguments = SFTConfig(
    output_dir="out", max_steps=3, per_device_train_batch_size=4, report_to="none", logging_steps=1,
    use_cpu=True, save_strategy="no", disable_tqdm=True, bf16=False, activation_checkpointing=False,
)


def new_model():
    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, pad_token_id=0, **sizes, **heads))


def show(trainer):
    print([f"{one['loss']:.4f}" for one in trainer.state.log_history if "loss" in one])


trainer = SFTTrainer(new_model(), arguments, train_dataset=data, processing_class=tokenizer)
trainer.train()
show(trainer)
"""
"""What stands before the page's code for TRL, and the training without any stack."""


def blocks() -> list[tuple[str, str]]:
    """Return the fenced blocks of the page, each with its language."""
    return FENCE.findall((ROOT / "docs" / "apply.md").read_text(encoding="utf8"))


def output_of(program: str, folder: Path, python: str = sys.executable) -> str:
    """Return what a program prints in a folder of its own."""
    done = subprocess.run(
        [python, "-W", "ignore", "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.box
def test_the_script_of_the_page_prints_what_stands_there(tmp_path: Path) -> None:
    (_, program), (language, printed) = blocks()[:2]
    assert language == "text"
    assert output_of(program, tmp_path) == printed


@pytest.mark.skipif(not TRAINERS, reason="ACCEL_BENCH_TRAINERS names no environment with TRL")
def test_the_code_of_the_page_trains_with_trl(tmp_path: Path) -> None:
    one_line, own_batches = (program for _, program in blocks()[2:4])
    in_place = one_line.replace('"torch-compile"', '"activation-checkpointing"')
    parts = [SCRIPT, "model = new_model()", in_place, "show(trainer)"]
    parts += ["model = new_model()", own_batches, "show(trainer)"]
    found = output_of("\n".join(parts), tmp_path, str(Path(TRAINERS) / "bin" / "python"))
    losses = [line for line in found.splitlines() if line.startswith("[")]
    assert len(losses) == 3 and len(set(losses)) == 1, found


TRLS_OWN = """
usual = SFTConfig(
    output_dir="out", max_steps=3, per_device_train_batch_size=4, report_to="none", logging_steps=1,
    use_cpu=True, save_strategy="no", disable_tqdm=True, bf16=False,
)
assert usual.gradient_checkpointing
graphs = [{"use": "torch-compile", "backend": "aot_eager"}]
for stack in (graphs, "activation-checkpointing-selective"):
    trainer = SFTTrainer(
        new_model(), usual, train_dataset=data, processing_class=tokenizer,
        callbacks=[AccelerateCallback(stack)],
    )
    try:
        trainer.train()
        show(trainer)
    except ScenarioError as error:
        print(error)
"""
"""Training with TRL's defaults, which recompute activations."""


@pytest.mark.box
@pytest.mark.skipif(not TRAINERS, reason="ACCEL_BENCH_TRAINERS names no environment with TRL")
def test_checkpointing_of_trl_is_its_own_or_the_stacks(tmp_path: Path) -> None:
    imports = "from accel_bench.errors import ScenarioError"
    imports += "\nfrom accel_bench_apply import AccelerateCallback"
    program = "\n".join([SCRIPT, imports, TRLS_OWN])
    found = output_of(program, tmp_path, str(Path(TRAINERS) / "bin" / "python"))
    plain, compiled = (line for line in found.splitlines() if line.startswith("["))
    assert compiled == plain
    assert "Trainer's activation_checkpointing would do it again; set it to False" in found


def test_each_argument_and_attribute_stands_on_the_page() -> None:
    import inspect

    from accel_bench_apply import AcceleratedModel

    text = (ROOT / "docs" / "apply.md").read_text(encoding="utf8")
    names = [*inspect.signature(accel_bench.accelerate).parameters]
    members = {"batches", "check", "collate", "effective", "evidence", "loss", "model", "optimizer"}
    members |= {"autocast", "stepped", "trainer_callback", "unwrapped"}
    assert members <= {*dir(AcceleratedModel)}
    missing = [name for name in names if f"`{name}`" not in text and f"{name}," not in text]
    assert missing + [name for name in members if f"`.{name}" not in text] == []
