"""`export`: what a file holds, and what stands in it as a comment."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from accel_bench_export.configuration import configuration
from accel_bench_export.equivalents import read_equivalents, rules_among
from accel_bench_export.rules import translate
from accel_bench_export.stacks import stack_in_scenario
from accel_bench_export.writing import text_of
from cli.program import call

from accel_bench.scenario.models import Stack

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
        "max_length": None,  # TRL refuses one beside padding_free
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 2e-4,
        "max_steps": 7,
        "padding_free": True,
        "lr_scheduler_type": "constant",
    }
    assert wanted.items() <= found.items()
    assert "#   TRL cuts no rows then, and trains on longer ones: cut the data before" in done.out
    plain = yaml.safe_load(call("export", "baseline", "--to", "trl", "--scenario", chats).out)
    assert plain["max_length"] == 128 and "padding_free" not in plain


@pytest.mark.parametrize("key", ["data.sequence_length", "train.micro_batch_size"])
def test_a_size_that_is_not_worked_out_yet_is_asked_for(key: str, chats: str) -> None:
    command = ("export", "baseline", "--to", "trl", "--scenario", chats, "--set", f"{key}=auto")
    done = call(*command)
    assert done.code == 2 and not done.out
    assert f"{key}: auto is worked out by `accel-bench run`; here it needs a number" in done.err
    assert "`--run ID` has the numbers" in done.err
    assert call(*command, "--set", f"{key}=64").code == 0


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


def test_the_precision_that_a_stack_sets_is_written_without_the_work() -> None:
    stack = Stack(name="half", settings={"train.precision": "bf16-autocast"})
    for program in ("trl", "axolotl", "llama-factory"):
        found = configuration(program, stack, None)
        assert found.settings == {"bf16": True, "fp16": False}, program
        assert not found.parts[0].comments


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
        (("padding-free", "--to", "peft"), "peft is read and not written; --to is one of trl"),
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


DEVIATING = """
name: preferring
model: {id: org/model, weights: pretrained}
task: {use: dpo, beta: 0.2, nll_scale: 0.5}
adapter: lora
data: {use: preferences, source: path, path: pairs.jsonl, held_out: 10, prefetch: 4}
train: {gradient_checkpointing: true}
environment: {NCCL_DEBUG: WARN}
evaluate: {every: 5, steps: 10}
resources: {device: cpu, devices: 2, threads: 3, backend: gloo}
stacks: {baseline: [], sharded: [mesh]}
sweep: {train.seed: [5, 6]}
"""


def exported(to: str, stack: str, folder: Path) -> str:
    """The text of that work for a program."""
    path = folder / "preferring.yaml"
    path.write_text(DEVIATING)
    chosen, scenario, remarks = stack_in_scenario(stack, str(path), [])
    return text_of(configuration(to, chosen, scenario, remarks), "FILE")


@pytest.mark.parametrize("program", ["trl", "axolotl", "llama-factory", "trainer", "torchtune"])
def test_nothing_of_the_work_is_left_out_in_silence(program: str, tmp_path: Path) -> None:
    text = exported(program, "baseline", tmp_path)
    for said in (
        "#   data.held_out: 10 has no counterpart",
        "#   data.prefetch: 4 has no counterpart",
        "#   evaluate.every: 5 has no counterpart",
        "#   the process group's backend: gloo",
        "#   in the environment: NCCL_DEBUG=WARN",
        "#   in the environment: OMP_NUM_THREADS=3",
        "#   the work is that of 2 processes: start as many",
        "#   the first of 2 points of a sweep, train.seed=5; --set chooses another",
    ):
        assert said in text, said
    decays = "#   weights of norms and biases do not decay there, and here all do"
    assert (decays in text) is (program != "torchtune")
    adapts = "#   adapted modules: PEFT's choice for the architecture here"
    assert (adapts in text) is (program in ("axolotl", "llama-factory", "torchtune"))


@pytest.mark.parametrize(
    ("program", "settings"),
    [
        ("trl", {"beta": 0.2, "loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]}),
        ("axolotl", {"rl_beta": 0.2, "dpo_loss_weights": [1.0, 0.5], "tf32": False}),
        ("llama-factory", {"pref_beta": 0.2, "pref_ftx": 0.5, "use_reentrant_gc": False}),
    ],
)
def test_the_loss_of_preferences_and_checkpointing_are_those_of_the_work(
    program: str, settings: dict[str, object], tmp_path: Path
) -> None:
    text = exported(program, "baseline", tmp_path)
    found = yaml.safe_load(text)
    assert settings.items() <= found.items()
    assert "task." not in text


def test_a_stack_that_divides_the_work_takes_the_place_of_the_scenarios_plugin(
    tmp_path: Path,
) -> None:
    assert "# parallel: ddp" in exported("trl", "baseline", tmp_path)
    text = exported("trl", "sharded", tmp_path)
    assert "ddp" not in text and yaml.safe_load(text)["fsdp_config"]["version"] == 2


@pytest.mark.parametrize("stack", ["baseline", "fsdp2"])
@pytest.mark.parametrize(
    ("resources", "processes"),
    [("{devices: 4, nodes: 2}", 8), ("{devices_by_node: [4, 2]}", 6), ("{devices: 4}", 4)],
)
def test_the_processes_of_all_machines_are_counted(
    stack: str, resources: str, processes: int, tmp_path: Path
) -> None:
    path = tmp_path / "several.yaml"
    path.write_text(f"name: several\nresources: {resources}\nparallel: ddp\n"
                    "train: {global_batch_size: 24, micro_batch_size: 1}\n")  # fmt: skip
    chosen, scenario, _ = stack_in_scenario(stack, str(path), [])
    text = text_of(configuration("accelerate", chosen, scenario), "FILE")
    found = yaml.safe_load(text)
    several = "nodes" in resources or "by_node" in resources
    assert (found["num_processes"], found["num_machines"]) == (processes, 2 if several else 1)
    assert ("of each machine its own: machine_rank, and main_process_ip" in text) is several
    assert ("and here they are [4, 2]" in text) is ("by_node" in resources)
    assert "start as many" not in text
    if stack == "baseline":
        titan = configuration("torchtitan", chosen, scenario).settings
        assert titan["parallelism.data_parallel_replicate_degree"] == processes


def test_offloading_of_deepspeed_is_a_setting_of_its_own() -> None:
    (file,) = Path(__file__).parents[3].glob("plugins/deepspeed/*/sample*/equivalents.yaml")
    rules = rules_among(read_equivalents(file).plugins["deepspeed"], "trl")
    found = translate(rules, {"stage": 3, "offload_optimizer": True, "offload_parameters": False})
    prefix = "deepspeed.zero_optimization"
    assert found.settings[f"{prefix}.offload_optimizer.device"] == "cpu"
    assert f"{prefix}.offload_param.device" not in found.settings


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


def test_a_stack_that_the_scenario_lacks_is_answered_with_those_it_has(chats: str) -> None:
    done = call("export", "faster", "--to", "trl", "--scenario", chats)
    assert done.code == 2
    assert f"{chats} has baseline" in done.err and "called 'faster'" in done.err


@pytest.mark.parametrize("program", ["llama-factory", "torchtune"])
def test_a_padding_that_the_program_does_not_have_is_named(program: str, chats: str) -> None:
    text = call("export", "baseline", "--to", program, "--scenario", chats).out
    assert "pads to the longest sample of a micro-batch there, and here to 128 tokens" in text
