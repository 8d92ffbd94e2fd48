"""bitsandbytes: models train, only adapters learn, checkpoints restore the model."""

import gc
import json
import logging
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_bench_bitsandbytes import CAST_LOGGER, BitsAndBytes, optimizer_arguments
from cli.program import call
from several_ranks.scenarios import STARTS

from accel_bench import Device, Run, load_base_model
from accel_bench.analysis.checks.training import compare_training
from accel_bench.documents.load import load_file
from accel_bench.documents.presets import find_presets
from accel_bench.errors import PluginError, ScenarioError
from accel_bench.modeling.checkpointing import enable_gradient_checkpointing
from accel_bench.plugins.manager import activate
from accel_bench.scenario.models import Stack, StackEntry
from accel_bench.scenario.uses import Use
from accel_bench.testing import (
    check_plugin,
    close_run,
    evidence_of,
    make_experiment,
    make_machine,
    make_run,
    run_plugin,
    run_scenario,
)

MIXTRAL = {
    "id": "mixtral-8x7b",
    "dtype": "bfloat16",
    "overrides": {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "vocab_size": 128,
    },
}
GPT2 = {
    "id": "gpt2",
    "overrides": {
        "n_layer": 2,
        "n_embd": 64,
        "n_head": 2,
        "vocab_size": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
}

# What torch and the libraries that PEFT imports say of themselves is not ours to mend.
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"),
    pytest.mark.filterwarnings("ignore:`torch.jit"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*register_constant.*"),
]


def small(**settings: Any) -> dict[str, Any]:
    """A configuration of the small llama with two layers."""
    model = {"id": "tiny-llama-cpu", "dtype": "bfloat16", "overrides": {"num_hidden_layers": 2}}
    return {"model": model, "data": {"sequence_length": 32}, **settings}


def make_plugin(**options: Any) -> BitsAndBytes:
    return BitsAndBytes(BitsAndBytes.Options(**options), "bitsandbytes")


def load(folder: Path, options: dict[str, Any], **settings: Any) -> tuple[BitsAndBytes, Run]:
    """A plugin that has loaded its model."""
    plugin, run = make_plugin(**options), make_run(folder, small(**settings))
    plugin.prepare_process(run)
    run.model = plugin.load_model(run)
    return plugin, run


def losses(model: Any, steps: int = 10) -> list[float]:
    """Losses of LoRA on one fixed batch."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    targets = ["c_attn"] if "GPT2" in type(model).__name__ else ["q_proj", "v_proj"]
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=targets)).train()
    tokens = torch.arange(64).reshape(2, 32)
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=1e-2)
    found = []
    for _ in range(steps):
        loss = adapted(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        found.append(loss.detach().item())
        if len(found) < steps:
            optimizer.zero_grad()
    return found


def logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Logits without dropout, by the kernels of training.

    Those of inference round scales to bfloat16 on processors that compute in it.
    """
    for module in model.train(False).modules():
        module.training = "4bit" in type(module).__name__
    return model(input_ids=tokens).logits


def metrics_of(run):
    return [metric for _, report in run.metric_callbacks for metric in report(None)]


@pytest.mark.parametrize(
    "options",
    [
        {"quant_type": "nf4"},
        {"quant_type": "nf4", "double_quant": True},
        {"quant_type": "fp4", "quant_storage": "bfloat16"},
        {"quant_type": "nf4", "prepare": "peft"},
        {"quant_type": "int8"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_the_loss_falls_and_gradients_reach_the_adapters_and_nothing_else(tmp_path, options):
    _, run = load(tmp_path, options)
    found = losses(run.model)
    assert found[-1] < found[0] - 0.1
    for name, parameter in run.model.named_parameters():
        assert parameter.requires_grad == ("lora_" in name), name
        assert (parameter.grad is not None) == ("lora_" in name), name


@pytest.mark.parametrize(
    "options, most",
    [
        ({"quant_type": "nf4"}, 0.40),
        ({"quant_type": "nf4", "double_quant": True}, 0.40),
        ({"quant_type": "fp4", "quant_storage": "float32"}, 0.40),
        ({"quant_type": "int8"}, 0.55),
    ],
)
def test_quantized_layers_take_the_bytes_that_they_promise(tmp_path, options, most):
    _, run = load(tmp_path, options)
    evidence = evidence_of(run)
    assert json.loads(json.dumps(evidence)) == evidence
    assert evidence["quantized_modules"] == 14
    assert evidence["bits"] == (8 if options["quant_type"] == "int8" else 4)
    stored, whole = evidence["quantized_bytes"], evidence["quantized_bytes_in_bfloat16"]
    # Scales and, in 4 bits, a code book for each layer are among them.
    assert evidence["bits"] / 16 < stored / whole <= most
    assert evidence["quantized_share_of_blocks"] > 0.99
    assert evidence["upcast_modules"] == {}
    (metric,) = metrics_of(run)
    assert (metric.name, metric.unit) == ("quantize_seconds", "seconds")
    assert metric.value > 0


def test_peft_stores_in_float32_all_that_is_not_quantized(tmp_path):
    _, run = load(tmp_path, {"prepare": "peft"})
    evidence = evidence_of(run)
    assert set(evidence["upcast_modules"]) == {
        "embed_tokens",
        "input_layernorm",
        "post_attention_layernorm",
        "norm",
        "lm_head",
    }
    assert {p.dtype for p in run.model.parameters()} == {torch.float32, torch.uint8}


def test_the_quantized_weights_are_those_of_the_plain_model(tmp_path):
    from bitsandbytes.functional import dequantize_4bit

    plain = load_base_model(make_run(tmp_path, small())).model.layers[1].mlp.down_proj.weight
    _, run = load(tmp_path, {})
    packed = run.model.model.layers[1].mlp.down_proj.weight
    restored = dequantize_4bit(packed.data, packed.quant_state)
    assert (restored.float() - plain.float()).norm() < 0.12 * plain.float().norm()


def test_a_matrix_that_the_processor_gives_back_wrong_is_refused():
    from accel_bench_bitsandbytes.impl import linear_4bit
    from bitsandbytes.functional import dequantize_4bit

    options = BitsAndBytes.Options(quant_type="nf4")
    weight = torch.randn(88, 32, generator=torch.Generator().manual_seed(0))
    packed = linear_4bit(torch.randn(64, 64), options, torch.float32).weight
    try:
        made = linear_4bit(weight, options, torch.float32).weight
    except PluginError as error:
        assert "rows of 32" in str(error)
        assert "blocks of 64" in str(error)
    else:
        error = dequantize_4bit(made.data, made.quant_state) - weight
        assert error.norm() < 0.12 * weight.norm()
    assert dequantize_4bit(packed.data, packed.quant_state).shape == (64, 64)


def count_in_full(shape: tuple[int, ...]) -> int:
    """Return the number of parameters of a shape in this process."""
    gc.collect()
    return sum(type(t) is torch.nn.Parameter and t.shape == shape for t in gc.get_objects())


def test_no_layer_is_kept_in_full_precision_beside_its_quantized_one(tmp_path):
    shape = (384, 128)
    before = count_in_full(shape)  # Compiled code of other tests may hold some.
    plain = load_base_model(make_run(tmp_path, small()))
    assert count_in_full(shape) == before + 4
    del plain
    _, run = load(tmp_path, {})
    assert evidence_of(run)["quantized_modules"] == 14
    assert count_in_full(shape) <= before


@pytest.mark.parametrize("model", [None, GPT2], ids=["llama", "gpt2"])
@pytest.mark.parametrize(
    "options",
    [
        {"quant_type": "nf4", "double_quant": True},
        {"quant_type": "fp4", "quant_storage": "bfloat16"},
        {"quant_type": "int8"},
    ],
    ids=lambda options: options["quant_type"],
)
def test_a_saved_checkpoint_gives_the_same_logits(tmp_path, options, model):
    from transformers import AutoModelForCausalLM

    _, run = load(tmp_path, options, **({"model": model} if model else {}))
    tokens = torch.arange(64).reshape(2, 32)
    before = logits(run.model, tokens)
    run.model.save_pretrained(tmp_path / "saved")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=run.model.dtype)
    assert torch.equal(logits(loaded, tokens), before)
    kinds = [sorted(type(m).__name__ for m in found.modules()) for found in (loaded, run.model)]
    assert kinds[0] == kinds[1]


def test_a_model_that_is_quantized_already_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "gptq"}}')
    experiment = make_run(tmp_path, small(model={"id": str(tmp_path)})).experiment
    (reason,) = make_plugin().check_scenario(experiment, make_machine())
    assert "quantized already" in reason


def test_experts_that_are_one_tensor_are_quantized_too_and_trained_through(tmp_path):
    _, run = load(tmp_path, {}, model=MIXTRAL)
    evidence = evidence_of(run)
    assert evidence["quantized_expert_modules"] == 2
    assert evidence["quantized_share_of_blocks"] > 0.99
    assert evidence["module_classes"]["ParametrizedMixtralExperts"] == 2
    assert evidence["quantized_elements"] > evidence["quantized_expert_elements"] > 0
    assert evidence["quantized_bytes"] <= 0.4 * evidence["quantized_bytes_in_bfloat16"]
    enable_gradient_checkpointing(run.model)
    found = losses(run.model)
    assert found[-1] < found[0]
    # What a forward unpacks does not stay in torch's cache of parametrizations.
    assert torch.nn.utils.parametrize._cache == {}


@pytest.mark.parametrize(
    "option, value", [("quant_storage", "bfloat16"), ("compute_dtype", "float16")]
)
def test_an_option_that_does_not_reach_experts_is_refused_for_them(tmp_path, option, value):
    with pytest.raises(PluginError, match=f"{option} does not reach the experts of model"):
        load(tmp_path, {option: value}, model=MIXTRAL)


def test_int8_leaves_experts_alone_and_says_which_share_that_is(tmp_path):
    _, run = load(tmp_path, {"quant_type": "int8"}, model=MIXTRAL)
    assert 0 < evidence_of(run)["quantized_share_of_blocks"] < 0.5


@pytest.mark.parametrize("name, state", [("adamw_8bit", 2), ("lion_8bit", 1)])
def test_an_8_bit_optimizer_trains_and_shows_its_state(name, state):
    model = torch.nn.Linear(128, 64, bias=False)
    run = Run(None, Device("cpu"), Path(), Path(), model=model)  # type: ignore[arg-type]
    from accel_bench_bitsandbytes.impl import build_optimizer, describe_optimizer

    optimizer = build_optimizer(name, run.model.parameters(), 1e-2, {"weight_decay": 0.0})
    inputs = torch.ones(4, 128)
    first = model(inputs).square().mean()
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
    assert loss < first
    found = describe_optimizer(optimizer)
    assert found["state_elements"]["uint8"] == state * 128 * 64
    assert found["state_bytes"] < 2 * 4 * 128 * 64
    assert not found["paged"]


def test_an_optimizer_takes_its_settings_from_adamw_and_refuses_others():
    given = {"betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0.1, "fused": None}
    assert optimizer_arguments("adamw_8bit", "adamw", given) == {
        "betas": [0.8, 0.9],
        "eps": 1e-6,
        "weight_decay": 0.1,
    }
    assert optimizer_arguments("lion_8bit", "adamw", {}) == {"weight_decay": 0.01}
    with pytest.raises(ScenarioError, match="the scenario's optimizer is sgd"):
        optimizer_arguments("adamw_8bit", "sgd", {})
    with pytest.raises(ScenarioError, match="has no fused"):
        optimizer_arguments("adamw_8bit", "adamw", {"fused": True})
    with pytest.raises(ScenarioError, match="has no eps"):
        optimizer_arguments("lion_8bit", "adamw", {"eps": 1e-6})


def test_paged_optimizers_are_skipped_on_a_cpu(tmp_path):
    experiment = make_run(tmp_path, small()).experiment
    plugin = make_plugin(quant_type="none", optimizer="paged_adamw_8bit")
    (reason,) = plugin.check_scenario(experiment, make_machine())
    assert "use adamw_8bit" in reason


def test_what_it_claims_and_needs_follows_from_the_options():
    assert make_plugin().claims() == {"load_model"}
    assert make_plugin().needs_adapter
    alone = make_plugin(quant_type="none", optimizer="adamw_8bit")
    assert alone.claims() == {"build_optimizer"}
    assert not alone.needs_adapter
    assert make_plugin(optimizer="lion_8bit").claims() == {"load_model", "build_optimizer"}


@pytest.mark.parametrize(
    "options, field",
    [
        ({"quant_type": "int4"}, "quant_type"),
        ({"double_quant": 1}, "double_quant"),
        ({"quant_type": "int8", "double_quant": True}, "double_quant"),
        ({"quant_storage": "int8"}, "quant_storage"),
        ({"quant_type": "int8", "quant_storage": "bfloat16"}, "quant_storage"),
        ({"compute_dtype": "int8"}, "compute_dtype"),
        ({"quant_type": "int8", "compute_dtype": "bfloat16"}, "compute_dtype"),
        ({"llm_int8_threshold": 3.0}, "llm_int8_threshold"),
        ({"quant_type": "int8", "llm_int8_threshold": -1.0}, "llm_int8_threshold"),
        ({"prepare": "slow"}, "prepare"),
        ({"quant_type": "none", "prepare": "peft", "optimizer": "lion_8bit"}, "prepare"),
        ({"optimizer": "adam"}, "optimizer"),
        ({"quant_type": "none"}, "optimizer"),
        ({"quant": "nf4"}, "quant"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_option_names_the_plugin_and_the_field(options, field):
    stack = Stack(name="s", uses=(Use(use="bitsandbytes", options=options),))
    with pytest.raises(PluginError, match=rf"(?s)'bitsandbytes'.*{field}"):
        activate(make_experiment(small()).scenario, stack, allow_torch=True)


def test_two_plugins_that_load_the_model_are_refused_by_both_names():
    pytest.importorskip("accel_bench_torchao")
    uses = (Use(use="bitsandbytes"), Use(use="torchao"))
    with pytest.raises(PluginError, match="'bitsandbytes' and 'torchao' both claim load_model"):
        activate(make_experiment(small()).scenario, Stack(name="s", uses=uses), allow_torch=True)


def test_closing_gives_the_log_of_bitsandbytes_back(tmp_path):
    before = logging.getLogger(CAST_LOGGER).level
    _, run = load(tmp_path, {"quant_type": "int8"})
    assert logging.getLogger(CAST_LOGGER).level == logging.ERROR
    close_run(run)
    assert logging.getLogger(CAST_LOGGER).level == before


def test_the_plugin_is_imported_without_bitsandbytes_and_torch():
    program = (
        "import sys, accel_bench_bitsandbytes;"
        "sys.exit(bool({'torch', 'bitsandbytes', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_named_stacks_and_the_scenario_are_valid():
    stacks = find_presets("stacks")
    for name in (
        "nf4",
        "nf4-double",
        "fp4",
        "int8",
        "bnb-baseline",
        "bnb-baseline-autocast",
        "adamw-8bit",
    ):
        entry = StackEntry.model_validate_json(json.dumps(load_file(stacks[name]).data))
        assert entry.description
        (use,) = entry.use
        BitsAndBytes.Options.model_validate_json(json.dumps(use.options))
    assert "quantized-peft-bnb-cpu" in find_presets("scenarios")


@pytest.mark.parametrize(
    "options",
    [{"quant_type": "nf4", "prepare": "peft"}, {"quant_type": "none", "optimizer": "adamw_8bit"}],
    ids=["peft", "adamw_8bit"],
)
def test_a_run_is_ok(options):
    result = run_plugin("bitsandbytes", scenario={"model": {"dtype": "bfloat16"}}, **options)
    assert result.status == "ok", result.reasons
    evidence = result.ranks[0].evidence["bitsandbytes"]
    assert ("quantized_modules" in evidence) == (options["quant_type"] != "none")
    assert ("optimizer" in evidence) == ("optimizer" in options)


def test_a_state_of_8_bits_is_declared_and_said(tmp_path):
    path = tmp_path / "work.yaml"
    optimizer = {"use": "bitsandbytes", "quant_type": "none", "optimizer": "adamw_8bit"}
    work = {
        "model": {"id": "tiny-llama-cpu", "overrides": {"num_hidden_layers": 2}},
        "data": {"sequence_length": 32},
        "adapter": {"use": "lora", "r": 64},  # Of small tensors the state is not quantized.
        "resources": {"device": "cpu", "threads": 1},
        "measure": {"warmup": 1, "steps": 3, "rounds": 1, "phase_steps": 0},
        "stacks": {"baseline": [], "small": [optimizer]},
    }
    path.write_text(json.dumps(work))
    baseline, stack = run_scenario(path).values()
    found = compare_training({("", 0): baseline}, {("", 0): stack})
    said = "its optimizer keeps its state in uint8, the baseline's in float32"
    assert found.optimizer_by_design == f"{said}, as bitsandbytes declares"
    assert found.update_tolerance == 0.05
    assert not found.training_difference
    undeclared = stack.model_copy(update={"other_optimizers": ()})
    (reason,) = compare_training({("", 0): baseline}, {("", 0): undeclared}).training_reasons
    assert reason == said


@pytest.mark.parametrize("archs", [(), pytest.param(None, marks=pytest.mark.release)])
def test_the_plugin_keeps_the_contract(archs):
    assert check_plugin("bitsandbytes", archs=archs).ran


@pytest.mark.parametrize("start", STARTS)
def test_it_runs_from_the_command_line_and_ends_in_a_table(start, tmp_path):
    (tmp_path / "work.yaml").write_text(
        "name: tiny\n"
        "model: {id: tiny-llama-cpu, overrides: {num_hidden_layers: 2}}\n"
        "data: {sequence_length: 32}\n"
        "train: {micro_batch_size: 2}\n"
        "resources: {device: cpu, threads: 1}\n"
        "measure: {warmup: 1, steps: 3, rounds: 1}\n"
    )
    with start(tmp_path / "site") as launching:
        words = ("run", "work.yaml", "--plugin", "bitsandbytes", "--results", "results", *launching)
        done = call(*words, folder=tmp_path)
    assert done.code == 0, done.out + done.err
    assert "adapter: lora added to every stack: bitsandbytes needs one" in " ".join(
        (done.out + done.err).split()
    )
    table = {line.partition(" ")[0] for line in done.out.splitlines()}
    assert {"baseline", "bitsandbytes"} <= table
