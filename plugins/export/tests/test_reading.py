"""Other programs' configurations as scenarios, and what is left out of them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml
from accel_bench_export.reading import ReadConfiguration, read_configuration
from cli.program import call

from accel_bench.planning.resolve import resolve
from accel_bench.scenario.find import read_draft
from accel_bench.scenario.models import Scenario

pytestmark = pytest.mark.box

WORK = """
name: chats
model: {id: org/model, weights: pretrained}
adapter: {use: lora, r: 8, alpha: 32, dropout: 0.1, target_modules: [q_proj, v_proj]}
data: {use: instructions, source: path, path: chats.jsonl, messages: messages, sequence_length: 128}
train:
  micro_batch_size: 4
  gradient_accumulation: 2
  learning_rate: 2e-4
  precision: bf16-autocast
  max_grad_norm: 0.5
  seed: 3
optimizer: {use: adamw, weight_decay: 0.1, betas: [0.9, 0.95]}
resources: {device: cpu}
stacks: {baseline: [], compiled: [torch-compile]}
measure: {steps: 7}
"""

UNKNOWN: dict[str, set[str]] = {
    "trl": {"data.messages"},
    "axolotl": {"data.seed", "model.dtype"},  # it loads weights in bfloat16 under `bf16`
    "llama-factory": {"data.source", "data.path", "data.messages"},
}
"""Keys of the scenario that a program's file cannot say."""


def imported(file: Path, folder: Path) -> tuple[Scenario, list[Any], str]:
    """Scenario and plugins of the stack of an imported file, and what stands on stderr."""
    done = call("scenarios", "import", str(file), "-o", str(folder))
    assert done.code == 0, done.err
    found = resolve(read_draft(folder / f"{file.stem}.yaml"))
    point = list(found.points("cpu"))[-1]
    return point.scenario, [use.model_dump(mode="json") for use in point.stack.uses], done.err


def said(scenario: Scenario) -> dict[str, Any]:
    from accel_bench.scenario.draft import dotted

    sections = ("model", "adapter", "data", "optimizer", "train", "task")
    found = dict(dotted(scenario.model_dump(mode="json")))
    kept = {key: one for key, one in found.items() if key.partition(".")[0] in sections}
    return kept | {"measure.steps": scenario.measure.steps}


@pytest.mark.parametrize("program", ["trl", "axolotl", "llama-factory"])
def test_export_then_import_gives_the_same_scenario_for_what_both_know(
    program: str, tmp_path: Path
) -> None:
    source = tmp_path / "chats.yaml"
    source.write_text(WORK)
    file = tmp_path / f"{program}.yaml"
    command = ("export", "compiled", "--to", program, "--scenario", str(source), "-o", str(file))
    assert call(*command).code == 0
    scenario, uses, told = imported(file, tmp_path / "ours")
    assert ("is named" in told) == (program == "llama-factory")
    written = list(resolve(read_draft(source)).points("cpu"))[-1]
    wanted, found = said(written.scenario), said(scenario)
    unknown = UNKNOWN[program]
    for key, value in wanted.items():
        if key not in unknown:
            assert found.get(key) == value, key
    assert [use["use"] for use in uses] == ["torch-compile"]


AXOLOTL = {
    "base_model": "org/model",
    "datasets": [{"path": "org/data", "type": "alpaca"}],
    "adapter": "qlora",
    "sequence_len": 2048,
    "sample_packing": True,
    "lora_r": 32,
    "lora_alpha": 16,
    "lora_target_linear": True,
    "micro_batch_size": 2,
    "optimizer": "adamw_torch",
    "lr_scheduler": "cosine",
    "learning_rate": 2e-4,
    "bf16": True,
    "num_epochs": 3,
    "val_set_size": 0.1,
    "wandb_project": None,
}


def test_what_an_axolotl_file_holds_beside_a_scenario_is_listed_with_the_reason(
    tmp_path: Path,
) -> None:
    file = tmp_path / "ax.yaml"
    file.write_text(yaml.safe_dump(AXOLOTL))
    scenario, _, told = imported(file, tmp_path / "ours")
    assert (scenario.model.id, scenario.model.weights) == ("org/model", "pretrained")
    options = scenario.adapter.options
    assert (options["r"], options["alpha"], options["target_modules"]) == (32, 16, "all-linear")
    assert (scenario.data.use, scenario.data.sequence_length) == ("instructions", 2048)
    assert "left out: datasets, val_set_size (no installed plugin is its counterpart)" in told
    assert "left out: lr_scheduler (here it is constant)" in told
    assert "ax.yaml: no data file is named" in told and "no model" not in told
    assert "wandb_project" not in told


def test_saved_arguments_are_read_as_json(tmp_path: Path) -> None:
    file = tmp_path / "training_args.json"
    saved = {"per_device_train_batch_size": 4, "learning_rate": 1e-4, "bf16": True, "max_steps": -1,
             "gradient_accumulation_steps": 8, "optim": "adamw_torch_fused", "torch_compile": True,
             "torch_compile_backend": "inductor", "lr_scheduler_type": "linear"}  # fmt: skip
    file.write_text(json.dumps(saved))
    scenario, uses, told = imported(file, tmp_path / "ours")
    assert scenario.train.micro_batch_size == 4 and scenario.train.gradient_accumulation == 8
    assert scenario.train.precision == "bf16-autocast"
    assert scenario.optimizer.options["fused"] is True
    assert uses[0]["use"] == "torch-compile"
    assert "training_args.json: no model is named" in told and "no data file" in told
    assert "lr_scheduler_type (here it is constant)" in told


def test_a_pickle_is_refused_and_not_read(tmp_path: Path) -> None:
    file = tmp_path / "training_args.bin"
    ran = tmp_path / "ran"

    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (ran,))

    file.write_bytes(pickle.dumps(Bomb()))
    done = call("scenarios", "import", str(file), "-o", str(tmp_path / "ours"))
    assert done.code == 2
    assert "is a pickle" in done.err and "to_json_string" in done.err
    assert not ran.exists()


def test_an_adapter_is_read_from_its_configuration(tmp_path: Path) -> None:
    file = tmp_path / "adapter_config.json"
    saved = {"peft_type": "LORA", "base_model_name_or_path": "org/model", "r": 4, "bias": "none"}
    saved |= {"lora_alpha": 8, "lora_dropout": 0.1, "target_modules": ["q"], "use_dora": True}
    file.write_text(json.dumps(saved))
    scenario, _, told = imported(file, tmp_path / "ours")
    assert scenario.model.id == "org/model"
    lora = {"r": 4, "alpha": 8, "dropout": 0.1, "target_modules": ["q"]}
    assert scenario.adapter.options == lora
    assert "left out: use_dora" in told and "bias" not in told


def test_many_steps_are_no_steps_of_a_benchmark(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(yaml.safe_dump({"model_name_or_path": "org/model", "max_steps": 50_000}))
    scenario, _, told = imported(file, tmp_path / "ours")
    assert scenario.measure.steps == 20
    assert "max_steps" in told


def read(tmp_path: Path, text: str) -> ReadConfiguration:
    """What a file of a program's own text says."""
    file = tmp_path / "a.yaml"
    file.write_text(text)
    found = read_configuration(file)
    assert found is not None
    return found


def test_the_precision_of_an_axolotl_file_survives_null_and_auto(tmp_path: Path) -> None:
    for precision in ("bf16: auto\nfp16:", "bf16: true\nfp16:\ntf32: false", "seed: 1"):
        found = read(tmp_path, f"base_model: org/m\nadapter: lora\n{precision}\n")
        assert found.settings["train.precision"] == "bf16-autocast", precision
        assert found.settings["model.dtype"] == "bfloat16"
        assert not found.left_out
    assert found.settings["train.matmul_precision"] == "high"  # there tf32 is on unless it is off
    plain = read(tmp_path, "base_model: org/m\nbf16: false\nfloat32: true\ntf32: false\n")
    assert plain.settings["train.precision"] == "as-is"
    assert plain.settings["train.matmul_precision"] == "highest"


def test_defaults_of_axolotl_are_those_of_its_trainer(tmp_path: Path) -> None:
    found = read(tmp_path, "base_model: org/m\noptimizer: adamw_torch\n")
    assert found.settings["optimizer.weight_decay"] == 0.0


def test_what_stands_within_a_section_and_is_not_read_is_listed(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
base_model: org/m
datasets:
  - {path: a.jsonl, ds_type: json, type: chat_template, field_messages: turns, train_on_eos: all}
fsdp_version: 2
fsdp_config:
  auto_wrap_policy: TRANSFORMER_BASED_WRAP
  reshard_after_forward: true
  offload_params: false
  state_dict_type: SHARDED_STATE_DICT
""",
    )
    assert found.settings["data.messages"] == "turns"
    assert {"datasets[0].train_on_eos", "fsdp_config.state_dict_type"} <= found.left_out.keys()


def test_two_fields_of_a_prompt_come_back_as_they_were_written(tmp_path: Path) -> None:
    source = tmp_path / "rows.yaml"
    fields = "prompt: [instruction, input], answer: output"
    source.write_text(WORK.replace("messages: messages", fields))
    file = tmp_path / "axolotl.yaml"
    command = ("export", "baseline", "--to", "axolotl", "--scenario", str(source), "-o", str(file))
    assert call(*command).code == 0
    (written,) = yaml.safe_load(file.read_text())["datasets"]
    assert written["type"] == {
        "field_instruction": "instruction",
        "field_input": "input",
        "field_output": "output",
        "format": "{instruction}\n\n{input}",
        "no_input_format": "{instruction}",
    }
    found = read_configuration(file)
    assert found is not None and not found.left_out
    assert found.settings["data.prompt"] == ["instruction", "input"]
    one = written["type"] | {"format": "{instruction}"}
    del one["field_input"]
    text = yaml.safe_dump({"base_model": "org/m", "datasets": [{**written, "type": one}]})
    settings = read(tmp_path, text).settings
    assert settings["data.prompt"] == "instruction" and "data.instruction" not in settings


def test_whole_samples_in_a_row_are_the_padding_free_plugin(tmp_path: Path) -> None:
    for text in ("base_model: org/m\nsample_packing: true\n", "use_peft: true\npacking: true\n"):
        found = read(tmp_path, text)
        assert found.uses == [{"use": "padding-free", "sampler": "multipack"}]
        assert not found.settings.get("data.packing") and not found.left_out


def test_a_default_that_follows_from_another_setting_is_read(tmp_path: Path) -> None:
    found = read(tmp_path, "stage: sft\nfinetuning_type: lora\nlora_rank: 64\n")
    assert (found.settings["adapter.r"], found.settings["adapter.alpha"]) == (64, 128)
    said = read(tmp_path, "stage: sft\nfinetuning_type: lora\nlora_rank: 64\nlora_alpha: 16\n")
    assert said.settings["adapter.alpha"] == 16


def test_both_names_of_checkpointing_are_read(tmp_path: Path) -> None:
    for name in ("activation_checkpointing", "gradient_checkpointing"):
        found = read(tmp_path, f"model_name_or_path: org/m\nuse_peft: true\n{name}: false\n")
        assert found.settings["train.gradient_checkpointing"] is False
    assert read(tmp_path, "use_peft: true\n").settings["train.gradient_checkpointing"] is True


def test_a_number_of_steps_takes_no_other_setting_with_it(tmp_path: Path) -> None:
    found = read(tmp_path, "base_model: org/m\nadapter: lora\nlora_r: 2048\nmax_steps: 2048\n")
    assert found.left_out == {"max_steps": "a benchmark takes some steps"}
    assert found.settings["adapter.r"] == 2048


@pytest.mark.parametrize("program", ["use_peft: true", "base_model: org/m\nadapter: lora"])
def test_float16_is_not_taken_for_bfloat16(program: str, tmp_path: Path) -> None:
    found = read(tmp_path, f"{program}\nfp16: true\n")
    assert found.settings["train.precision"] == "fp16-autocast"
    assert not found.left_out
    assert read(tmp_path, program).settings["train.precision"] == "bf16-autocast"


def test_a_null_of_trl_is_its_default(tmp_path: Path) -> None:
    found = read(tmp_path, "use_peft: true\nbf16: null\n")
    assert found.settings["train.precision"] == "bf16-autocast"


def test_preferences_keep_their_loss(tmp_path: Path) -> None:
    text = "model_name_or_path: org/m\nuse_peft: true\nbeta: 0.3\nloss_type: [sigmoid, sft]\n"
    found = read(tmp_path, text + "loss_weights: [1.0, 0.5]\n")
    assert found.settings["task.use"] == "dpo" and found.settings["task.beta"] == 0.3
    assert found.settings["task.nll_scale"] == 0.5


def test_null_leaves_a_number_at_its_default(tmp_path: Path) -> None:
    text = "base_model: org/m\nadapter: lora\nlora_r: 8\noptimizer: adamw_torch\n"
    found = read(tmp_path, text + "weight_decay:\nlora_dropout:\nmax_grad_norm:\n")
    assert found.settings["optimizer.weight_decay"] == 0.0
    assert found.settings["train.max_grad_norm"] == 1.0
    assert not found.left_out


def test_the_files_of_a_padding_free_training_are_read_back(tmp_path: Path) -> None:
    for more in ("max_length: null\npad_to_multiple_of: null\n", "max_length: 64\n", ""):
        found = read(tmp_path, f"use_peft: true\npadding_free: true\n{more}")
        assert found.uses == [{"use": "padding-free", "sampler": "same"}], more
        assert not found.left_out
    saved = "padding_free: false\nmax_length: null\npad_to_multiple_of: null\n"
    assert not read(tmp_path, f"use_peft: true\n{saved}").uses


FIRST = {
    "trl": "model_name_or_path: org/m\nuse_peft: true\n",
    "axolotl": "base_model: org/m\n",
    "llama-factory": "model_name_or_path: org/m\nstage: sft\nfinetuning_type: lora\n",
}
"""Lines by which the file of a program is known."""


@pytest.mark.parametrize(
    ("program", "text", "wanted"),
    [
        ("trl", "max_length: 64\npad_to_multiple_of: 8\n",
         {"sequence_length": 64, "padding": "longest"}),
        ("trl", "pad_to_multiple_of: 1024\n", {"sequence_length": 1024, "padding": "max_length"}),
        ("trl", "max_length: 64\n", {"sequence_length": 64, "padding": "longest"}),
        ("trl", "packing: true\nmax_length: 64\n", {"sequence_length": 64}),
        ("trl", "max_length: 64\nassistant_only_loss: true\n", {"messages": "messages"}),
        ("axolotl", "sample_packing: false\n", {"packing": False, "padding": "longest"}),
        ("axolotl", "pad_to_sequence_len: true\n", {"packing": False, "padding": "max_length"}),
        ("axolotl", "datasets: [{path: a, ds_type: json, type: completion}]\nsequence_len: 64\n"
         "sample_packing: false\npad_to_sequence_len: false\n", {"use": "text", "path": "a"}),
        ("llama-factory", "cutoff_len: 64\n", {"use": "instructions", "padding": "longest"}),
        ("llama-factory", "packing: true\nneat_packing: true\n", {"packing": None}),
    ],
)  # fmt: skip
def test_samples_are_as_long_and_padded_as_there(
    program: str, text: str, wanted: dict[str, Any], tmp_path: Path
) -> None:
    found = read(tmp_path, FIRST[program] + text)
    assert found.program == program
    assert {key: found.settings.get(f"data.{key}") for key in wanted} == wanted


@pytest.mark.parametrize(
    ("program", "text"),
    [("trl", "beta: 0.3\n"), ("axolotl", "rl: dpo\n"), ("llama-factory", "stage: dpo\n")],
)
def test_a_training_on_preferences_has_pairs_as_its_data(
    program: str, text: str, tmp_path: Path
) -> None:
    first = FIRST[program].replace("stage: sft\n", "")
    found = read(tmp_path, first + text)
    assert (found.settings["task.use"], found.settings["data.use"]) == ("dpo", "preferences")
    if program == "trl":
        assert found.settings["train.learning_rate"] == 1e-6, "2e-5 is the default of SFT"
    assert not found.left_out


@pytest.mark.parametrize("program", ["trl", "axolotl", "llama-factory"])
def test_pairs_come_back_as_they_were_written(program: str, tmp_path: Path) -> None:
    source = tmp_path / "pairs.yaml"
    data = "{use: preferences, source: path, path: a.jsonl, sequence_length: 64, padding: longest}"
    source.write_text(
        f"name: pairs\nmodel: {{id: org/m, weights: pretrained}}\ndata: {data}\n"
        "task: {use: dpo, beta: 0.3, reference_model: org/other}\nstacks: {baseline: []}\n"
    )
    done = call("export", "baseline", "--to", program, "--scenario", str(source))
    assert "#   task.reference_model: 'org/other' has no counterpart" in done.out
    settings = read(tmp_path, done.out).settings
    wanted = {"use": "preferences", "path": "a.jsonl", "sequence_length": 64, "padding": "longest"}
    if program == "llama-factory":
        del wanted["path"]
    assert {key: settings.get(f"data.{key}") for key in wanted} == wanted


@pytest.mark.parametrize("program", ["trl", "axolotl"])
@pytest.mark.parametrize(
    ("data", "builder"),
    [
        ("use: instructions, messages: messages, path: a.parquet", "parquet"),
        ("use: instructions, prompt: q, path: a.parquet", "parquet"),
        ("use: instructions, prompt: [q, r], path: a.parquet", "parquet"),
        ("use: instructions, prompt: q, path: a.jsonl", "json"),
        ("use: text, path: a.jsonl", "json"),
        ("use: text, path: a.parquet", "parquet"),
        ("use: text, path: a.md", "text"),
        ("use: preferences, path: a.parquet", "parquet"),
    ],
)
def test_a_file_of_data_has_the_builder_of_its_format_and_comes_back(
    program: str, data: str, builder: str, tmp_path: Path
) -> None:
    found = again_of(program, f"{{{data}, source: path, sequence_length: 64}}", tmp_path)
    (written,) = found["written"]["datasets"]
    assert written["path" if program == "trl" else "ds_type"] == builder
    path = data.rpartition(" ")[2]
    assert written["data_files" if program == "trl" else "path"] == path
    assert found["settings"]["data.path"] == path and found["settings"]["data.source"] == "path"
    assert ("a sample is a line of a.md there" in found["text"]) is (builder == "text")


@pytest.mark.parametrize("program", ["trl", "axolotl"])
@pytest.mark.parametrize("use", ["instructions", "text", "preferences"])
def test_a_folder_of_data_has_no_builder_and_is_named(
    program: str, use: str, tmp_path: Path
) -> None:
    found = again_of(program, f"{{use: {use}, source: path, path: saved}}", tmp_path)
    assert "datasets" not in found["written"]
    assert "#   saved is a folder: datasets takes" in found["text"]


def again_of(program: str, data: str, folder: Path) -> dict[str, Any]:
    """An exported file with these data, as text and as YAML, and the settings that come back."""
    task = "dpo" if "preferences" in data else "causal-lm"
    source = folder / "source.yaml"
    source.write_text(
        f"name: data\nmodel: {{id: org/m, weights: pretrained}}\ndata: {data}\ntask: {task}\n"
    )
    text = call("export", "baseline", "--to", program, "--scenario", str(source)).out
    settings = read(folder, text).settings
    return {"text": text, "written": yaml.safe_load(text), "settings": settings}


def test_a_training_on_documents_stays_one(tmp_path: Path) -> None:
    text = "model_name_or_path: org/m\nstage: pt\nfinetuning_type: full\ncutoff_len: 64\n"
    settings = read(tmp_path, text).settings
    assert (settings["data.use"], settings["data.packing"]) == ("text", True)
    settings = read(tmp_path, f"{text}packing: false\n").settings
    assert (settings["data.use"], settings["data.packing"]) == ("text", False)


@pytest.mark.parametrize(
    ("key", "betas"), [("adam_beta1", [0.5, 0.999]), ("adam_beta2", [0.9, 0.5])]
)
@pytest.mark.parametrize("program", [*FIRST])
def test_one_beta_has_the_default_of_the_other_beside_it(
    program: str, key: str, betas: list[float], tmp_path: Path
) -> None:
    found = read(tmp_path, f"{FIRST[program]}{key}: 0.5\n")
    assert found.settings["optimizer.betas"] == betas


def test_a_file_of_llama_factory_is_known_by_its_template(tmp_path: Path) -> None:
    text = "model_name_or_path: org/m\nfinetuning_type: lora\ntemplate: qwen\n"
    assert read(tmp_path, text).program == "llama-factory"


def test_spaces_in_a_list_of_names_belong_to_no_name(tmp_path: Path) -> None:
    found = read(tmp_path, FIRST["llama-factory"] + "lora_target: q_proj, v_proj\n")
    assert found.settings["adapter.target_modules"] == ["q_proj", "v_proj"]


@pytest.mark.parametrize(
    ("program", "text", "key", "option"),
    [
        ("trl", "dtype: auto\n", "dtype", "model.dtype"),
        ("trl", "datasets: [{path: json, data_files: [a, b]}]\n", "datasets", "data.path"),
        ("axolotl", "gradient_checkpointing: offload\n", "gradient_checkpointing",
         "train.gradient_checkpointing"),
        ("llama-factory", "lora_rank: '16'\n", "lora_rank", "adapter.r"),
    ],
)  # fmt: skip
def test_a_value_that_no_scenario_has_is_listed(
    program: str, text: str, key: str, option: str, tmp_path: Path
) -> None:
    found = read(tmp_path, FIRST[program] + text)
    assert option not in found.settings and "data.source" not in found.settings
    assert found.left_out[key].endswith(f"is no value of {option}")


def test_a_value_that_no_plugin_has_is_listed(tmp_path: Path) -> None:
    text = "torch_compile: true\ntorch_compile_mode: nonsense\n"
    found = read(tmp_path, FIRST["trl"] + text)
    assert found.uses == [{"use": "torch-compile", "backend": "inductor", "scope": "model"}]
    assert found.left_out["torch_compile_mode"] == "'nonsense' is no value of mode"


def test_a_zero_that_is_not_read_is_listed(tmp_path: Path) -> None:
    text = "base_model: org/m\noptimizer: paged_adamw_8bit\nweight_decay: 0.0\n"
    assert "weight_decay" in read(tmp_path, text).left_out


def test_the_whole_model_is_compiled_as_there(tmp_path: Path) -> None:
    found = read(tmp_path, FIRST["trl"] + "torch_compile: true\ntorch_compile_backend: eager\n")
    assert found.uses == [{"use": "torch-compile", "backend": "eager", "scope": "model"}]
