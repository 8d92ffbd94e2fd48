"""`export`: what a file holds, and what stands in it as a comment."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from cli.program import call

pytestmark = pytest.mark.box

WORK = """
name: chats
model: {id: org/model, weights: pretrained, dtype: bfloat16}
adapter: {use: lora, r: 8, target_modules: [q_proj, v_proj]}
data: {use: instructions, source: path, path: chats.jsonl, messages: messages, sequence_length: 128}
train: {micro_batch_size: 4, gradient_accumulation: 2, learning_rate: 2e-4, matmul_precision: high}
stacks: {baseline: [], smaller: {set: {train.micro_batch_size: 2}, use: [padding-free]}}
measure: {steps: 7}
"""


@pytest.fixture
def chats(tmp_path: Path) -> str:
    path = tmp_path / "chats.yaml"
    path.write_text(WORK)
    return str(path)


def test_a_scenario_is_written_as_the_settings_of_the_program(chats: str) -> None:
    done = call("export", "smaller", "--to", "trl", "--scenario", chats)
    found = yaml.safe_load(done.out)
    assert done.code == 0
    wanted = {
        "model_name_or_path": "org/model",
        "dtype": "bfloat16",
        "lora_r": 8,
        "lora_target_modules": ["q_proj", "v_proj"],
        "datasets": [{"path": "json", "data_files": "chats.jsonl"}],
        "assistant_only_loss": True,
        "max_length": 128,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 2e-4,
        "max_steps": 7,
        "padding_free": True,
        "lr_scheduler_type": "constant",
    }
    assert wanted.items() <= found.items()


def test_what_has_no_counterpart_stands_there_as_a_comment(chats: str) -> None:
    text = call("export", "smaller", "--to", "trainer", "--scenario", chats).out
    assert "#   train.matmul_precision: 'high' has no counterpart" in text
    assert "#   no argument: pass data_collator=DataCollatorWithFlattening() to Trainer" in text
    assert "padding_free" not in yaml.safe_load(text)


def test_a_stack_alone_is_written_as_what_it_changes() -> None:
    text = call("export", "torch-compile+optimizer-fused", "--to", "trainer").out
    assert yaml.safe_load(text) == {
        "optim": "adamw_torch_fused",
        "torch_compile": True,
        "torch_compile_backend": "inductor",
    }


def test_a_name_with_a_new_line_stays_in_its_comment(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(WORK.replace("org/model", '"org/m\\nlearning_rate: 9"'))
    text = call("export", "baseline", "--to", "trainer", "--scenario", str(path)).out
    assert yaml.safe_load(text)["learning_rate"] == 2e-4


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("padding-fre", "--to", "trl"), "did you mean 'padding-free'?"),
        (("padding-free", "--to", "trll"), "no trainer is called 'trll'; did you mean 'trl'?"),
        (("padding-free", "--to", "trl", "--set", "a=1"), "name it by --scenario"),
    ],
)
def test_an_error_names_the_way_out(arguments: tuple[str, ...], error: str) -> None:
    done = call("export", *arguments)
    assert done.code == 2
    assert error in done.err


def test_a_file_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    command = ("export", "torch-compile", "--to", "trl", "-o", str(file))
    assert call(*command).out == f"written: {file}\n"
    before = file.read_text()
    again = call(*command)
    assert again.code == 2 and "already there" in again.err
    assert file.read_text() == before


PLUGIN = """
from accel_bench import Options, Plugin, Run, hookimpl

class Mine(Options):
    chunk: int = 64
    \"\"\"Tokens of a piece.\"\"\"

class MyKernels(Plugin[Mine]):
    \"\"\"Kernels of a stranger.\"\"\"

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        raise AssertionError
"""

COUNTERPARTS = """
my-kernels:
  - to: {"trl, trainer": {use_liger_kernel: true, my_chunk: "{chunk}"}}
    note: "{chunk} tokens, and there the nearest power of two"
"""

TABLE = """
title: Mine 1
work: [{set: {lr: "{train.learning_rate}"}}]
"""


@pytest.fixture
def site(tmp_path: Path) -> str:
    """A folder with a distribution whose plugin has counterparts, and which adds a program."""
    package, metadata = tmp_path / "acme", tmp_path / "acme-1.0.dist-info"
    (package / "sample_configurations" / "trainers").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('reading files imports nothing')")
    (package / "sample_configurations" / "equivalents.yaml").write_text(COUNTERPARTS)
    (package / "sample_configurations" / "trainers" / "mine.yaml").write_text(TABLE)
    (tmp_path / "acme_kernels.py").write_text(PLUGIN)
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[accel_bench]\nmy-kernels = acme_kernels:MyKernels\n[accel_bench.samples]\nacme = acme\n"
    )
    return str(tmp_path)


def test_a_plugin_of_another_distribution_declares_its_counterparts_the_same_way(site: str) -> None:
    done = call("export", "my-kernels", "--to", "trl", PYTHONPATH=site)
    assert done.code == 0, done.err
    assert yaml.safe_load(done.out) == {"use_liger_kernel": True, "my_chunk": 64}
    assert "#   64 tokens, and there the nearest power of two" in done.out


def test_another_distribution_adds_a_program(site: str, chats: str) -> None:
    done = call("export", "baseline", "--to", "mine", "--scenario", chats, PYTHONPATH=site)
    assert yaml.safe_load(done.out) == {"lr": 2e-4}
    assert "#   model.id: 'org/model' has no counterpart" in done.out
    assert "#   lora has no counterpart" in done.out
