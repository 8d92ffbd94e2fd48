"""Packed layers: equal product and gradient in every mode, with the requested memory."""

import pytest
import torch
from accel_bench_gptq import impl
from accel_bench_gptq.checkpoint import GPTQSettings
from accel_bench_gptq.packing import pack, unpack

SETTINGS = GPTQSettings(bits=4, group_size=32, sym=True, desc_act=False)


@pytest.fixture
def matrix() -> torch.Tensor:
    return torch.randn(64, 96, generator=torch.Generator().manual_seed(0)) * 0.02


@pytest.fixture
def layer(matrix):
    bias = torch.linspace(-1, 1, 64, dtype=torch.bfloat16)
    return impl.make_layer(pack(matrix, SETTINGS), bias, False, SETTINGS)


@pytest.fixture
def inputs() -> torch.Tensor:
    drawn = torch.randn(2, 5, 96, generator=torch.Generator().manual_seed(1))
    return drawn.to(torch.bfloat16).requires_grad_()


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("evaluated", [True, False])
def test_product_and_gradient_are_those_of_the_unpacked_matrix(
    layer, matrix, inputs, again, evaluated
):
    layer.unpacks_again = again
    if evaluated:
        with torch.no_grad():
            layer.train(False)(inputs)
        layer.train()
    plain = unpack(pack(matrix, SETTINGS), 4, torch.bfloat16)
    expected = inputs @ plain + layer.bias
    found = layer(inputs)
    assert torch.equal(found, expected)
    direction = torch.randn_like(found)
    (gradient,) = torch.autograd.grad(found, inputs, direction)
    assert torch.equal(gradient, direction @ plain.T)


@pytest.mark.parametrize("again, kept", [(True, 0), (False, 1)])
def test_the_unpacked_matrix_is_kept_for_the_backward_or_not(layer, inputs, again, kept):
    layer.unpacks_again = again
    seen = []

    def see(tensor: torch.Tensor) -> torch.Tensor:
        seen.append((sorted(tensor.shape), tensor.dtype))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(see, lambda tensor: tensor):
        layer(inputs)
    assert seen.count(([64, 96], torch.bfloat16)) == kept


def test_peft_knows_the_layer_and_nothing_of_it_trains(layer):
    from gptqmodel.nn_modules.qlinear import BaseQuantLinear

    assert isinstance(layer, BaseQuantLinear)
    assert not list(layer.parameters())
    assert not hasattr(layer, "weight")


def test_the_library_compiles_nothing(layer):
    assert "dequantize_weight" not in vars(layer)


def test_packed_experts_compute_what_the_model_s_own_do():
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    config = MixtralConfig(
        hidden_size=32, intermediate_size=64, num_local_experts=4, num_experts_per_tok=2
    )
    config._experts_implementation = "eager"
    own = MixtralExperts(config).to(torch.float32)
    generator = torch.Generator().manual_seed(0)
    for parameter in own.parameters():
        parameter.data.normal_(std=0.2, generator=generator)

    def matrix(weight: torch.Tensor) -> torch.nn.Module:
        packed = pack(weight, SETTINGS)
        weight.data.copy_(unpack(packed, 4, torch.float32).T)
        return impl.PackedMatrix(packed, 4, False)

    packed = impl.PackedExperts(
        impl.PackedExpert(matrix(own.gate_up_proj[e]), matrix(own.down_proj[e]), own.act_fn)
        for e in range(4)
    )
    tokens = torch.randn(6, 32, generator=generator, requires_grad=True)
    chosen = torch.tensor([[0, 1], [1, 2], [0, 2], [2, 1], [0, 1], [1, 0]])
    shares = torch.rand(6, 2, generator=generator)
    expected, found = own(tokens, chosen, shares), packed(tokens, chosen, shares)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(each.square().sum(), tokens)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the Triton kernel needs a GPU")
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_triton_kernel_unpacks_the_same(matrix, bits):
    packed = pack(matrix.cuda(), SETTINGS.model_copy(update={"bits": bits}))
    found = impl.dequantize(packed, bits, True, torch.bfloat16)
    # The kernel multiplies in float32 and rounds once, torch rounds to float16 before.
    torch.testing.assert_close(found, unpack(packed, bits, torch.bfloat16), rtol=2**-7, atol=0)
