"""Another program's scenarios are converted to the same experiments; wrong names are reported."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from accel_bench_interop.fms_scenarios import SweepMatrix, read_folder
from accel_bench_interop.ipfs_config import read_config
from accel_bench_interop.mapping import Findings, read_mapping
from accel_bench_interop.scenario_writer import NativeScenario, stack_text, write_files
from cli.program import call

from accel_bench.errors import ImportFileError
from accel_bench.planning.resolve import resolve
from accel_bench.scenario.find import read_draft
from accel_bench.scenario.sweep import Point

from .fms_folder import CONTENTS, DEFAULTS, GPTQ, SCENARIOS, write_folder

MODELS = (
    "mistralai/Mistral-7B-v0.1",
    "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "NousResearch/Llama-2-70b-hf",
)

CONFIG: dict[str, Any] = {
    "batch_sizes": [1, 4, 16, 32, 64],
    "sequence_lengths": [32, 128, 256],
    "warmup_iterations": 5,
    "training_iterations": 50,
    "learning_rates": [1e-5, 5e-5, 1e-4],
    "optimizers": ["adam", "adamw"],
    "model_families": {
        "embedding": ["bert-base-uncased", "distilbert-base-uncased"],
        "text_generation": ["gpt2", "facebook/opt-125m"],
    },
    "hardware_types": ["cpu", "cuda", "mps"],
    "mixed_precision": True,
    "gradient_accumulation_steps": [1, 2, 4, 8],
    "distributed_configs": [{"world_size": 1, "backend": "nccl"}],
}
"""Example from the training guide."""


def converted(
    folder: Path, matrix: SweepMatrix | None = None, **changed: str
) -> tuple[Path, Findings]:
    """Convert the folder; return where the native files are, and what was found."""
    findings = Findings()
    source = write_folder(folder / "theirs", **changed)
    scenarios, stacks = read_folder(source, matrix or SweepMatrix(), findings)
    files = {f"{one.name}.yaml": one.text() for one in scenarios}
    files |= {f"stacks/{name}.yaml": stack_text(uses, "x") for name, uses in stacks.items()}
    write_files(folder / "ours", files)
    return folder / "ours", findings


def points(path: Path) -> list[Point]:
    """Return every experiment of a converted file, as run on GPUs."""
    return list(resolve(read_draft(path)).points("cuda"))


def test_the_set_of_experiments_is_the_same(tmp_path: Path) -> None:
    ours, findings = converted(tmp_path)
    assert findings.wrong == []
    found = [
        (
            point.stack.name,
            point.scenario.model.id,
            point.scenario.train.micro_batch_size,
            point.scenario.resources.devices,
        )
        for point in points(ours / "accelerated-peft-gptq.yaml")
    ]
    # As the program multiplies them: its batch is divided by the devices.
    theirs = [
        ("accelerated-peft-autogptq", model, size // devices, devices)
        for model, size, devices in itertools.product(MODELS, (4, 8), (1, 2))
    ]
    assert sorted(found) == sorted(theirs)


def test_arguments_and_defaults_become_settings(tmp_path: Path) -> None:
    text = SCENARIOS + "data_processing: {dataset_name: a}\n"
    ours, findings = converted(tmp_path, scenarios=text)
    scenario = points(ours / "accelerated-peft-gptq.yaml")[0].scenario
    assert scenario.train.precision == "fp16-autocast"
    assert (scenario.train.learning_rate, scenario.train.max_grad_norm) == (2e-4, 1.0)
    assert scenario.train.gradient_checkpointing
    assert (scenario.model.dtype, scenario.model.weights) == ("float16", "pretrained")
    assert scenario.model.attention == "flash_attention_2"
    assert scenario.data.sequence_length == 4096
    assert scenario.optimizer.options == {"weight_decay": 0.01, "eps": 1e-4}
    assert scenario.adapter.use == "lora"
    assert scenario.adapter.options["target_modules"] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    assert scenario.measure.steps == 20
    # A scenario's own argument wins over the default, and only there.
    mixture = points(ours / "mixture.yaml")[0].scenario
    assert mixture.train.gradient_accumulation == 16
    assert scenario.train.gradient_accumulation == 1
    left_out = "\n".join(findings.lines())
    assert "warmup_steps (the learning rate of a scenario is constant)" in left_out
    assert "response_template" in left_out
    assert "data_processing" in left_out


def test_sample_configurations_become_stacks_and_a_slow_scenario_stays_slow(
    tmp_path: Path,
) -> None:
    ours, findings = converted(tmp_path)
    file = resolve(read_draft(ours / "mixture.yaml")).scenario
    assert file.slow
    assert list(file.stacks) == ["baseline", "moe-ep1", "moe-padding-free"]
    assert file.stacks["baseline"].use == ()
    uses = [(use.use, use.options) for use in file.stacks["moe-padding-free"].use]
    assert uses == [("moe", {"experts": "grouped_mm"}), ("padding-free", {"sampler": "multipack"})]
    gptq = resolve(read_draft(ours / "accelerated-peft-gptq.yaml")).scenario
    (use,) = gptq.stacks["accelerated-peft-autogptq"].use
    assert (use.use, use.options) == ("autogptq", {"backend": "triton", "from_quantized": True})
    # What has no counterpart is said, with the place.
    (line,) = findings.changed
    assert "moe-padding-free-sample-configuration.yaml:11:9: ep_degree: 8 has no" in line


WRONG = {
    "a short name that leads nowhere": (
        {"scenarios": SCENARIOS.replace("- accelerated-peft-autogptq", "- accelerated-autogptq")},
        "scenarios.yaml:6:9: 'accelerated-autogptq' is the shortname of no configuration",
    ),
    "a file that is not there": (
        {"CONTENTS": CONTENTS.replace("gptq-sample", "gone-sample")},
        "CONTENTS.yaml:2:5: 'accelerated-peft-autogptq' leads nowhere: there is no file gone-",
    ),
    "a file that is not listed": (
        {"CONTENTS": CONTENTS[: CONTENTS.index("  - shortname: moe-padding-free")]},
        "moe-padding-free-sample-configuration.yaml: CONTENTS.yaml does not list it",
    ),
    "a short name that stands twice": (
        {"CONTENTS": CONTENTS.replace("shortname: moe-padding-free", "shortname: moe-ep1")},
        "CONTENTS.yaml:8:5: the shortname 'moe-ep1' stands here a second time",
    ),
    "a misspelt argument": (
        {"scenarios": SCENARIOS.replace("lora_alpha", "lora_alpa")},
        "scenarios.yaml:13:7: 'lora_alpa' is misspelt, and was taken for 'lora_alpha'",
    ),
    "a misspelt default": (
        {"defaults": DEFAULTS.replace("adam_epsilon", "adam_epsilonn")},
        "defaults.yaml:7:1: 'adam_epsilonn' is misspelt",
    ),
    "an unknown argument": (
        {"defaults": DEFAULTS + "neftune: 5\n"},
        "defaults.yaml:9:1: nothing is called 'neftune'",
    ),
    "a misspelt key of a scenario": (
        {"scenarios": SCENARIOS.replace("framework_config:", "framework_confg:", 1)},
        "scenarios.yaml:5:5: 'framework_confg' is misspelt",
    ),
    "a misspelt stanza": (
        {"gptq_sample_configuration": GPTQ.replace("auto_gptq", "auto_gpqt")},
        "gptq-sample-configuration.yaml:4:7: 'auto_gpqt' is misspelt",
    ),
    "a misspelt key of a stanza": (
        # As it stands in published configurations.
        {
            "gptq_sample_configuration": GPTQ
            + "      fused_ops_and_kernels:\n        fast_rsm_layernorm: true\n"
        },
        "gptq-sample-configuration.yaml:8:9: 'fast_rsm_layernorm' is misspelt, and was taken for "
        "'fast_rms_layernorm'",
    ),
    "a misspelt section": (
        {"gptq_sample_configuration": GPTQ.replace("peft", "pfet")},
        "gptq-sample-configuration.yaml:2:3: nothing is called 'pfet'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_every_name_that_is_misspelt_or_leads_nowhere_is_reported(
    case: str, tmp_path: Path
) -> None:
    changed, message = WRONG[case]
    _, findings = converted(tmp_path, **changed)
    assert [line for line in findings.wrong if message in line], findings.wrong


def test_a_misspelt_name_keeps_its_value(tmp_path: Path) -> None:
    changed = {
        "scenarios": SCENARIOS.replace("lora_alpha: 16", "lora_alpa: 32").replace(
            "framework_config:", "framework_confg:", 1
        ),
        "gptq_sample_configuration": GPTQ.replace("auto_gptq", "auto_gpqt"),
    }
    ours, _ = converted(tmp_path, **changed)
    point = points(ours / "accelerated-peft-gptq.yaml")[0]
    assert point.stack.name == "accelerated-peft-autogptq"
    assert point.scenario.adapter.options["alpha"] == 32
    assert point.stack.uses[0].options["backend"] == "triton"


def test_the_matrix_is_the_user_s_and_accelerate_s_file_says_what_shares_the_work(
    tmp_path: Path,
) -> None:
    matrix = SweepMatrix(batch_sizes=(2,), devices=(1, 4), lengths=(512, 1024))
    ours, findings = converted(tmp_path, matrix, accelerate="distributed_type: FSDP\n")
    assert any("a batch of 2 on 4 devices leaves nothing" in line for line in findings.changed)
    found = points(ours / "accelerated-peft-gptq.yaml")
    assert {point.scenario.data.sequence_length for point in found} == {512, 1024}
    assert {point.scenario.parallel.use for point in found} == {"none"}
    other, _ = converted(tmp_path / "2", SweepMatrix(), accelerate="distributed_type: FSDP\n")
    uses = {
        (point.scenario.resources.devices, point.scenario.parallel.use)
        for point in points(other / "accelerated-peft-gptq.yaml")
    }
    assert uses == {(1, "none"), (2, "mesh")}


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    converted(tmp_path)
    before = {path: path.read_text() for path in (tmp_path / "ours").rglob("*.yaml")}
    with pytest.raises(ImportFileError, match="nothing is overwritten"):
        converted(tmp_path, scenarios=SCENARIOS.replace("2e-4", "1"))
    assert {path: path.read_text() for path in (tmp_path / "ours").rglob("*.yaml")} == before


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scenarios": "scenarios: 1\n"}, "expected a list below `scenarios`"),
        ({"scenarios": "scenarios: [{name: a}]\n"}, "with `name` and `arguments`"),
        ({"scenarios": "scenarios: [{name: a, arguments: {r: 1}}]\n"}, "names a model"),
        ({"CONTENTS": "framework_configs: 1\n"}, "expected a list below `framework_configs`"),
        ({"CONTENTS": "framework_configs: [{shortname: a}]\n"}, "`shortname` and `filename`"),
        (
            {"CONTENTS": "framework_configs: [{shortname: a/b, filename: c}]\n"},
            "can be no name of a stack",
        ),
        ({"gptq_sample_configuration": "plugins: 1\n"}, "expected a mapping below `plugins`"),
    ],
)
def test_a_file_of_another_form_is_refused_with_its_place(
    changed: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ImportFileError, match=message):
        converted(tmp_path, **changed)
    with pytest.raises(ImportFileError, match=r"there is no scenarios.yaml"):
        read_folder(tmp_path / "nowhere", SweepMatrix(), Findings())


def test_every_use_of_the_table_is_a_plugin_that_is_shipped() -> None:
    from accel_bench.plugins.shipped import extras

    uses = {stanza.use for stanza in read_mapping("fms-acceleration").stanzas.values()}
    assert uses <= extras().keys()


def configured(tmp_path: Path, **changed: Any) -> tuple[list[NativeScenario], Findings]:
    """Convert the training guide's configuration."""
    path = tmp_path / "training_config.json"
    path.write_text(json.dumps({**CONFIG, **changed}))
    findings = Findings()
    return read_config(path, findings), findings


def test_the_guide_s_configuration_becomes_a_scenario_for_each_hardware(tmp_path: Path) -> None:
    small = {"batch_sizes": [1, 4], "gradient_accumulation_steps": [1]}
    scenarios, findings = configured(tmp_path, **small)
    assert [one.name for one in scenarios] == [
        f"training_config-{family}-{device}"
        for family in ("embedding", "text_generation")
        for device in ("cpu", "cuda", "mps")
    ]
    assert [one.experiments for one in scenarios] == [2 * 3 * 3 * 2 * 2] * 6
    write_files(tmp_path, {f"{one.name}.yaml": one.text() for one in scenarios})
    pairs = points(tmp_path / "training_config-embedding-cuda.yaml")[0].scenario
    assert (pairs.task.use, pairs.data.use) == ("embedding", "synthetic-pairs")
    assert (pairs.model.id, pairs.data.sequence_length) == ("bert-base-uncased", 32)
    found = points(tmp_path / "training_config-text_generation-cuda.yaml")
    assert len(found) == scenarios[-1].experiments
    first = found[0].scenario
    assert (first.measure.warmup, first.measure.steps) == (5, 50)
    assert (first.resources.device, first.train.precision) == ("cuda", "bf16-autocast")
    assert {point.scenario.optimizer.use for point in found} == {"adam", "adamw"}
    assert first.resources.backend == "nccl"
    on_cpu = points(tmp_path / "training_config-text_generation-cpu.yaml")[0].scenario
    assert on_cpu.resources.backend is None
    assert findings.lines() == [
        f"left out: distributed_configs.backend (resources.backend has no 'nccl' on {device}, "
        "which takes its own)"
        for device in ("cpu", "mps")
    ]


def test_each_number_of_processes_keeps_its_backend(tmp_path: Path) -> None:
    groups = [
        {"world_size": 1},
        {"world_size": 2, "backend": "gloo"},
        {"world_size": 4, "backend": "nccl"},
        {"world_size": 4, "backend": "smoke"},
    ]
    (one,), findings = configured(
        tmp_path,
        distributed_configs=groups,
        model_families={"text_generation": ["gpt2"]},
        hardware_types=["cuda"],
    )
    write_files(tmp_path, {"groups.yaml": one.text()})
    found = [point.scenario.resources for point in points(tmp_path / "groups.yaml")]
    assert one.experiments == len(found)
    assert {(resources.devices, resources.backend) for resources in found} == {
        (1, None),
        (2, "gloo"),
        (4, "nccl"),
        (4, None),
    }
    assert "'smoke' is no backend of torch's process groups" in findings.lines()[0]


def test_families_of_the_configuration_become_tasks_or_are_reported(tmp_path: Path) -> None:
    families = {"vision": ["vit-base-patch16-224"], "audio": ["wav2vec2-base"]}
    (one,), findings = configured(tmp_path, model_families=families, hardware_types=["cuda", "tpu"])
    assert (one.name, one.experiments) == ("training_config-vision-cuda", 5 * 3 * 2 * 4)
    write_files(tmp_path, {"vision.yaml": one.text()})
    first = points(tmp_path / "vision.yaml")[0].scenario
    assert (first.task.use, first.data.use) == ("image-classification", "images")
    unknown, hardware = findings.changed
    assert "'audio' was left out with wav2vec2-base: the file does not say which task" in unknown
    assert "'tpu' has no counterpart" in hardware
    assert "left out: sequence_lengths (samples of vision have no length)" in findings.lines()


def test_a_misspelt_key_of_the_configuration_is_reported(tmp_path: Path) -> None:
    config = {**CONFIG, "batch_size": CONFIG["batch_sizes"]}
    del config["batch_sizes"]
    path = tmp_path / "c.json"
    path.write_text(json.dumps(config))
    findings = Findings()
    first = read_config(path, findings)[0]
    assert "'batch_size' is misspelt, and was taken for 'batch_sizes'" in findings.wrong[0]
    assert first.sweep["train.micro_batch_size"] == [1, 4, 16, 32, 64]
    with pytest.raises(ImportFileError, match="it names no model of a family that is trained here"):
        configured(tmp_path, model_families={"audio": ["whisper"]})
    with pytest.raises(ImportFileError, match="names no hardware"):
        configured(tmp_path, hardware_types=["tpu"])


def test_a_file_that_is_not_there_and_one_of_no_known_program_are_named(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("colour: red\n")
    for name, said in (("gone.yaml", "no such file"), ("other.yaml", "axolotl: base_model")):
        done = call("scenarios", "import", str(tmp_path / name), "-o", str(tmp_path / "ours"))
        assert done.code == 2 and said in done.err
