"""Packing: an error of half a step at most, in GPTQModel's layout."""

import pytest
import torch
from accel_bench_gptq import loading
from accel_bench_gptq.checkpoint import GPTQSettings
from accel_bench_gptq.packing import pack, unpack

OUTPUTS, INPUTS = 64, 96


def settings(bits=4, group_size=32, sym=True, desc_act=False) -> GPTQSettings:
    return GPTQSettings(bits=bits, group_size=group_size, sym=sym, desc_act=desc_act)


@pytest.fixture
def weight() -> torch.Tensor:
    """A matrix whose rows and columns have different ranges, some of them without zero."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(OUTPUTS, INPUTS, generator=generator) * 0.02
    drawn *= torch.linspace(0.1, 3, INPUTS)
    return drawn + torch.linspace(-0.05, 0.05, OUTPUTS)[:, None]


@pytest.mark.parametrize("desc_act", [False, True])
@pytest.mark.parametrize("sym", [False, True])
@pytest.mark.parametrize("group_size", [-1, 32, 64])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_each_weight_is_within_half_a_step_of_what_it_was(weight, bits, group_size, sym, desc_act):
    packed = pack(weight, settings(bits, group_size, sym, desc_act))
    again = unpack(packed, bits, torch.float32).T
    steps = packed.scales.float()[packed.g_idx.long()].T
    # The step is rounded to float16, which has 11 bits, and so is the product.
    rounding = weight.abs() * 2.0**-10
    assert ((again - weight).abs() <= steps / 2 + rounding).all()
    assert (again - weight).abs().max() > 0


def test_bits_halve_the_bytes(weight):
    sizes = {bits: pack(weight, settings(bits)).qweight.numel() * 4 for bits in (2, 4, 8)}
    assert sizes == {8: weight.numel(), 4: weight.numel() // 2, 2: weight.numel() // 4}


def test_without_activation_order_groups_are_consecutive(weight):
    assert pack(weight, settings(group_size=64)).g_idx.tolist() == [0] * 64 + [1] * 32


def test_with_activation_order_the_heaviest_inputs_share_a_group(weight):
    g_idx = pack(weight, settings(desc_act=True)).g_idx
    norms = weight.norm(dim=0)
    assert g_idx.bincount().tolist() == [32, 32, 32]
    assert norms[g_idx == 0].min() >= norms[g_idx == 1].max()
    assert g_idx.tolist() != sorted(g_idx.tolist())


def test_equal_weights_of_zero_stay_zero():
    packed = pack(torch.zeros(32, 32), settings(sym=False))
    assert unpack(packed, 4, torch.float32).abs().max() == 0


@pytest.mark.parametrize("bits, sym", [(2, True), (4, True), (4, False), (8, False)])
def test_the_library_unpacks_the_same(weight, bits, sym):
    loading.import_library()
    from gptqmodel.nn_modules.qlinear import PackableQuantLinear
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear

    packed = pack(weight, settings(bits, sym=sym))
    layer = TorchLinear(
        bits=bits, group_size=32, sym=sym, desc_act=False, in_features=INPUTS, out_features=OUTPUTS
    )
    for name, tensor in packed._asdict().items():
        setattr(layer, name, tensor)
    theirs = PackableQuantLinear.dequantize_weight(layer)
    assert torch.equal(theirs, unpack(packed, bits, torch.float16))
