"""Products that are observed in one pass cost what torch counts in a whole training step."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from accel_bench import Batch, Run, TokenCounts
from accel_bench.flops.formulas import hardware_flops, model_flops
from accel_bench.testing import make_run
from accel_bench.worker.flops.matrices import UnknownPartError
from accel_bench.worker.flops.observed import observe_workload
from accel_bench.worker.flops.trace import read_workload

LENGTH, SAMPLES = 12, 3

TEXT = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2} | {
    "num_attention_heads": 4,
    "projection_dim": 16,
}
PICTURE = {"image_size": 16, "patch_size": 4}


def ids(high: int = 96) -> torch.Tensor:
    """Token ids."""
    return torch.randint(1, high, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(0))


def bert() -> tuple[Any, dict[str, Any]]:
    """A BERT that predicts tokens."""
    config = transformers.BertConfig(**TEXT, intermediate_size=64)
    return transformers.BertForMaskedLM(config), {"input_ids": ids(), "labels": ids()}


def t5() -> tuple[Any, dict[str, Any]]:
    """A T5, whose encoder and decoder read rows of other lengths."""
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    config = transformers.T5Config(vocab_size=96, decoder_start_token_id=0, **sizes)
    inputs = {"input_ids": ids(), "labels": ids()[:, :7].contiguous()}
    return transformers.T5ForConditionalGeneration(config), inputs


def vit() -> tuple[Any, dict[str, Any]]:
    """A vision transformer that classifies images."""
    sizes = {key: TEXT[key] for key in TEXT if key != "vocab_size"}
    config = transformers.ViTConfig(**sizes, **PICTURE, intermediate_size=64, num_labels=5)
    inputs = {"pixel_values": torch.randn(SAMPLES, 3, 16, 16), "labels": torch.tensor([0, 1, 2])}
    return transformers.ViTForImageClassification(config), inputs


def wav2vec2() -> tuple[Any, dict[str, Any]]:
    """A wav2vec 2.0 under CTC: convolutions, one of them with normed weights."""
    sizes = {key: TEXT[key] for key in TEXT if key != "vocab_size"}
    config = transformers.Wav2Vec2Config(
        **sizes,
        vocab_size=12,
        intermediate_size=64,
        conv_dim=(16, 16),
        conv_stride=(5, 4),
        conv_kernel=(10, 6),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=1,  # see the test of convolutions in groups
        mask_time_prob=0.0,
        layerdrop=0.0,
    )
    inputs = {"input_values": torch.randn(SAMPLES, 600), "labels": ids(11)[:, :4].contiguous()}
    return transformers.Wav2Vec2ForCTC(config), inputs


def clip() -> tuple[Any, dict[str, Any]]:
    """A CLIP: two towers, and the product of what they make."""
    text = TOWER | {"vocab_size": 96, "eos_token_id": 95, "max_position_embeddings": 16}
    config = transformers.CLIPConfig(
        text_config=text, vision_config=TOWER | PICTURE, projection_dim=16
    )
    pixels = torch.randn(SAMPLES, 3, 16, 16)
    inputs = {"input_ids": ids(), "pixel_values": pixels, "return_loss": torch.tensor(True)}
    return transformers.CLIPModel(config), inputs


MODELS = (bert, t5, vit, wav2vec2, clip)


def loss_of(model: Any, inputs: Any, supervised_in_step: int) -> Any:
    """The model's own loss."""
    return model(**inputs).loss


def observed(folder: Path, model: Any, inputs: dict[str, Any], elements: int) -> Run:
    """A run around a model, and the batch whose products are observed."""
    run = make_run(folder, model=model)
    run.loss = loss_of
    run.batches = iter([Batch(inputs, SAMPLES, TokenCounts(elements, elements, elements), 1)])
    return run


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("frozen", [False, True], ids=["all", "head"])
def test_the_flops_of_a_step_are_those_that_torch_counts(
    make: Callable[[], tuple[Any, dict[str, Any]]], frozen: bool, tmp_path: Path
) -> None:
    model, inputs = make()
    model.set_attn_implementation("eager")
    model.train()
    if frozen:  # What stands before the last weights computes forward alone.
        named = list(model.named_parameters())
        for _, parameter in named[: len(named) // 2]:
            parameter.requires_grad_(False)
    elements = SAMPLES * LENGTH
    run = observed(tmp_path, model, inputs, elements)
    workload = observe_workload(run, next(run.batches))
    ours = model_flops(workload, LENGTH)
    with FlopCounterMode(display=False) as counter:
        model(**inputs).loss.backward()
    assert ours.non_causal * elements == pytest.approx(counter.get_total_flops(), rel=1e-3)
    assert hardware_flops(workload, LENGTH) == ours


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_fused_attention_costs_what_its_products_cost(
    make: Callable[[], tuple[Any, dict[str, Any]]], tmp_path: Path
) -> None:
    model, inputs = make()
    found = []
    for attention in ("eager", "sdpa"):
        model.set_attn_implementation(attention)
        run = observed(tmp_path, model.train(), inputs, SAMPLES)
        found.append(model_flops(observe_workload(run, next(run.batches)), LENGTH).non_causal)
    assert found[0] == pytest.approx(found[1], rel=1e-6)


class Convolved(nn.Module):
    """A convolution in groups."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 6, 3, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve."""
        return self.conv(x)


def test_a_gradient_of_weights_in_groups_costs_what_the_forward_pass_does(tmp_path: Path) -> None:
    """Torch's counter takes it for one without groups."""
    model, x = Convolved(), torch.randn(2, 8, 10)
    forward = 2 * (2 * 6 * 8) * (4 * 3)
    run = observed(tmp_path, model, {"x": x}, 1)
    run.loss = lambda model, inputs, count: model(**inputs).sum()
    assert model_flops(observe_workload(run, next(run.batches)), 1).causal == 2 * forward


def test_what_a_pass_leaves_behind_is_nothing(tmp_path: Path) -> None:
    model, inputs = bert()
    model.train()
    model.register_buffer("count", torch.zeros(()))
    model.register_forward_hook(lambda *_: model.count.add_(1) and None)
    run = observed(tmp_path, model, inputs, SAMPLES)
    state = torch.random.get_rng_state()
    observe_workload(run, next(run.batches))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.count == 0
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_that_draws_from_numpy_draws_what_it_would_have_drawn(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    run = observed(tmp_path, model, {"x": torch.ones(2, 3)}, 2)
    run.loss = lambda model, inputs, count: model(inputs["x"]).sum() * np.random.rand()
    batch = next(run.batches)
    state, python_state = np.random.get_state(), random.getstate()
    observe_workload(run, batch)
    assert (np.random.get_state()[1] == state[1]).all()
    assert np.random.get_state()[2] == state[2]
    assert random.getstate() == python_state


class Linear(torch.autograd.Function):
    """A linear layer as a library has its own."""

    @staticmethod
    def forward(inputs: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
        """Multiply."""
        product = inputs.matmul(weight.t())
        return product if bias is None else product + bias

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing: no backward pass is taken."""


def test_a_library_s_own_linear_function_costs_what_torch_s_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = bert()
    run = observed(tmp_path, model, inputs, SAMPLES)
    batch = next(run.batches)
    expected = observe_workload(run, batch)
    monkeypatch.setattr(nn.functional, "linear", Linear.apply)
    assert observe_workload(run, batch) == expected
    assert nn.functional.linear == Linear.apply


def test_products_without_gradients_cost_a_forward_pass(tmp_path: Path) -> None:
    model = nn.Linear(3, 5)
    run = observed(tmp_path, model, {"x": torch.ones(2, 3)}, 2)

    def loss(model: Any, inputs: Any, count: int) -> torch.Tensor:
        with torch.no_grad():
            query = model(inputs["x"])[None]
            nn.functional.scaled_dot_product_attention(query, query, query)
        return model(inputs["x"]).sum()

    run.loss = loss
    workload = observe_workload(run, next(run.batches))
    linear = 2 * 3 * 5
    attention = 2 * (2 * 2 * 5)
    assert model_flops(workload, 1).non_causal == linear + attention + 2 * linear


class Hidden(nn.Module):
    """Multiplies with weights in a way that no function of torch shows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by sums of elements."""
        return (x[:, None, :] * self.weight).sum(-1)


def test_a_weight_whose_product_is_not_seen_has_no_flops(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), Hidden())
    run = observed(tmp_path, model, {"x": torch.ones(2, 3)}, 2)
    run.loss = lambda model, inputs, count: model(inputs["x"]).sum()
    batch = next(run.batches)
    with pytest.raises(UnknownPartError, match=r"1 \(Hidden\) holds weight"):
        observe_workload(run, batch)
    assert read_workload(run, batch) is None
    assert "1 (Hidden) holds weight" in run.workload_reason


def test_a_function_that_is_not_counted_is_named(tmp_path: Path) -> None:
    model = nn.LSTM(3, 4)
    run = observed(tmp_path, model, {"x": torch.ones(2, 1, 3)}, 2)
    run.loss = lambda model, inputs, count: model(inputs["x"])[0].sum()
    with pytest.raises(UnknownPartError, match=r"torch\.lstm is not counted"):
        observe_workload(run, next(run.batches))
