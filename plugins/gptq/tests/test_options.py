"""Options, constraints, checkpoints: errors name plugin, field and the way out."""

import json
import subprocess
import sys

import pytest
from accel_bench_gptq import AutoGPTQ

from accel_bench.errors import PluginError, ScenarioError
from accel_bench.plugins.constraints import unmet_constraints
from accel_bench.plugins.manager import activate
from accel_bench.scenario.models import Stack
from accel_bench.scenario.uses import Use

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}


def stack_of(**options: object) -> Stack:
    return Stack(name="gptq", uses=(Use(use="autogptq", options=options),))


@pytest.fixture
def check(make_run, machine):
    """Return the reasons that exclude an experiment with the given options."""

    def reasons(model=None, options=None, **settings):
        run = make_run(model, **settings)
        stack = stack_of(**(options or {}))
        experiment = run.experiment.model_copy(update={"stack": stack})
        return unmet_constraints(experiment, activate(run.scenario, stack), machine)

    return reasons


@pytest.fixture
def checkpoint(tmp_path):
    """A directory with the configuration of a checkpoint, quantized or not."""

    def make(**quantization):
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
        if quantization:
            config["quantization_config"] = quantization
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "model.safetensors").write_bytes(b"")
        return {"id": str(tmp_path), "weights": "pretrained", "overrides": {}}

    return make


def test_listing_the_plugin_imports_neither_torch_nor_the_library():
    code = (
        "import sys, accel_bench_gptq\n"
        "assert not {'torch', 'gptqmodel', 'transformers', 'numpy'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "options, field, why",
    [
        ({"bits": 3}, "bits", "2, 4 or 8"),
        ({"group_size": 48}, "group_size", "-1, 32, 64 or 128"),
        ({"desc_act": "yes"}, "desc_act", "boolean"),
        ({"sym": 1}, "sym", "boolean"),
        ({"backend": "cuda"}, "backend", "'auto', 'torch' or 'triton'"),
        ({"backend": "marlin"}, "backend", "kernels that train: torch, triton"),
        ({"backend": "exllama_v2"}, "backend", "no gradient passes"),
        ({"backend": "gptq_torch_fused"}, "backend", "evaluation comes before training"),
        ({"backend": "auto_gptq"}, "backend", "GPTQModel.*is its successor: use backend: auto"),
        ({"dequantize_in_backward": 2}, "dequantize_in_backward", "boolean"),
        ({"quantize": "round"}, "quantize", "'pack' or 'calibrate'"),
        ({"from_quantized": "no"}, "from_quantized", "boolean"),
        ({"calibration_samples": 0}, "calibration_samples", "greater than 0"),
        ({"from_quantized": True, "quantize": "pack"}, "quantize", "not quantized yet"),
        ({"group": 64}, "group", "group_size"),
    ],
)
def test_a_wrong_option_names_the_plugin_the_field_and_what_is_possible(
    make_run, options, field, why
):
    with pytest.raises(PluginError, match=rf"(?s)plugin 'autogptq'.*{field}.*{why}"):
        activate(make_run().scenario, stack_of(**options))


def test_what_loads_the_model_too_is_refused_and_what_only_updates_it_is_not(make_run):
    def stack(**options):
        uses = (Use(use="autogptq"), Use(use="bitsandbytes", options=options))
        return Stack(name="both", uses=uses)

    scenario = make_run().scenario
    with pytest.raises(PluginError, match="'autogptq' and 'bitsandbytes' both claim load_model"):
        activate(scenario, stack())
    activate(scenario, stack(quant_type="none", optimizer="adamw_8bit"))


def test_what_it_needs_is_declared(check):
    assert check() == ()
    (reason,) = check({"dtype": "float32"})
    assert reason == (
        "autogptq: does not work with model.dtype float32; it works with bfloat16, float16"
    )
    (reason,) = check(adapter="none")
    assert reason == "autogptq: needs an adapter, and the scenario has none"
    (reason,) = check({"id": "gpt2", "overrides": {}})
    assert reason.startswith("autogptq: does not support GPT2LMHeadModel; it supports G")
    (reason,) = check(options={"backend": "triton"})
    assert reason == "autogptq: backend triton needs a GPU; use backend: auto"


def test_fused_experts_can_be_packed_and_nothing_else(check):
    mixtral = {"id": "mixtral-8x7b", "overrides": {}}
    assert check(mixtral) == ()
    (reason,) = check(mixtral, {"quantize": "calibrate"})
    assert "only `quantize: pack`" in reason


@pytest.mark.parametrize(
    "quantization, options, problem",
    [
        ({}, {"from_quantized": True}, "from_quantized: the checkpoint .* is not quantized"),
        (GPTQ, {}, "is quantized already \\(gptq\\); set from_quantized: true"),
        ({**GPTQ, "quant_method": "awq"}, {"from_quantized": True}, "of the kind awq"),
        (GPTQ, {"from_quantized": True, "bits": 8}, "bits: .* has bits 4, asked is 8"),
        (GPTQ, {"from_quantized": True, "sym": False}, "sym: .* has sym True, asked is False"),
        ({**GPTQ, "bits": 3}, {"from_quantized": True}, "has 3 bits, which no kernel trains"),
        ({"quant_method": "gptq"}, {"from_quantized": True}, "does not say.*bits, group_size"),
    ],
)
def test_a_checkpoint_that_is_not_what_is_asked_is_refused_before_anything_starts(
    check, checkpoint, quantization, options, problem
):
    with pytest.raises(ScenarioError, match=f"autogptq: .*{problem}"):
        check(checkpoint(**quantization), options)


def test_a_checkpoint_is_taken_as_it_is(check, checkpoint):
    model = checkpoint(**GPTQ)
    from_quantized = {"from_quantized": True}
    assert check(model, from_quantized) == ()
    assert check(model, {**from_quantized, "bits": 4, "group_size": 128, "sym": True}) == ()
    with pytest.raises(ScenarioError, match=r"set model\.weights: pretrained"):
        check({**model, "weights": "random"}, from_quantized)
    with pytest.raises(ScenarioError, match=r"leave model\.overrides out"):
        check({**model, "overrides": {"num_hidden_layers": 1}}, from_quantized)


def test_an_unquantized_directory_is_quantized_now(check, checkpoint):
    assert check(checkpoint()) == ()


@pytest.mark.parametrize(
    "weights, options, way",
    [
        ("random", {}, "pack"),
        ("pretrained", {}, "calibrate"),
        ("pretrained", {"quantize": "pack"}, "pack"),
        ("random", {"quantize": "calibrate"}, "calibrate"),
        ("pretrained", {"from_quantized": True}, "checkpoint"),
    ],
)
def test_how_weights_are_quantized_follows_from_what_they_are(weights, options, way):
    assert AutoGPTQ(AutoGPTQ.Options(**options), "autogptq").way(weights) == way
