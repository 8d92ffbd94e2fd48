"""autogptq: models train, gradients reach only adapters, checkpoints restore the model."""

import os

import pytest
import torch
from accel_bench_gptq import AutoGPTQ, loading
from safetensors.torch import load_file, save_file
from torch import nn

from accel_bench import load_base_model
from accel_bench.builtin.data.synthetic import SyntheticOptions
from accel_bench.builtin.data.synthetic_impl import make_up
from accel_bench.builtin.models.lora import Lora
from accel_bench.errors import PluginError, ScenarioError
from accel_bench.result import Status
from accel_bench.testing import check_plugin, close_run, evidence_of, run_plugin

loading.import_library()

# What the libraries say of themselves and of one another is not ours to mend.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

MATRICES = 14
"""Number of linear layers in the decoder of the small llama with two layers."""

TOKENS = torch.arange(64).reshape(2, 32)

SMALL = {
    "vocab_size": 2048,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def metrics_of(run):
    return [metric for _, report in run.metric_callbacks for metric in report(None)]


@pytest.fixture
def load(make_run):
    """Load a model with the plugin; close the plugin when the test has ended."""
    opened = []

    def loaded(model=None, data=None, **options):
        run = make_run(model, **({"data": data} if data else {}))
        run.dataset = make_up(SyntheticOptions(samples=32), 32, 0)
        plugin = AutoGPTQ(AutoGPTQ.Options(**options), "autogptq")
        opened.append((plugin, run))
        plugin.prepare_process(run)
        run.model = plugin.load_model(run)
        return plugin, run

    yield loaded
    for _, run in opened:
        close_run(run)


def adapt(run):
    """Put adapters on every linear layer of the run's model, as the slot `lora` does."""
    return Lora(Lora.Options(r=4, target_modules="all-linear"), "lora").add_adapter(run)


def logits(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=TOKENS).logits.float()


def test_ten_steps_make_the_loss_fall_on_weights_of_less_than_four_tenths():
    result = run_plugin(
        "autogptq",
        group_size=64,
        scenario={
            "adapter": {"use": "lora", "r": 16, "target_modules": "all-linear"},
            "train": {"learning_rate": 1e-2},
            "measure": {"warmup": 1, "steps": 10},
        },
    )
    assert result.status is Status.OK, result.reasons
    (rank,) = result.ranks
    losses = [sample.loss for sample in rank.window.samples]
    assert len(losses) == 10
    assert sum(losses[-3:]) < sum(losses[:3])
    evidence = rank.evidence["autogptq"]
    assert evidence["quantized_modules"] == MATRICES
    assert evidence["quantized_bytes"] <= 0.40 * evidence["quantized_bytes_in_bfloat16"]
    assert (evidence["quantize"], evidence["quantized_share"]) == ("pack", 1.0)
    fraction = evidence["quantized_bytes"] / evidence["quantized_bytes_in_bfloat16"]
    assert f"{MATRICES} modules in 4 bits, with {fraction:.3f} of" in evidence["summary"]
    assert rank.effective.linear_kernels == {"GptqTorchLinear": MATRICES, "Linear": 1}
    flow = rank.effective.gradient_flow
    assert flow.modules_without_gradient == ()
    metric = next(metric for metric in rank.metrics if metric.name == "quantize_seconds")
    assert (metric.unit, metric.scope, metric.kind) == ("seconds", "rank", "pack")
    assert metric.value > 0


def test_gradients_reach_adapters_alone_even_when_an_evaluation_came_first(load):
    _, run = load(group_size=64)
    model = adapt(run)
    logits(model.train(False))
    model.train()
    model(input_ids=TOKENS, labels=TOKENS).loss.backward()
    reached = {name for name, p in model.named_parameters() if p.grad is not None}
    assert reached == {name for name, _ in model.named_parameters() if ".lora_" in name}
    second = [p.grad.norm() for name, p in model.named_parameters() if ".lora_B." in name]
    assert len(second) == MATRICES
    assert all(second)


def test_the_backward_computes_the_same_either_way(load):
    gradients = []
    for choice in (True, False):
        _, run = load(dequantize_in_backward=choice)
        model = adapt(run)
        model(input_ids=TOKENS, labels=TOKENS).loss.backward()
        gradients.append([p.grad for p in model.parameters() if p.requires_grad])
    assert all(map(torch.equal, *gradients))


def test_packed_weights_are_those_of_the_other_stacks_within_half_a_step(load, make_run):
    from accel_bench_gptq import impl
    from accel_bench_gptq.packing import unpack

    _, run = load(bits=8, group_size=32)
    other = make_run()
    plain = load_base_model(other)
    assert run.weights_fingerprint == other.weights_fingerprint != ""
    for name, layer in run.model.named_modules():
        if isinstance(layer, impl.GptqTorchLinear):
            packed = impl.Packed(*(getattr(layer, part) for part in impl.BUFFERS))
            weight = plain.get_submodule(name).weight.float().T
            steps = packed.scales.float()[packed.g_idx.long()]
            error = (unpack(packed, 8, torch.float32) - weight).abs()
            assert (error <= steps / 2 + weight.abs() * 2.0**-10).all()


@pytest.mark.parametrize("sym", [True, False])
def test_a_packed_model_saved_as_a_checkpoint_gives_the_same_logits(load, tmp_path, sym):
    _, run = load(group_size=32, sym=sym)
    expected = logits(run.model)
    run.model.config.quantization_config = {
        "quant_method": "gptq",
        "checkpoint_format": "gptq_v2",
        **{"bits": 4, "group_size": 32, "desc_act": False, "sym": sym},
    }
    run.model.save_pretrained(tmp_path / "saved")
    saved = {"id": str(tmp_path / "saved"), "weights": "pretrained", "overrides": {}}
    _, again = load(saved, from_quantized=True)
    assert torch.equal(logits(again.model), expected)
    evidence = evidence_of(again)
    assert (evidence["quantize"], evidence["group_size"]) == ("checkpoint", 32)
    assert evidence["sym"] is sym
    assert metrics_of(again) == []
    model = adapt(again)
    model(input_ids=TOKENS, labels=TOKENS).loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_a_checkpoint_that_contradicts_an_option_is_refused_where_only_the_loader_sees_it(
    load, tmp_path
):
    _, run = load(group_size=32)
    run.model.config.quantization_config = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    run.model.save_pretrained(tmp_path / "saved")
    saved = {"id": str(tmp_path / "saved"), "weights": "pretrained", "overrides": {}}
    with pytest.raises(ScenarioError, match="group_size 32, asked is 64"):
        load(saved, from_quantized=True, group_size=64)


def test_a_model_of_which_nothing_can_be_packed_is_refused(load):
    sizes = {"hidden_size": 80, "intermediate_size": 144, "num_hidden_layers": 1, "head_dim": 20}
    with pytest.raises(
        PluginError, match=r"LlamaForCausalLM has no linear layer .* multiples of 32"
    ):
        load({"overrides": sizes})


# GPTQModel leaves temporary folders for the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_checkpoint_that_lacks_a_tensor_is_refused_with_its_name(load, tmp_path):
    _, run = load(group_size=32)
    run.model.config.quantization_config = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    run.model.save_pretrained(tmp_path / "saved")
    file = tmp_path / "saved" / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file(tensors, file, {"format": "pt"})
    saved = {"id": str(tmp_path / "saved"), "weights": "pretrained", "overrides": {}}
    with pytest.raises(ScenarioError, match=r"1 tensors are not in its files, model\.norm\.weight"):
        load(saved, from_quantized=True)


# GPTQModel leaves temporary folders for the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.release
def test_one_group_for_all_inputs_can_be_calibrated_too(load):
    _, run = load(quantize="calibrate", group_size=-1, calibration_samples=4)
    assert logits(run.model).isfinite().all()


# GPTQModel leaves temporary folders for the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("packing", ["python", pytest.param("compiled", marks=pytest.mark.release)])
def test_calibrating_is_done_once_and_its_seconds_are_reported_each_time(
    load, packing, monkeypatch
):
    if packing == "compiled":
        monkeypatch.delenv("GPTQMODEL_DISABLE_PACK_EXT")
    options = {"quantize": "calibrate", "group_size": 32, "calibration_samples": 8}
    _, run = load(**options)
    first = logits(run.model)
    (metric,) = metrics_of(run)
    assert (metric.scope, metric.kind) == ("global", "calibrate")
    (cached,) = (run.cache_folder / "gptq").glob("*/calibration.json")
    written = cached.stat().st_mtime_ns
    _, run = load(**options)
    assert torch.equal(logits(run.model), first)
    assert metrics_of(run) == [metric]
    assert cached.stat().st_mtime_ns == written
    evidence = evidence_of(run)
    assert evidence["quantize"] == "calibrate"
    assert evidence["quantized_modules"] == MATRICES
    fingerprint = run.weights_fingerprint
    load_base_model(run)
    assert run.weights_fingerprint == fingerprint
    with pytest.raises(ScenarioError, match=r"calibration_samples: 64 are asked for, .* has 32"):
        load(**{**options, "calibration_samples": 64})


# GPTQModel leaves temporary folders for the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_calibrated_run_is_prepared_and_measured_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run_plugin("autogptq", quantize="calibrate", group_size=32, calibration_samples=4)
    assert result.status.completed, result.reasons
    (rank,) = result.ranks
    assert rank.evidence["autogptq"]["quantize"] == "calibrate"
    assert list(tmp_path.iterdir()) == []
    assert rank.effective.weights_fingerprint
    metric = next(metric for metric in rank.metrics if metric.name == "quantize_seconds")
    assert (metric.scope, metric.kind) == ("global", "calibrate")


@pytest.mark.parametrize("checkpointed", [True, pytest.param(False, marks=pytest.mark.release)])
def test_experts_are_packed_too_and_their_work_is_known(checkpointed):
    result = run_plugin(
        "autogptq",
        group_size=32,
        scenario={
            "model": {"id": "mixtral-8x7b"},
            "adapter": {"use": "lora", "target_modules": ["q_proj", "v_proj"]},
            "train": {"gradient_checkpointing": checkpointed},
        },
    )
    assert result.status.completed, result.reasons
    (rank,) = result.ranks
    evidence = rank.evidence["autogptq"]
    assert evidence["module_classes"] == {"GptqTorchLinear": 8, "PackedMatrix": 16}
    assert evidence["quantized_share"] > 0.99
    assert evidence["dequantize_in_backward"] is not checkpointed
    assert all("mlp.gate" in name for name in evidence["unquantized_modules"])
    assert any("experts" in matmul.name for matmul in rank.workload.matmuls)


@pytest.mark.parametrize("options, rehearsed", [({}, False), ({"quantize": "calibrate"}, True)])
def test_calibration_happens_in_the_untimed_process(make_run, options, rehearsed):
    run = make_run()
    AutoGPTQ(AutoGPTQ.Options(**options), "autogptq").prepare_experiment(run)
    assert run.rehearsal is rehearsed


ARCHITECTURES = {
    "GPTBigCodeForCausalLM": {"n_embd": 64, "n_head": 2, "n_layer": 1, "n_positions": 64},
    "OPTForCausalLM": {"ffn_dim": 64, "word_embed_proj_dim": 64},
    "MixtralForCausalLM": {"num_local_experts": 4},
}


@pytest.mark.parametrize("architecture", sorted(AutoGPTQ.restricted_model_archs))
def test_each_architecture_that_it_declares_is_packed_and_trains(load, tmp_path, architecture):
    import transformers

    kind = getattr(transformers, architecture).config_class
    kind(**SMALL, **ARCHITECTURES.get(architecture, {})).save_pretrained(tmp_path / "model")
    model = {"id": str(tmp_path / "model"), "overrides": {}}
    _, run = load(model, group_size=32)
    evidence = evidence_of(run)
    assert evidence["quantized_share"] > 0.9, evidence["unquantized_modules"]
    adapted = adapt(run)
    adapted(input_ids=TOKENS, labels=TOKENS).loss.backward()
    second = [p.grad.norm() for name, p in adapted.named_parameters() if ".lora_B." in name]
    assert second
    assert all(second)


def test_closing_gives_the_environment_back(make_run):
    before = dict(os.environ)
    run = make_run()
    plugin = AutoGPTQ(AutoGPTQ.Options(), "autogptq")
    plugin.prepare_process(run)
    close_run(run)
    assert dict(os.environ) == before


@pytest.mark.parametrize("archs", [(), pytest.param(None, marks=pytest.mark.release)])
def test_the_plugin_keeps_the_contract(archs):
    assert check_plugin("autogptq", archs=archs).ran
