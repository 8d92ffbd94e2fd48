"""Quantized bases under fused LoRA: each library's own product, and PEFT's loss and gradients."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from accel_bench_fused_kernels.impl.lora import fuse_lora
from accel_bench_fused_kernels.impl.lora_bases import find_base
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers.pytorch_utils import Conv1D

# Importing GPTQModel makes it look for new versions of numbers that it has in its own way.
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`.*gradient_checkpointing.*`:FutureWarning"),
    # Of merging, which nobody does here.
    pytest.mark.filterwarnings("ignore:TorchaoLoraLinear was instantiated:UserWarning"),
]

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_hidden_layers": 2}
"""Layer sizes that are multiples of 32, as GPTQ packs."""


def four_bits(linear: nn.Linear, quant_type: str, nested: bool = False) -> nn.Module:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    made = bitsandbytes.nn.Linear4bit(
        linear.in_features,
        linear.out_features,
        bias=linear.bias is not None,
        compute_dtype=linear.weight.dtype,
        compress_statistics=nested,
        quant_type=quant_type,
    )
    made.weight = bitsandbytes.nn.Params4bit(
        linear.weight.detach(),
        requires_grad=False,
        compress_statistics=nested,
        quant_type=quant_type,
        module=made,
    ).to("cpu")
    made.bias = linear.bias
    return made


def eight_bits(linear: nn.Linear) -> nn.Module:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    made = bitsandbytes.nn.Linear8bitLt(
        linear.in_features,
        linear.out_features,
        bias=linear.bias is not None,
        has_fp16_weights=False,
        threshold=6.0,
    )
    codes, scales, _ = bitsandbytes.functional.int8_vectorwise_quant(linear.weight.detach().half())
    made.weight = bitsandbytes.nn.Int8Params(
        codes, requires_grad=False, has_fp16_weights=False, CB=codes, SCB=scales
    )
    made.bias = linear.bias
    return made


def packed(linear: nn.Linear, bits: int = 4, sorts: bool = False) -> nn.Module:
    """Layer of the plugin for GPTQ."""
    pytest.importorskip("gptqmodel")
    impl = pytest.importorskip("accel_bench_gptq.impl")
    checkpoint = pytest.importorskip("accel_bench_gptq.checkpoint")
    packing = pytest.importorskip("accel_bench_gptq.packing")
    settings = checkpoint.GPTQSettings(bits=bits, group_size=32, sym=False, desc_act=sorts)
    words = packing.pack(linear.weight.detach(), settings)
    made: nn.Module = impl.make_layer(words, linear.bias, False, settings)
    return made


def of_the_library(linear: nn.Linear) -> nn.Module:
    """GPTQModel's own layer with the plugin's packed tensors."""
    pytest.importorskip("gptqmodel")
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.quantization import FORMAT

    own: Any = packed(linear)
    made: Any = TorchLinear(
        bits=4,
        group_size=32,
        sym=False,
        desc_act=False,
        in_features=linear.in_features,
        out_features=linear.out_features,
        bias=linear.bias is not None,
        pack_dtype=torch.int32,
        format=FORMAT.GPTQ_V2,
        register_buffers=True,
    )
    for name in ("qweight", "qzeros", "scales", "g_idx", "bias"):
        if getattr(own, name) is not None:
            setattr(made, name, getattr(own, name))
    made.qzero_format(format=2)
    made.optimize = lambda *_, **__: None
    made.post_init()
    return made.train()


def by_torchao(linear: nn.Linear, name: str) -> nn.Module:
    quantization = pytest.importorskip("torchao.quantization")
    if name == "nf4":
        whole = quantization.to_nf4(linear.weight.detach(), 32, 2)
        linear.weight = nn.Parameter(whole, requires_grad=False)
    elif name == "int8":
        granularity = quantization.PerRow()
        config = quantization.Int8WeightOnlyConfig(
            granularity=granularity, set_inductor_config=False
        )
        quantization.quantize_(linear, config)
    else:
        config = quantization.IntxWeightOnlyConfig(
            weight_dtype=torch.int4, granularity=quantization.PerGroup(32)
        )
        quantization.quantize_(linear, config)
    return linear


def transposed(linear: nn.Linear) -> nn.Module:
    made = Conv1D(linear.out_features, linear.in_features).to(linear.weight.dtype)
    with torch.no_grad():
        made.weight.copy_(linear.weight.T)
        if linear.bias is not None:
            made.bias.copy_(linear.bias)
    return made.requires_grad_(False)


KINDS: dict[str, Callable[[nn.Linear], nn.Module]] = {
    "dense": lambda linear: linear,
    "transposed": transposed,
    "nf4": lambda linear: four_bits(linear, "nf4"),
    "nf4-nested": lambda linear: four_bits(linear, "nf4", nested=True),
    "fp4": lambda linear: four_bits(linear, "fp4"),
    "int8": eight_bits,
    "gptq": packed,
    "gptq-2": lambda linear: packed(linear, 2),
    "gptq-8": lambda linear: packed(linear, 8),
    "gptq-sorted": lambda linear: packed(linear, sorts=True),
    "gptqmodel": of_the_library,
    "torchao-int8": lambda linear: by_torchao(linear, "int8"),
    "torchao-int4": lambda linear: by_torchao(linear, "int4"),
    "torchao-nf4": lambda linear: by_torchao(linear, "nf4"),
}

MODELS = {
    "nf4": "lora.Linear4bit bnb-4bit",
    "nf4-nested": "lora.Linear4bit bnb-4bit",
    "fp4": "lora.Linear4bit bnb-4bit",
    "int8": "lora.Linear8bitLt bnb-int8",
    "gptq": "lora.GPTQLoraLinear gptq",
    "torchao-int8": "lora.TorchaoLoraLinear tensor",
}
"""PEFT's layers by model, and the kinds of base that fusion recognizes."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_the_product_and_its_gradient_are_the_library_s_own(kind, dtype, bias):
    torch.manual_seed(0)
    linear = nn.Linear(64, 96, bias=bias or kind == "transposed", dtype=dtype)
    layer = KINDS[kind](linear.requires_grad_(False)).train()
    base = find_base(layer)
    assert not isinstance(base, str)
    assert base.features == 96
    inputs = torch.randn(5, 64, dtype=dtype, requires_grad=True)
    expected = layer(inputs)
    with torch.no_grad():
        found = base.multiply(inputs.detach())
    # GPTQModel's own layer multiplies in float16. In bfloat16, the plugin's rounds before it adds
    # the bias, and torchao multiplies before it scales.
    tolerance = {"gptqmodel": 2**-10}.get(kind, 1e-5) if dtype == torch.float32 else 2**-6
    options = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(found, expected, **options)
    direction = torch.randn_like(expected)
    (gradient,) = torch.autograd.grad(expected, inputs, direction)
    matrix = base.dequantize(dtype)
    assert (matrix.dtype, matrix.shape) == (dtype, (96, 64))
    torch.testing.assert_close(direction @ matrix, gradient, **options)


def quantize(model: Any, kind: str) -> Any:
    """Replace the linear layers of a model's blocks, as quantization plugins do."""
    for layer in model.model.layers:
        for name, linear in list(layer.named_modules()):
            if isinstance(linear, nn.Linear):
                layer.set_submodule(name, KINDS[kind](linear.requires_grad_(False)))
    if kind.startswith(("nf4", "fp4")):
        model.is_loaded_in_4bit = True
    model.is_loaded_in_8bit = kind == "int8"
    return model


@pytest.fixture
def adapted(bench) -> Callable[..., Any]:
    """Return a small model with a quantized base and nonzero adapters."""

    def make(kind: str, dtype: torch.dtype, adapters: torch.dtype, dropout: float) -> Any:
        base = quantize(bench.build("Qwen2", dtype, **SIZES), kind)
        config = LoraConfig(r=3, lora_alpha=5, lora_dropout=dropout, target_modules=TARGETS)
        model = get_peft_model(base, config, autocast_adapter_dtype=False)
        torch.manual_seed(2)
        for name, parameter in model.named_parameters():
            if "lora" in name:
                drawn = torch.randn_like(parameter) * 0.05 if "lora_B" in name else parameter
                parameter.data = drawn.detach().to(adapters)
        return model.train()

    return make


def two_steps(bench: Any, model: Any) -> list[Any]:
    """Loss and gradients by PEFT, and then fused, from the same random state."""
    found = []
    for fused in (False, True):
        fusion = fuse_lora(model) if fused else None
        torch.manual_seed(3)
        found.append(bench.step(model))
        if fusion is not None:
            assert not fusion.evidence()["left_alone"]
            assert len(fusion.fused_mlps) == SIZES["num_hidden_layers"]
            fusion.undo()
    return found


@pytest.mark.parametrize("kind", MODELS)
def test_the_layers_are_those_that_plugins_train_on(adapted, kind):
    model = adapted(kind, torch.bfloat16, torch.float32, 0.0)
    layer = model.base_model.model.model.layers[0].mlp.up_proj
    (base,) = fuse_lora(model).evidence()["bases"]
    assert f"lora.{type(layer).__name__} {base}" == MODELS[kind]


@pytest.mark.parametrize("adapters", [torch.float16, torch.float32])
def test_float16_over_gptq(bench, adapted, adapters):
    model = adapted("gptq", torch.float16, adapters, 0.1)
    (loss, gradients), (fused_loss, fused) = two_steps(bench, model)
    assert fused_loss == pytest.approx(loss, rel=2**-10)
    assert bench.distance(fused, gradients) < 2**-7


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_loss_and_gradients_are_those_of_peft(bench, adapted, kind, dropout):
    model = adapted(kind, torch.float32, torch.float32, dropout)
    (loss, gradients), (fused_loss, fused) = two_steps(bench, model)
    assert fused_loss == pytest.approx(loss, rel=1e-5)
    assert bench.distance(fused, gradients) < 1e-4


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("adapters", [torch.float32, torch.bfloat16])
def test_in_bfloat16_too_and_under_checkpointing(bench, adapted, kind, adapters):
    model = adapted(kind, torch.bfloat16, adapters, 0.1)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()
    (loss, gradients), (fused_loss, fused) = two_steps(bench, model)
    # Two orders of rounding to 8 bits, through two layers.
    assert fused_loss == pytest.approx(loss, rel=2**-7)
    assert bench.distance(fused, gradients) < 2**-4


@pytest.mark.parametrize("kind", MODELS)
def test_under_autocast(bench, adapted, kind):
    model = adapted(kind, torch.float32, torch.float32, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        (loss, gradients), (fused_loss, fused) = two_steps(bench, model)
    assert fused_loss == pytest.approx(loss, rel=2**-7)
    assert bench.distance(fused, gradients) < 2**-4


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("kind", ["nf4", "gptq"])
def test_a_compiled_mlp(bench, adapted, kind):
    model = adapted(kind, torch.float32, torch.float32, 0.1)
    torch.manual_seed(3)
    loss, gradients = bench.step(model)
    fuse_lora(model)
    model.base_model.model.model.layers[0].mlp.compile(backend="aot_eager")
    torch.manual_seed(3)
    found, others = bench.step(model)
    assert found == pytest.approx(loss, rel=1e-5)
    assert bench.distance(others, gradients) < 1e-4


@pytest.mark.parametrize("kind", ["nf4", "gptq"])
def test_no_dense_matrix_is_kept(bench, adapted, kind):
    model = adapted(kind, torch.float32, torch.float32, 0.0)
    fuse_lora(model)
    shapes = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        bench.step(model)
    dense = {(64, 64), (32, 64), (64, 32), (96, 64), (64, 96)}
    assert shapes
    assert not dense & set(shapes)


def test_a_layer_that_is_not_known_is_named():
    class Other(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs) * 2

    assert find_base(Other(4, 4)) == "the base is a Other"
    assert find_base(nn.Bilinear(2, 2, 2)) == "the base is a Bilinear"


def test_no_library_is_imported_to_look_at_a_layer(monkeypatch):
    for name in ("bitsandbytes", "gptqmodel.nn_modules.qlinear.torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert not isinstance(find_base(nn.Linear(4, 4)), str)
    assert "bitsandbytes" not in sys.modules


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the libraries' kernels need a GPU")
@pytest.mark.parametrize("kind", ["nf4", "nf4-nested", "fp4", "int8"])
def test_on_a_gpu_the_product_is_the_library_s_own(kind):
    torch.manual_seed(0)
    linear = nn.Linear(64, 96, dtype=torch.bfloat16)
    layer = KINDS[kind](linear.requires_grad_(False)).cuda().train()
    base = find_base(layer)
    assert not isinstance(base, str)
    inputs = torch.randn(256, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    expected = layer(inputs)
    torch.testing.assert_close(base.multiply(inputs.detach()), expected)
    direction = torch.randn_like(expected)
    (gradient,) = torch.autograd.grad(expected, inputs, direction)
    torch.testing.assert_close(direction @ base.dequantize(torch.bfloat16), gradient)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="a GPU draws in another way")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_draws_the_same_again(dtype):
    from accel_bench_fused_kernels.impl import lora_dropout

    inputs = torch.randn(257, 65, dtype=dtype, device="cuda")
    torch.manual_seed(0)
    expected = nn.functional.dropout(inputs, 0.3)
    torch.manual_seed(0)
    draw = lora_dropout.prepare(inputs, 0.3)
    assert torch.equal(lora_dropout.drop(inputs, 0.3, draw), expected)
    torch.rand(3, device="cuda")
    again, mask = lora_dropout.drop_again(inputs, 0.3, draw)
    assert torch.equal(again, expected)
    assert torch.equal(again != 0, mask & (inputs != 0))
